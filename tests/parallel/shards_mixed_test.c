/* SPDX-License-Identifier: Apache-2.0 */
/* Shards with mixed precision, as a program with arrays of its own uses them:
 * f32 and f64 arrays are whole in another dtype, others as they are. */
#include "support/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/optim.h>
#include <oarsong/shards.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spread_gpt.h"

enum { ARRAYS = 7, UNITS = 2, INTEGERS = 2, HALVES = 4, FROZEN = 5, LATE = 6 };

static const size_t counts[ARRAYS] = { 5003, 7, 33, 0, 1001, 2049, 777 };
static const int units[ARRAYS] = { 0, 0, 0, 1, 1, 1, 0 };
static const oar_dtype dtypes[ARRAYS] = { OAR_F32,  OAR_F64, OAR_I32, OAR_F32,
                                          OAR_BF16, OAR_F32, OAR_F32 };
static const unsigned char frozen[ARRAYS] = { [FROZEN] = 1 };
static const size_t rows[ARRAYS] = { 0, 0, 0, 0, 0, 100, 0 };

/* Small multiples of powers of two, which every float here holds exactly. */
static double number(int array, size_t i)
{
    return (double)((i * 7 + (size_t)array) % 61) * 0.25 - 3;
}

static float wide_of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t bf16_of(double exact)
{
    float x = (float)exact;
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double read_element(oar_span from, size_t i)
{
    return from.dtype == OAR_F32   ? (double)((const float *)from.data)[i]
           : from.dtype == OAR_F64 ? ((const double *)from.data)[i]
           : from.dtype == OAR_BF16
               ? (double)wide_of_bf16(((const uint16_t *)from.data)[i])
               : (double)((const int32_t *)from.data)[i];
}

static void write_element(oar_span to, size_t i, double x)
{
    if (to.dtype == OAR_F32)
        ((float *)to.data)[i] = (float)x;
    else if (to.dtype == OAR_F64)
        ((double *)to.data)[i] = x;
    else if (to.dtype == OAR_BF16)
        ((uint16_t *)to.data)[i] = bf16_of(x);
    else
        ((int32_t *)to.data)[i] = (int32_t)x;
}

static oar_status make_shards(oar_group *g, oar_shards_opts o, oar_shards **s)
{
    oar_span array[ARRAYS];
    oar_status status;

    for (int a = 0; a < ARRAYS; a++) {
        array[a] = oar_span_of(calloc(counts[a] + 1, 8), counts[a], dtypes[a]);
        for (size_t i = 0; i < counts[a]; i++)
            write_element(array[a], i, number(a, i));
    }
    o.mixed = 1;
    o.whole_dtype = OAR_BF16;
    o.frozen = frozen;
    o.rows = rows;
    status = oar_shards_create(g, ARRAYS, array, units, &o, s);
    for (int a = 0; a < ARRAYS; a++)
        free(array[a].data);
    return status;
}

/* Whole arrays are number(a, i) + moved[a], in their dtype. */
static oar_status are_whole(oar_shards *s, const double *moved)
{
    for (int u = 0; u < UNITS; u++) {
        CHECK_OK(oar_shards_prefetch(s, u));
        CHECK_OK(oar_shards_unshard(s, u));
        for (int a = 0; a < ARRAYS; a++) {
            oar_span whole = oar_shards_array(s, a);

            CHECK(whole.dtype == (a == INTEGERS ? OAR_I32 : OAR_BF16));
            for (size_t i = 0; units[a] == u && i < counts[a]; i++)
                CHECK(read_element(whole, i) ==
                      (a == INTEGERS ? (int)number(a, i)
                                     : number(a, i) + moved[a]));
        }
        CHECK_OK(oar_shards_reshard(s, u));
    }
    return OAR_OK;
}

/* One pass in which rank r's gradients are all 1 + r; one array has none in the
 * first. */
static oar_status run_pass(oar_shards *s, int rank, int pass)
{
    for (int a = 0; a < ARRAYS; a++) {
        oar_span grad = oar_shards_grad(s, a);

        if (a == LATE && pass == 1)
            continue;
        CHECK((grad.data == NULL) == (a == INTEGERS || a == FROZEN));
        if (grad.data == NULL)
            continue;
        CHECK(grad.dtype == OAR_BF16);
        for (size_t i = 0; i < grad.count; i++)
            write_element(grad, i, 1 + rank);
        CHECK_OK(oar_shards_ready(s, a));
    }
    return oar_shards_wait(s);
}

static oar_status gradients_are(oar_shards *s, double mean, int pass)
{
    oar_shard shard = oar_shard_init();
    int late;

    for (int k = 0; k < oar_shards_count(s); k++) {
        CHECK_OK(oar_shards_shard(s, k, &shard));
        CHECK(shard.data.dtype == dtypes[shard.array]);
        late = shard.array == LATE;
        CHECK((oar_tensor_grad(shard.tensor) == NULL) ==
              (shard.grad.data == NULL || (late && pass == 1)));
        if (oar_tensor_grad(shard.tensor) == NULL)
            continue;
        CHECK(shard.grad.dtype == dtypes[shard.array]);
        for (size_t i = 0; i < shard.count; i++) {
            double is = read_element(shard.grad, i);
            CHECK(fabs(is - (pass - late) * mean) <
                  (shard.array == HALVES ? 0.05 : 1e-5));
        }
    }
    return OAR_OK;
}

static oar_status use_shards(oar_group *g, void *arg)
{
    oar_shards_opts o = *(const oar_shards_opts *)arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g), n;
    double moved[ARRAYS] = { 0 };
    double mean = o.weighted ? (2.0 * ranks + 1) / 3 : (ranks + 1) / 2.0;
    oar_tensor *const *tensor;
    oar_shard shard = oar_shard_init();
    oar_shards *s;

    CHECK_OK(make_shards(g, o, &s));
    CHECK_OK(are_whole(s, moved));
    if (o.weighted) /* 1 + rank, the mean of squares over that of numbers */
        CHECK_OK(oar_shards_weigh(s, 1 + rank));
    for (int pass = 1; pass <= 2; pass++) {
        CHECK_OK(run_pass(s, rank, pass));
        CHECK_OK(gradients_are(s, mean, pass));
    }
    oar_shards_zero_grad(s);
    tensor = oar_shards_tensors(s, &n);
    for (int i = 0; i < n; i++)
        CHECK(oar_tensor_grad(tensor[i]) == NULL);
    for (int k = 0; k < oar_shards_count(s); k++) { /* a step */
        CHECK_OK(oar_shards_shard(s, k, &shard));
        for (size_t i = 0; shard.array == 0 && i < shard.count; i++)
            write_element(shard.data, i,
                          number(0, shard.first + i) + 1e-5 + 3.5);
    }
    moved[0] = 3.5; /* 1e-5 is in the master alone */
    CHECK_OK(oar_shards_publish(s));
    CHECK_OK(are_whole(s, moved));
    oar_shards_destroy(s);
    return OAR_OK;
}

static void whole_arrays_are_converted_and_shards_are_not(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int kind = 0; kind < 6; kind++)
            for (const char *const *b = ranks_backends(); *b != NULL; b++) {
                oar_shards_opts o = oar_shards_opts_init();

                o.hold = (oar_hold)h;
                o.stage = (oar_zero_stage)(kind % 3);
                o.weighted = kind >= 3;
                o.no_scatter = kind == 4;
                o.reduce_dtype = kind == 5 ? OAR_BF16 : OAR_F32;
                if (kind != 5 && hold_is_possible(*b, o.hold, 3))
                    assert_int_equal(ranks_run(*b, 3, NULL, use_shards, &o),
                                     OAR_OK);
                o.weighted = 0; /* 1, 1.5 are exact in every dtype */
                assert_int_equal(
                    ranks_run("sim", kind % 2 + 1, NULL, use_shards, &o),
                    OAR_OK);
            }
}

/* The kernel refuses to write where this rank may not. */
static oar_status write_elsewhere(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), zeros = open("/dev/zero", O_RDONLY);
    oar_shards_opts o = oar_shards_opts_init();
    oar_span whole;
    oar_shards *s;

    CHECK(zeros >= 0);
    o.hold = OAR_HOLD_MAPPED;
    CHECK_OK(make_shards(g, o, &s));
    whole = oar_shards_array(s, 0);
    for (int r = 0; r < oar_group_size(g); r++) {
        size_t first, count;

        CHECK_OK(oar_shards_range(s, 0, r, &first, &count));
        CHECK(count > 0);
        if (r == rank)
            continue;
        errno = 0;
        CHECK(read(zeros, (uint16_t *)whole.data + first, 2) == -1);
        CHECK(errno == EFAULT);
        CHECK(read(zeros, (uint16_t *)whole.data + first + count - 1, 2) == -1);
    }
    close(zeros);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_shards_destroy(s);
    return OAR_OK;
}

static void a_rank_writes_only_to_its_part_of_mapped_halves(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, write_elsewhere, NULL),
                     OAR_OK);
}

static oar_status use_alone(void *arg)
{
    oar_shards_opts o = oar_shards_opts_init();
    oar_shards *s = NULL;
    oar_group *g;
    oar_status status = oar_group_create(NULL, 0, 1, NULL, &g);

    if (status != OAR_OK)
        return status;
    o.hold = *(oar_hold *)arg;
    status = make_shards(g, o, &s);
    for (int pass = 0; pass < 2 && status == OAR_OK; pass++) {
        oar_span grad = oar_shards_grad(s, 0);

        status = grad.data != NULL ? OAR_OK : oar_last_error()->status;
        if (status == OAR_OK)
            memset(grad.data, 0, grad.count * sizeof(uint16_t));
        if (status == OAR_OK)
            status = oar_shards_ready(s, 0);
        if (status == OAR_OK)
            status = oar_shards_wait(s);
    }
    oar_shards_destroy(s);
    oar_group_destroy(g);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        assert_int_equal(use_alone(&h), OAR_OK); /* segments are kept */
        fail_each_allocation(use_alone, &h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_arrays_are_converted_and_shards_are_not),
        cmocka_unit_test(a_rank_writes_only_to_its_part_of_mapped_halves),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
