/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "parallel/dtensor/spec.h"
#include "support/dtensor_program.h"
#include "support/dtensor_truth.h"
#include "support/ranks.h"

static int write_program(dtensor_program *p)
{
    int wanted = 5 + program_random(p, 16), done = 0;

    for (int i = 0; i < 3; i++) {
        int64_t dim[4];
        int n = 1 + program_random(p, 4);

        for (int d = 0; d < n; d++)
            dim[d] = 1 + program_random(p, n < 3 ? 7 : 4);
        if (program_add_leaf(p, oar_shape_of(n, dim), 0) < 0)
            return -1;
    }
    for (int tries = 0; done < wanted && tries < 200; tries++) {
        int result = program_step(p);

        if (result < 0)
            return -1;
        done += result;
        if (p->values + 6 > PROGRAM_VALUES)
            break;
    }
    return 0;
}

/* Differs by more than 1e-11, of its size if that is above 1. */
static int differs(const oar_tensor *a, const oar_tensor *b)
{
    int64_t n = oar_tensor_count(b);
    double *x, *y;
    int result;

    if (a == NULL || b == NULL || oar_tensor_count(a) != n)
        return 1;
    x = malloc((size_t)n * 2 * sizeof *x + 1);
    y = x + n;
    result = oar_tensor_read(a, OAR_F64, x) != OAR_OK ||
             oar_tensor_read(b, OAR_F64, y) != OAR_OK;
    for (int64_t i = 0; i < n && !result; i++)
        result = !(fabs(x[i] - y[i]) <= 1e-11 * fmax(1, fabs(y[i])));
    free(x);
    return result;
}

static oar_status complain(const dtensor_program *p, const char *what, int i)
{
    char spec[200] = "", text[2600];

    if (i >= 0)
        oar_spec_text(p->value[i].spread.spec, spec, sizeof spec);
    snprintf(text, sizeof text,
             "OARSONG_TEST_SEED=%llu: %s of %%%d, %s, after%s: %s",
             (unsigned long long)p->seed, what, i, spec, p->text,
             oar_last_error_text());
    return ranks_fail(__FILE__, __LINE__, text);
}

/* The sum of the means of all values, each times a number of its own. */
static oar_status run_backward(dtensor_program *p)
{
    oar_tensor *whole = NULL, *last;
    oar_dtensor spread = { NULL, NULL };

    for (int i = 0; i < p->values; i++) {
        double by = 1 + 0.1 * i;
        oar_tensor *a;
        oar_dtensor b;

        if (p->value[i].is_index)
            continue;
        a = oar_scale(p->tape, oar_mean(p->tape, p->value[i].whole), by);
        b = oar_dtensor_scale(
            p->tape, oar_dtensor_mean(p->tape, p->value[i].spread), by);
        whole = whole == NULL ? a : oar_add(p->tape, whole, a);
        spread = spread.spec == NULL ? b : oar_dtensor_add(p->tape, spread, b);
    }
    last = oar_dtensor_whole(p->tape, spread, OAR_GRADS_EQUAL);
    if (oar_backward(p->tape, whole) != OAR_OK)
        return complain(p, "backward on one rank", -1);
    return oar_backward(p->tape, last) == OAR_OK ? OAR_OK
                                                 : complain(p, "backward", -1);
}

static oar_status compare(dtensor_program *p)
{
    for (int i = 0; i < p->values; i++) {
        oar_tensor *all =
            oar_dtensor_whole(NULL, p->value[i].spread, OAR_GRADS_EQUAL);
        int wrong = differs(all, p->value[i].whole);

        oar_tensor_release(all);
        if (wrong)
            return complain(p, "numbers", i);
    }
    if (run_backward(p) != OAR_OK)
        return OAR_E_INTERNAL;
    for (int i = 0; i < p->values; i++) {
        const program_value *v = &p->value[i];
        oar_tensor *wanted;
        int wrong;

        if (!v->is_leaf || v->is_index)
            continue;
        wanted = truth_part(oar_tensor_grad(v->whole),
                            oari_spec_of_grad(v->spread.spec), 0);
        wrong = differs(oar_tensor_grad(v->spread.local), wanted);
        oar_tensor_release(wanted);
        if (wrong)
            return complain(p, "gradient", i);
    }
    return OAR_OK;
}

oar_status program_check(oar_mesh *mesh, oar_device device, uint64_t seed)
{
    dtensor_program *p = calloc(1, sizeof *p);
    oar_status status;

    p->seed = seed;
    p->state = seed * 0x9e3779b97f4a7c15u + 12345;
    p->mesh = mesh;
    p->device = device;
    CHECK_OK(oar_tape_create(&p->tape));
    status = write_program(p) == 0 ? compare(p)
                                   : complain(p, "failure", p->values - 1);
    oar_tape_destroy(p->tape);
    for (int i = 0; i < p->values; i++)
        if (p->value[i].is_leaf) {
            oar_tensor_release(p->value[i].whole);
            oar_tensor_release(p->value[i].spread.local);
        }
    free(p);
    return status;
}
