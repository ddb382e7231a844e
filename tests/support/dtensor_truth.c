/* SPDX-License-Identifier: Apache-2.0 */
#include "support/dtensor_truth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/log.h>

#include "parallel/dtensor/spec.h"
#include "support/ranks.h"

int truth_random(uint64_t *seed, int below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)below);
}

/* ---- random specs -------------------------------------------------------- */

static oar_placement random_placement(oar_mesh *mesh, int m, oar_shape shape,
                                      int partial, int64_t *sizes,
                                      uint64_t *seed)
{
    int kind = truth_random(seed, 10), n = oar_mesh_size(mesh, m);
    oar_placement p = oar_placement_replicate();

    if (kind < 6 && shape.ndim > 0)
        p = oar_placement_shard(truth_random(seed, shape.ndim));
    else if (kind == 6 && shape.ndim > 0)
        p = oar_placement_flat();
    else if (kind == 7 && partial)
        p = oar_placement_partial(OAR_REDUCE_OP_SUM);
    if (p.kind == OAR_SHARD && truth_random(seed, 4) == 0) {
        int64_t left = shape.dim[p.dim];

        for (int i = 0; i < n; i++) {
            sizes[i] = i == n - 1 ? left : truth_random(seed, (int)left + 1);
            left -= sizes[i];
        }
        p.sizes = sizes;
    }
    return p;
}

const oar_spec *truth_random_spec(oar_mesh *mesh, oar_shape shape, int partial,
                                  uint64_t *seed)
{
    int dims = oar_mesh_dims(mesh), order[OAR_MESH_DIMS] = { 0, 1, 2, 3 };
    oar_spec_opts opts = oar_spec_opts_init();
    oar_placement p[OAR_MESH_DIMS];
    int64_t sizes[OAR_MESH_DIMS][16];
    const oar_spec *spec = NULL;

    opts.order = order;
    while (spec == NULL) {
        int a = truth_random(seed, dims), b = truth_random(seed, dims);
        int was = order[a];

        order[a] = order[b];
        order[b] = was;
        for (int m = 0; m < dims; m++)
            p[m] = random_placement(mesh, m, shape, partial, sizes[m], seed);
        spec = oar_spec_of(mesh, dims, p, shape, &opts);
    }
    return spec;
}

/* ---- parts --------------------------------------------------------------- */

/* Adds what cancels out over the ranks of a row along which it is partial. */
static void add_noise(oar_tensor *part, const oar_spec *spec, uint64_t seed)
{
    oar_mesh *mesh = oar_spec_mesh(spec);
    int at[OAR_MESH_DIMS];
    oar_tensor *noise, *sum;

    oar_mesh_coordinates(mesh, oar_mesh_rank(mesh), at);
    for (int m = 0; m < oar_mesh_dims(mesh); m++) {
        int n = oar_mesh_size(mesh, m);
        int sign = at[m] == 0 ? 1 : at[m] == n - 1 ? -1 : 0;

        if (oar_spec_placement(spec, m).kind != OAR_PARTIAL || n == 1)
            continue;
        noise = oar_full(NULL, OAR_F64, oar_tensor_shape(part),
                         sign * (0.5 + (double)(seed % 7)));
        sum = oar_add(NULL, part, noise);
        oar_tensor_copy(part, sum);
        oar_tensor_release(noise);
        oar_tensor_release(sum);
        return;
    }
}

oar_tensor *truth_part(oar_tensor *whole, const oar_spec *spec, uint64_t seed)
{
    oar_dtensor a =
        oar_dtensor_scatter(NULL, whole, oar_tensor_dtype(whole), spec, -1);
    oar_tensor *part = NULL;

    if (a.local != NULL) /* its own memory, whatever the scatter gave */
        part =
            oar_empty(NULL, oar_tensor_dtype(whole), oar_tensor_shape(a.local));
    if (part != NULL)
        oar_tensor_copy(part, a.local);
    if (part != NULL && oar_tensor_dtype(whole) == OAR_F64)
        add_noise(part, spec, seed);
    oar_tensor_release(a.local);
    return part;
}

static oar_tensor *make_input(const truth_case *c, int i, uint64_t seed)
{
    oar_tensor *number, *mask;

    seed += 100 * (uint64_t)i;
    switch (c->kind[i]) {
    case TRUTH_POSITIVE:
        return oar_uniform(NULL, OAR_F64, c->shape[i], seed, 0.5, 2.5);
    case TRUTH_INDEX:
        return oar_uniform(NULL, OAR_I64, c->shape[i], seed, 0,
                           (double)c->index_below);
    case TRUTH_MASK:
        number = oar_normal(NULL, OAR_F64, c->shape[i], seed, 0, 1);
        mask = oar_gt_scalar(NULL, number, 0);
        oar_tensor_release(number);
        return mask;
    case TRUTH_NORMAL: break;
    }
    return oar_normal(NULL, OAR_F64, c->shape[i], seed, 0, 1);
}

/* ---- comparing ----------------------------------------------------------- */

/* Numbers are the same up to 1e-11, of their size if that is above 1. */
static int same_numbers(const oar_tensor *a, const oar_tensor *b)
{
    int64_t n = oar_tensor_count(a);
    double *x, *y;
    int same;

    if (a == NULL || b == NULL || n != oar_tensor_count(b) ||
        !oari_same_shape(oar_tensor_shape(a), oar_tensor_shape(b)) ||
        oar_tensor_dtype(a) != oar_tensor_dtype(b))
        return 0;
    x = malloc((size_t)n * 2 * sizeof *x + 1);
    y = x + n;
    same = oar_tensor_read(a, OAR_F64, x) == OAR_OK &&
           oar_tensor_read(b, OAR_F64, y) == OAR_OK;
    for (int64_t i = 0; same && i < n; i++)
        same = fabs(x[i] - y[i]) <= 1e-11 * fmax(1, fabs(y[i])) ||
               (isnan(x[i]) && isnan(y[i])) || x[i] == y[i];
    free(x);
    return same;
}

static oar_status complain(const truth_case *c, const oar_spec *const *spec,
                           const char *what, int i)
{
    char text[900];
    size_t at =
        (size_t)snprintf(text, sizeof text, "%s: %s %d", c->name, what, i);

    for (int k = 0; k < c->inputs; k++) {
        char line[160];

        oar_spec_text(spec[k], line, sizeof line);
        at += (size_t)snprintf(text + at, sizeof text - at, "; %s", line);
    }
    snprintf(text + at, sizeof text - at, "; %s", oar_last_error_text());
    return ranks_fail(__FILE__, __LINE__, text);
}

/* The sum of a result times fixed weights: what gradients are of. */
static oar_tensor *loss_of(oar_tape *tape, oar_tensor *result)
{
    oar_tensor *weight =
        oar_normal(tape, OAR_F64, oar_tensor_shape(result), 99, 0, 1);

    return oar_sum(tape, oar_mul(tape, result, weight));
}

static oar_status compare_grads(const truth_case *c,
                                const oar_spec *const *spec,
                                oar_tensor *const *whole,
                                oar_tensor *const *part)
{
    for (int i = 0; i < c->inputs; i++) {
        oar_tensor *grad = oar_tensor_grad(whole[i]), *wanted;
        int same;

        if (grad == NULL)
            continue;
        wanted = truth_part(grad, oari_spec_of_grad(spec[i]), 0);
        same = same_numbers(oar_tensor_grad(part[i]), wanted);
        oar_tensor_release(wanted);
        if (!same)
            return complain(c, spec, "gradient of input", i);
    }
    return OAR_OK;
}

static oar_tensor *run_plain(const truth_case *c, oar_tape *tape,
                             oar_tensor *const *in)
{
    if (c->plain1 != NULL)
        return c->plain1(tape, in[0]);
    return c->plain2 != NULL ? c->plain2(tape, in[0], in[1])
                             : c->plain(tape, in);
}

static oar_dtensor run_spread(const truth_case *c, oar_tape *tape,
                              const oar_dtensor *in)
{
    if (c->spread1 != NULL)
        return c->spread1(tape, in[0]);
    return c->spread2 != NULL ? c->spread2(tape, in[0], in[1])
                              : c->spread(tape, in);
}

static oar_status compare_case(const truth_case *c, const oar_spec *const *spec,
                               oar_tape *tape, oar_tensor *const *whole,
                               oar_tensor *const *part)
{
    oar_dtensor in[TRUTH_INPUTS], out;
    oar_tensor *truth = run_plain(c, tape, whole), *result;

    CHECK(truth != NULL);
    for (int i = 0; i < c->inputs; i++) {
        in[i] = oar_dtensor_from_local(part[i], spec[i]);
        CHECK(in[i].local != NULL);
    }
    out = run_spread(c, tape, in);
    if (out.local == NULL)
        return complain(c, spec, "failed", 0);
    result = oar_dtensor_whole(tape, out, OAR_GRADS_EQUAL);
    if (!same_numbers(result, truth))
        return complain(c, spec, "result", 0);
    if (!oar_tensor_requires_grad(truth))
        return OAR_OK;
    CHECK_OK(oar_backward(tape, loss_of(tape, truth)));
    if (oar_backward(tape, loss_of(tape, result)) != OAR_OK)
        return complain(c, spec, "backward", 0);
    return compare_grads(c, spec, whole, part);
}

oar_status truth_check(const truth_case *c, oar_mesh *mesh,
                       const oar_spec *const *spec, uint64_t seed)
{
    oar_tensor *whole[TRUTH_INPUTS], *part[TRUTH_INPUTS];
    oar_status status;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < c->inputs; i++) {
        int floats = c->kind[i] <= TRUTH_POSITIVE;

        whole[i] = make_input(c, i, seed);
        part[i] = truth_part(whole[i], spec[i], seed + (uint64_t)i);
        CHECK(whole[i] != NULL && part[i] != NULL);
        CHECK_OK(floats ? oar_tensor_require_grad(whole[i], 1) : OAR_OK);
        CHECK_OK(floats ? oar_tensor_require_grad(part[i], 1) : OAR_OK);
    }
    status = compare_case(c, spec, tape, whole, part);
    oar_tape_destroy(tape);
    for (int i = 0; i < c->inputs; i++) {
        oar_tensor_release(whole[i]);
        oar_tensor_release(part[i]);
    }
    return status;
}

/* ---- many cases ---------------------------------------------------------- */

typedef struct truth_round {
    const truth_case *cases;
    int count, rounds, dims, size[3];
} truth_round;

static oar_status run_round(oar_group *world, void *arg)
{
    const truth_round *r = arg;
    const oar_spec *spec[TRUTH_INPUTS];
    uint64_t seed = (uint64_t)(r->dims * 100 + r->size[0] * 10 + r->size[1]);
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, r->dims, r->size, NULL, NULL, &mesh));
    for (int k = 0; k < r->count * r->rounds; k++) {
        const truth_case *c = &r->cases[k % r->count];

        for (int i = 0; i < c->inputs; i++)
            spec[i] = truth_random_spec(mesh, c->shape[i],
                                        c->kind[i] <= TRUTH_POSITIVE, &seed);
        CHECK_OK(truth_check(c, mesh, spec, seed));
    }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void say_nothing(void *arg, oar_log_level level, const char *line)
{
}

void truth_run(const truth_case *cases, int count, int rounds)
{
    truth_round r[] = {
        { cases, count, 1, 1, { 1 } },
        { cases, count, rounds, 1, { 2 } },
        { cases, count, rounds, 1, { 3 } },
        { cases, count, rounds, 2, { 2, 2 } },
        { cases, count, rounds, 2, { 3, 2 } },
        { cases, count, rounds, 3, { 2, 2, 2 } },
    };

    oar_log_to(say_nothing, NULL, OAR_LOG_WARN);
    for (size_t i = 0; i < sizeof r / sizeof *r; i++) {
        int ranks = 1;

        for (int m = 0; m < r[i].dims; m++)
            ranks *= r[i].size[m];
        assert_int_equal(ranks_run("sim", ranks, NULL, run_round, &r[i]),
                         OAR_OK);
    }
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
}
