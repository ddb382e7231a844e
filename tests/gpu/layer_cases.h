/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/layer_cases.h: an operation on the cpu and twice on a GPU, in every float
 * dtype: results and gradients are near, and the GPU's have the same bits. */
#ifndef TESTS_GPU_LAYER_CASES_H
#define TESTS_GPU_LAYER_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/gpu.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/gpu_ranks.h"

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

static void run(test_job_fn fn, const char *what)
{
    test_job c;

    test_job_start(&c, 1, fn, NULL, "%s", what);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
}

/* ---- one operation on both devices --------------------------------------- */

enum { INPUTS = 3, MOST = 12288 };

typedef oar_tensor *(*layer_fn)(oar_tape *tape, oar_tensor *const *in);

typedef struct layer_case {
    const char *name;
    layer_fn fn;
    oar_shape shape[INPUTS]; /* of floats that want gradients; no dims: none */
} layer_case;

/* What an operation gives: its result and the gradients of its inputs. */
typedef struct outcome {
    int64_t count[INPUTS + 1];
    double number[INPUTS + 1][MOST];
} outcome;

static oar_tensor *make_input(oar_device device, oar_dtype dtype,
                              oar_shape shape, uint64_t seed)
{
    oar_tensor *wide = oar_normal(NULL, OAR_F32, shape, seed, 0, 1);
    oar_tensor *here = oar_cast(NULL, wide, dtype);
    oar_tensor *there = oar_to(NULL, here, device);

    oar_tensor_release(wide);
    oar_tensor_release(here);
    if (there != NULL && oar_tensor_require_grad(there, 1) != OAR_OK)
        return NULL;
    return there;
}

static int keep(const oar_tensor *t, int64_t *count, double *number)
{
    *count = oar_tensor_count(t);
    return *count <= MOST && oar_tensor_read(t, OAR_F64, number) == OAR_OK;
}

/* Runs an operation forward, and backward from a gradient of random numbers. */
static int compute(const layer_case *c, oar_device device, oar_dtype dtype,
                   outcome *o)
{
    oar_tensor *in[INPUTS] = { NULL }, *out, *grad;
    oar_tape *tape;
    int fine;

    if (oar_tape_create(&tape) != OAR_OK)
        return 0;
    for (int i = 0; i < INPUTS && c->shape[i].ndim > 0; i++)
        in[i] = make_input(device, dtype, c->shape[i], 7 + (uint64_t)i);
    out = c->fn(tape, in);
    fine = out != NULL && keep(out, &o->count[0], o->number[0]);
    if (fine) {
        grad = make_input(device, dtype, oar_tensor_shape(out), 99);
        fine = oar_backward_from(tape, 1, &out, &grad) == OAR_OK;
        oar_tensor_release(grad);
    }
    for (int i = 0; i < INPUTS && in[i] != NULL && fine; i++)
        fine = oar_tensor_grad(in[i]) != NULL &&
               keep(oar_tensor_grad(in[i]), &o->count[i + 1], o->number[i + 1]);
    if (!fine)
        fprintf(stderr, "%s in %s on %s: %s\n", c->name, oar_dtype_name(dtype),
                oar_device_text(device).text, oar_last_error()->text);
    oar_tape_destroy(tape);
    for (int i = 0; i < INPUTS; i++)
        oar_tensor_release(in[i]);
    return fine;
}

static int is_near(const layer_case *c, oar_dtype dtype, const outcome *a,
                   const outcome *b)
{
    double limit = dtype == OAR_F64   ? 1e-12
                   : dtype == OAR_F32 ? 2e-5
                   : dtype == OAR_F16 ? 4e-3
                                      : 3e-2;

    for (int k = 0; k <= INPUTS; k++) {
        double most = 0;

        for (int64_t i = 0; i < a->count[k]; i++)
            most = fmax(most, fabs(a->number[k][i]));
        for (int64_t i = 0; i < a->count[k]; i++)
            if (!(fabs(a->number[k][i] - b->number[k][i]) <=
                  limit * fmax(most, 1)) &&
                !(isnan(a->number[k][i]) && isnan(b->number[k][i]))) {
                fprintf(stderr,
                        "%s in %s: number %lld of %s %d is %.9g on the cpu and "
                        "%.9g on the GPU\n",
                        c->name, oar_dtype_name(dtype), (long long)i,
                        k == 0 ? "result" : "gradient", k, a->number[k][i],
                        b->number[k][i]);
                return 0;
            }
    }
    return 1;
}

static int agrees(const layer_case *c)
{
    static outcome here, there, again;

    for (int d = OAR_F32; d <= OAR_BF16; d++) {
        memset(&here, 0, sizeof here);
        memset(&there, 0, sizeof there);
        memset(&again, 0, sizeof again);
        if (!compute(c, cpu, (oar_dtype)d, &here) ||
            !compute(c, gpu, (oar_dtype)d, &there) ||
            !compute(c, gpu, (oar_dtype)d, &again) ||
            !is_near(c, (oar_dtype)d, &here, &there))
            return 0;
        if (memcmp(&there, &again, sizeof there) != 0) {
            fprintf(stderr, "%s: a second run gives other bits\n", c->name);
            return 0;
        }
    }
    return 1;
}

#define CHECK_CASES(cases)                                         \
    for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++) { \
        RANK_CHECK(agrees(&(cases)[i]));                           \
    }

/* Returns indices on the device of a tensor. */
static inline oar_tensor *indices(oar_tape *tape, const oar_tensor *like,
                                  oar_shape shape, const int64_t *number)
{
    oar_tensor *here = oar_from_data(tape, OAR_I64, shape, number);
    oar_tensor *there = oar_to(tape, here, oar_tensor_device(like));

    if (tape == NULL)
        oar_tensor_release(here);
    return there;
}

#endif
