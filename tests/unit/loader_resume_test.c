/* SPDX-License-Identifier: Apache-2.0 */
/* Where a loader is, in samples of all ranks, and going on from there with any
 * number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>

#include "support/last_error.h"

/* All ranks take STEP rows together, which 1 to 8 ranks can; the last step of
 * an epoch has LAST, which is a multiple of no number of ranks but 1 and 7. */
enum { RANKS = 8, STEP = 840, LAST = 203, SAMPLES = 2 * STEP + LAST };

static const uint64_t seed = 11;

/* Sample i is the number i. */
static oar_dataset *make_set(void)
{
    oar_tensor *tensor = oar_arange(NULL, OAR_I64, SAMPLES, 0, 1);
    oar_dataset *set;

    OK(oar_dataset_tensors(1, &tensor, &set));
    oar_tensor_release(tensor);
    return set;
}

static int64_t *order_of(uint64_t epoch)
{
    int64_t *order, count;

    OK(oar_sampler_indices(SAMPLES, 0, 1, epoch,
                           OAR_OPTS(oar_sampler_opts, .seed = seed), &order,
                           &count));
    assert_int_equal(count, SAMPLES);
    return order;
}

/* The loaders of all ranks of a run. */
typedef struct run {
    int ranks;
    oar_loader *loader[RANKS];
} run;

static run make_run(const oar_dataset *set, int ranks, int ahead)
{
    run r = { .ranks = ranks };

    for (int i = 0; i < ranks; i++)
        OK(oar_loader_create(set,
                             OAR_OPTS(oar_loader_opts, .rank = i,
                                      .ranks = ranks, .batch = STEP / ranks,
                                      .ahead = ahead, .seed = seed),
                             &r.loader[i]));
    return r;
}

static void drop_run(run *r)
{
    for (int i = 0; i < r->ranks; i++)
        oar_loader_destroy(r->loader[i]);
}

static void seek_all(run *r, uint64_t epoch, int64_t sample)
{
    for (int i = 0; i < r->ranks; i++)
        OK(oar_loader_seek(r->loader[i], epoch, sample));
}

/* Takes a batch on every rank. Row k of rank i becomes row[k * ranks + i].
 * Returns the number of rows, 0 at the end of the epoch. */
static int64_t take_step(run *r, int64_t *row)
{
    int64_t all = 0;

    for (int i = 0; i < r->ranks; i++) {
        oar_tensor *field;
        int more;

        OK(oar_loader_next(r->loader[i], &field, &more));
        for (int64_t k = 0; more && k < oar_tensor_count(field); k++, all++)
            row[k * r->ranks + i] = ((int64_t *)oar_tensor_data(field))[k];
    }
    return all;
}

static int64_t position_of(const run *r, uint64_t epoch)
{
    int64_t first = -1;

    for (int i = 0; i < r->ranks; i++) {
        uint64_t at = 99;
        int64_t sample = -1;

        OK(oar_loader_position(r->loader[i], &at, &sample));
        assert_int_equal(at, epoch);
        assert_true(i == 0 || sample == first);
        first = sample;
    }
    return first;
}

/* Reads to the end of the epoch: every step must have the next STEP samples of
 * the order; the last has what is left, and then, so that all ranks have as
 * many, samples from the order's start. */
static void expect_rest(run *r, uint64_t epoch, int64_t from)
{
    int64_t *order = order_of(epoch), row[STEP + RANKS];

    while (from < SAMPLES) {
        int64_t left = SAMPLES - from, count = take_step(r, row);
        int64_t want = left < STEP ? left : STEP;

        assert_in_range(count, want, want + r->ranks - 1);
        assert_int_equal(count % r->ranks, 0);
        assert_memory_equal(row, order + from, (size_t)want * sizeof *row);
        assert_memory_equal(row + want, order,
                            (size_t)(count - want) * sizeof *row);
        from += want;
        assert_int_equal(position_of(r, epoch), from);
    }
    assert_int_equal(take_step(r, row), 0);
    assert_int_equal(position_of(r, epoch), SAMPLES);
    oar_free(order);
}

/* ---- the same rows ------------------------------------------------------- */

static void any_number_of_ranks_sees_the_same_rows_from_any_sample(void **state)
{
    static const int64_t from[] = { 0,    STEP,        2 * STEP, 1,
                                    1000, SAMPLES - 1, SAMPLES };
    oar_dataset *set = make_set();

    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int ahead = -1; ahead < 3; ahead += 3) {
            run r = make_run(set, ranks, ahead);

            for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
                seek_all(&r, 3, from[i]);
                assert_int_equal(position_of(&r, 3), from[i]);
                expect_rest(&r, 3, from[i]);
            }
            drop_run(&r);
        }
    oar_dataset_destroy(set);
}

/* Stops a run of five ranks after some steps, in the middle of an epoch and
 * after its last batch, and goes on with others. */
static void a_run_goes_on_with_another_number_of_ranks(void **state)
{
    oar_dataset *set = make_set();
    int64_t row[STEP + RANKS];

    for (int steps = 0; steps <= 3; steps++)
        for (int ranks = 1; ranks <= RANKS; ranks++) {
            run whole = make_run(set, 5, 2), resumed = make_run(set, ranks, 2);
            int64_t at;

            for (int i = 0; i < whole.ranks; i++)
                OK(oar_loader_start(whole.loader[i], 6, 0));
            for (int i = 0; i < steps; i++)
                take_step(&whole, row);
            at = position_of(&whole, 6);
            assert_int_equal(at, steps < 3 ? steps * STEP : SAMPLES);
            seek_all(&resumed, 6, at);
            expect_rest(&resumed, 6, at);
            for (int i = 0; i < ranks; i++)
                OK(oar_loader_start(resumed.loader[i], 7, 0));
            expect_rest(&resumed, 7, 0);
            drop_run(&whole);
            drop_run(&resumed);
        }
    oar_dataset_destroy(set);
}

/* ---- where it is --------------------------------------------------------- */

static void start_and_seek_agree(void **state)
{
    oar_dataset *set = make_set();

    for (int drop_last = 0; drop_last < 2; drop_last++) {
        oar_loader *loader;
        uint64_t epoch;
        int64_t sample;

        OK(oar_loader_create(set,
                             OAR_OPTS(oar_loader_opts, .rank = 1, .ranks = 4,
                                      .batch = 100, .drop_last = drop_last),
                             &loader));
        OK(oar_loader_position(loader, &epoch, &sample));
        assert_true(epoch == 0 && sample == 0);
        assert_int_equal(oar_loader_batches(loader), drop_last ? 4 : 5);
        for (int64_t k = 0; k <= oar_loader_batches(loader); k++) {
            OK(oar_loader_start(loader, 2, k));
            OK(oar_loader_position(loader, &epoch, &sample));
            assert_int_equal(epoch, 2);
            assert_int_equal(sample, k < oar_loader_batches(loader) ? k * 400
                                                                    : SAMPLES);
        }
        OK(oar_loader_seek(loader, 0, 401)); /* changes no epoch's batches */
        assert_int_equal(oar_loader_batches(loader), drop_last ? 4 : 5);
        oar_loader_destroy(loader);
    }
    oar_dataset_destroy(set);
}

/* After the last full batch an epoch is over on any number of ranks, although
 * the rows that were left out would make a batch on some. */
static void rows_that_are_left_out_do_not_come_back(void **state)
{
    oar_tensor *tensor = oar_arange(NULL, OAR_I64, 14, 0, 1);
    oar_dataset *set;
    oar_loader *two, *four;
    oar_tensor *field;
    uint64_t epoch;
    int64_t sample;
    int more;

    OK(oar_dataset_tensors(1, &tensor, &set));
    OK(oar_loader_create(
        set, OAR_OPTS(oar_loader_opts, .ranks = 2, .batch = 4, .drop_last = 1),
        &two));
    OK(oar_loader_create(
        set, OAR_OPTS(oar_loader_opts, .ranks = 4, .batch = 2, .drop_last = 1),
        &four));
    assert_int_equal(oar_loader_batches(two), 1);
    assert_int_equal(oar_loader_batches(four), 2);
    OK(oar_loader_start(two, 0, 0));
    OK(oar_loader_next(two, &field, &more));
    assert_true(more);
    OK(oar_loader_position(two, &epoch, &sample));
    OK(oar_loader_seek(four, epoch, sample));
    OK(oar_loader_next(four, &field, &more));
    assert_false(more);
    oar_loader_destroy(two);
    oar_loader_destroy(four);
    oar_dataset_destroy(set);
    oar_tensor_release(tensor);
}

static void a_loader_says_what_it_was_made_with(void **state)
{
    oar_dataset *set = make_set();
    oar_loader_opts o = oar_loader_opts_init();
    oar_loader *loader;

    OK(oar_loader_create(set, OAR_OPTS(oar_loader_opts, .seed = 5), &loader));
    OK(oar_loader_describe(loader, &o));
    assert_true(o.size == sizeof o && o.ranks == 1 && o.batch == 1);
    assert_true(o.seed == 5 && o.ahead == 2 && !o.no_shuffle);
    assert_ptr_equal(oar_loader_dataset(loader), set);
    assert_null(oar_loader_dataset(NULL));
    assert_fails_with(oar_loader_describe(NULL, &o), OAR_E_ARG, "NULL");
    assert_fails_with(oar_loader_describe(loader, NULL), OAR_E_ARG, "NULL");
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void a_sample_beyond_the_data_set_is_refused(void **state)
{
    oar_dataset *set = make_set();
    uint64_t epoch;
    int64_t sample;
    oar_loader *loader;

    OK(oar_loader_create(set, NULL, &loader));
    OK(oar_loader_seek(loader, 4, 9));
    assert_fails_with(oar_loader_seek(loader, 1, SAMPLES + 1), OAR_E_ARG,
                      "sample 1884 of 1883");
    assert_fails_with(oar_loader_seek(loader, 1, -1), OAR_E_ARG, "sample -1");
    OK(oar_loader_position(loader, &epoch, &sample));
    assert_true(epoch == 4 && sample == 9);
    assert_fails_with(oar_loader_position(loader, NULL, &sample), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_loader_position(NULL, &epoch, &sample), OAR_E_ARG,
                      "NULL");
    assert_fails_with(oar_loader_seek(NULL, 0, 0), OAR_E_ARG, "NULL");
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            any_number_of_ranks_sees_the_same_rows_from_any_sample),
        cmocka_unit_test(a_run_goes_on_with_another_number_of_ranks),
        cmocka_unit_test(start_and_seek_agree),
        cmocka_unit_test(rows_that_are_left_out_do_not_come_back),
        cmocka_unit_test(a_loader_says_what_it_was_made_with),
        cmocka_unit_test(a_sample_beyond_the_data_set_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
