/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs of 5 to 20 operations on DTensors, with moves between them,
 * against the same on one rank: results and gradients.
 *
 *     dtensor_programs_test [PROGRAMS]     (on each mesh; 12) */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/log.h>

#include "parallel/dtensor/spec.h"
#include "support/dtensor_truth.h"
#include "support/leak_check.h"

enum { MOST = 24, MOST_ELEMENTS = 60 };

static int programs = 12;

/* The same values of one rank and of all. */
typedef struct values {
    oar_tape *tape;
    oar_mesh *mesh;
    uint64_t seed;
    int count;
    oar_tensor *whole[MOST];
    oar_dtensor spread[MOST];
} values;

static oar_shape shape_of(const values *v, int i)
{
    return oar_tensor_shape(v->whole[i]);
}

/* Returns another value of the same shape, or the same. */
static int partner(values *v, int i)
{
    int first = truth_random(&v->seed, v->count);

    for (int k = 0; k < v->count; k++) {
        int other = (first + k) % v->count;

        if (oari_same_shape(shape_of(v, i), shape_of(v, other)))
            return other;
    }
    return i;
}

/* Adds a value; tanh keeps numbers small. */
static void add(values *v, oar_tensor *whole, oar_dtensor spread)
{
    v->whole[v->count] = oar_tanh(v->tape, whole);
    v->spread[v->count++] = oar_dtensor_tanh(v->tape, spread);
}

static void run_shape(values *v, int i, int kind)
{
    oar_tensor *a = v->whole[i];
    oar_dtensor b = v->spread[i];
    oar_shape shape = shape_of(v, i), to = OAR_SHAPE(-1, 1);
    int dim = truth_random(&v->seed, 2);
    int64_t n = shape.dim[dim];
    int64_t first = n > 0 ? truth_random(&v->seed, (int)n) : 0;

    switch (kind) {
    case 0:
        to.dim[1] = shape.dim[0] > 0 && shape.dim[1] > 0 ? shape.dim[0] : 1;
        add(v, oar_reshape(v->tape, a, to),
            oar_dtensor_reshape(v->tape, b, to));
        break;
    case 1:
        add(v, oar_narrow(v->tape, a, dim, first, n - first),
            oar_dtensor_narrow(v->tape, b, dim, first, n - first));
        break;
    case 2:
        add(v, oar_slice(v->tape, a, dim, first, n, 2),
            oar_dtensor_slice(v->tape, b, dim, first, n, 2));
        break;
    case 3:
        if (n == 0)
            break;
        a = oar_select(v->tape, a, dim, first);
        b = oar_dtensor_select(v->tape, b, dim, first);
        add(v, oar_unsqueeze(v->tape, a, dim),
            oar_dtensor_unsqueeze(v->tape, b, dim));
        break;
    default:
        add(v, oar_transpose(v->tape, a, 0, 1),
            oar_dtensor_transpose(v->tape, b, 0, 1));
    }
}

static void run_pair(values *v, int i, int kind)
{
    int k = partner(v, i), dim = truth_random(&v->seed, 2);
    oar_tensor *a = v->whole[i], *c = v->whole[k];
    oar_dtensor b = v->spread[i], d = v->spread[k];

    switch (kind) {
    case 0:
        add(v, oar_add(v->tape, a, c), oar_dtensor_add(v->tape, b, d));
        break;
    case 1:
        add(v, oar_mul(v->tape, a, c), oar_dtensor_mul(v->tape, b, d));
        break;
    case 2:
        add(v, oar_matmul(v->tape, a, oar_transpose(v->tape, c, 0, 1)),
            oar_dtensor_matmul(v->tape, b,
                               oar_dtensor_transpose(v->tape, d, 0, 1)));
        break;
    case 3:
        if (oar_tensor_count(a) > MOST_ELEMENTS)
            break;
        add(v, oar_cat(v->tape, 2, (oar_tensor *[]){ a, c }, dim),
            oar_dtensor_cat(v->tape, 2, (oar_dtensor[]){ b, d }, dim));
        break;
    default:
        add(v, oar_linear(v->tape, a, c, NULL),
            oar_dtensor_linear(v->tape, b, d, NULL));
    }
}

static void run_reduce(values *v, int i, int kind)
{
    oar_dims over = OAR_DIMS(truth_random(&v->seed, 2));
    oar_tensor *a = v->whole[i], *x;
    oar_dtensor b = v->spread[i], y;

    if (oar_tensor_count(a) == 0)
        return;
    x = kind == 0   ? oar_mean_over(v->tape, a, over, 1)
        : kind == 1 ? oar_max_over(v->tape, a, over, 1)
                    : oar_sum_over(v->tape, a, over, 1);
    y = kind == 0   ? oar_dtensor_mean_over(v->tape, b, over, 1)
        : kind == 1 ? oar_dtensor_max_over(v->tape, b, over, 1)
                    : oar_dtensor_sum_over(v->tape, b, over, 1);
    if (truth_random(&v->seed, 2)) {
        add(v, x, y);
        return;
    }
    add(v, oar_sub(v->tape, a, x), oar_dtensor_sub(v->tape, b, y));
}

static void run_one(values *v)
{
    int i = truth_random(&v->seed, v->count), kind = truth_random(&v->seed, 5);
    const oar_spec *to;

    switch (truth_random(&v->seed, 5)) {
    case 0: run_shape(v, i, kind); break;
    case 1:
    case 2: run_pair(v, i, kind); break;
    case 3: run_reduce(v, i, kind % 3); break;
    default:
        to = truth_random_spec(v->mesh, shape_of(v, i), 1, &v->seed);
        v->spread[i] = oar_redistribute(v->tape, v->spread[i], to, NULL);
    }
}

/* ---- one program --------------------------------------------------------- */

/* The largest difference of two tensors; a large number if they are not alike.
 */
static double difference(const oar_tensor *a, const oar_tensor *b)
{
    double *x, *y, most = 0;
    int64_t n = oar_tensor_count(a);

    if (a == NULL || b == NULL || oar_tensor_count(b) != n)
        return 1e30;
    x = malloc((size_t)(2 * n + 1) * sizeof *x);
    y = x + n;
    if (oar_tensor_read(a, OAR_F64, x) != OAR_OK ||
        oar_tensor_read(b, OAR_F64, y) != OAR_OK)
        most = 1e30;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - y[i]) / fmax(1, fabs(y[i])));
    free(x);
    return most;
}

/* Compares every value, and gives the sums of all of them. */
static oar_status add_up(values *v, oar_tensor **a, oar_tensor **b)
{
    *a = *b = oar_zeros(v->tape, OAR_F64, OAR_SCALAR);
    for (int i = 0; i < v->count; i++) {
        oar_tensor *all =
            oar_dtensor_whole(v->tape, v->spread[i], OAR_GRADS_EQUAL);

        CHECK(all != NULL && v->whole[i] != NULL);
        CHECK(difference(all, v->whole[i]) <= 1e-11);
        *a = oar_add(v->tape, *a, oar_sum(v->tape, v->whole[i]));
        *b = oar_add(v->tape, *b, oar_sum(v->tape, all));
    }
    return OAR_OK;
}

static oar_status run_program(oar_mesh *mesh, uint64_t seed)
{
    values v = { .mesh = mesh, .seed = seed };
    const oar_shape shape[2] = { OAR_SHAPE(5, 3), OAR_SHAPE(4, 6) };
    oar_tensor *leaf[2], *part[2], *a, *b;
    const oar_spec *spec[2];
    int steps;

    CHECK_OK(oar_tape_create(&v.tape));
    for (int i = 0; i < 2; i++) {
        leaf[i] = oar_normal(NULL, OAR_F64, shape[i], seed + (uint64_t)i, 0, 1);
        spec[i] = truth_random_spec(mesh, shape[i], 1, &v.seed);
        part[i] = truth_part(leaf[i], spec[i], seed);
        CHECK_OK(oar_tensor_require_grad(leaf[i], 1));
        CHECK_OK(oar_tensor_require_grad(part[i], 1));
        v.whole[v.count] = leaf[i];
        v.spread[v.count++] = oar_dtensor_from_local(part[i], spec[i]);
    }
    steps = 5 + truth_random(&v.seed, 16);
    for (int i = 0; i < steps && v.count < MOST; i++)
        run_one(&v);
    CHECK_OK(add_up(&v, &a, &b));
    CHECK_OK(oar_backward(v.tape, a));
    CHECK_OK(oar_backward(v.tape, b));
    for (int i = 0; i < 2; i++) {
        oar_tensor *want =
            truth_part(oar_tensor_grad(leaf[i]), oari_spec_of_grad(spec[i]), 0);

        CHECK(difference(oar_tensor_grad(part[i]), want) <= 1e-11);
        oar_tensor_release(want);
    }
    oar_tape_destroy(v.tape);
    for (int i = 0; i < 2; i++) {
        oar_tensor_release(leaf[i]);
        oar_tensor_release(part[i]);
    }
    return OAR_OK;
}

/* ---- many ---------------------------------------------------------------- */

typedef struct mesh_case {
    int dims, size[3], ranks;
} mesh_case;

static oar_status run_programs(oar_group *world, void *arg)
{
    const mesh_case *c = arg;
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, c->dims, c->size, NULL, NULL, &mesh));
    for (int i = 0; i < programs; i++)
        if (run_program(mesh, (uint64_t)(c->ranks * 1000000 + i)) != OAR_OK) {
            printf("program %d on %d ranks\n", i, c->ranks);
            return OAR_E_DATA;
        }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void say_nothing(void *arg, oar_log_level level, const char *line)
{
}

static void programs_give_what_one_rank_gives(void **state)
{
    mesh_case cases[] = { { 1, { 1 }, 1 },       { 1, { 2 }, 2 },
                          { 1, { 3 }, 3 },       { 2, { 2, 2 }, 4 },
                          { 2, { 3, 2 }, 6 },    { 1, { 7 }, 7 },
                          { 3, { 2, 2, 2 }, 8 }, { 2, { 5, 1 }, 5 } };

    oar_log_to(say_nothing, NULL, OAR_LOG_WARN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            ranks_run("sim", cases[i].ranks, NULL, run_programs, &cases[i]),
            OAR_OK);
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_give_what_one_rank_gives),
    };

    if (argc > 1)
        programs = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
