/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: the same batches with and without a thread, from any place, and
 * what happens when something goes wrong in the thread. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>

#include "support/leak_check.h"
#include "support/last_error.h"

#define OPTS(...) OAR_OPTS(oar_loader_opts, __VA_ARGS__)

enum { SAMPLES = 37, WIDTH = 3, MOST = 64 };

/* Sample i is (i, i + 0.25, i + 0.5) and, as the second field, 100 + i. */
static oar_dataset *set_of(int64_t samples)
{
    oar_tensor *tensor[2] = { oar_empty(NULL, OAR_F32,
                                        OAR_SHAPE(samples, WIDTH)),
                              oar_empty(NULL, OAR_I64, OAR_SHAPE(samples)) };
    float *x = oar_tensor_data(tensor[0]);
    int64_t *y = oar_tensor_data(tensor[1]);
    oar_dataset *set;

    for (int64_t i = 0; i < samples; i++) {
        for (int k = 0; k < WIDTH; k++)
            x[i * WIDTH + k] = (float)i + 0.25f * (float)k;
        y[i] = 100 + i;
    }
    OK(oar_dataset_tensors(2, tensor, &set));
    oar_tensor_release(tensor[0]);
    oar_tensor_release(tensor[1]);
    return set;
}

static oar_loader *loader_of(const oar_dataset *set,
                             const oar_loader_opts *opts)
{
    oar_loader *loader;

    OK(oar_loader_create(set, opts, &loader));
    return loader;
}

/* The samples of a batch; both fields must agree about them. */
static int64_t samples_of(oar_tensor *const *field, int64_t *index)
{
    const float *x = oar_tensor_data(field[0]);
    const int64_t *y = oar_tensor_data(field[1]);
    int64_t rows = oar_tensor_shape(field[1]).dim[0];

    assert_int_equal(oar_tensor_shape(field[0]).dim[0], rows);
    assert_int_equal(oar_tensor_shape(field[0]).dim[1], WIDTH);
    for (int64_t i = 0; i < rows; i++) {
        index[i] = y[i] - 100;
        for (int k = 0; k < WIDTH; k++)
            assert_true(x[i * WIDTH + k] == (float)index[i] + 0.25f * (float)k);
    }
    return rows;
}

/* Reads to the end of the epoch; index gets the samples, in order. */
static int64_t read_all(oar_loader *loader, int64_t *index, int *batches)
{
    oar_tensor *field[2];
    int64_t count = 0;
    int more;

    for (*batches = 0;; ++*batches) {
        OK(oar_loader_next(loader, field, &more));
        if (!more)
            return count;
        count += samples_of(field, index + count);
        assert_true(count <= MOST);
    }
}

/* ---- which batches ------------------------------------------------------- */

/* What a loader with these options must give in an epoch. */
static void expect_epoch(oar_loader *loader, const oar_loader_opts *o,
                         uint64_t epoch, int64_t from)
{
    int64_t got[MOST], *want, count, each = o->batch > 0 ? o->batch : 1;
    int64_t read, before = from * each;
    int batches;

    OK(oar_sampler_indices(SAMPLES, o->rank, o->ranks > 0 ? o->ranks : 1, epoch,
                           OAR_OPTS(oar_sampler_opts, .seed = o->seed,
                                    .no_shuffle = o->no_shuffle),
                           &want, &count));
    if (o->drop_last)
        count -= count % each;
    assert_int_equal(oar_loader_batches(loader), (count + each - 1) / each);
    read = read_all(loader, got, &batches);
    assert_int_equal(batches, oar_loader_batches(loader) - from);
    assert_int_equal(read, before < count ? count - before : 0);
    assert_memory_equal(got, want + before, (size_t)read * sizeof *got);
    oar_free(want);
}

static void expect_all(oar_loader_opts o)
{
    oar_dataset *set = set_of(SAMPLES);
    oar_loader *loader = loader_of(set, &o);

    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        OK(oar_loader_start(loader, epoch, 0));
        expect_epoch(loader, &o, epoch, 0);
    }
    for (int64_t batch = oar_loader_batches(loader); batch >= 0; batch--) {
        OK(oar_loader_start(loader, 7, batch));
        expect_epoch(loader, &o, 7, batch);
    }
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void batches_are_the_same_with_and_without_a_thread(void **state)
{
    static const int ahead[] = { -1, 0, 1, 5, 100 };

    for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++)
        for (int64_t batch = 0; batch <= SAMPLES + 1; batch += 5) {
            oar_loader_opts o = oar_loader_opts_init();

            o.ahead = ahead[i];
            o.batch = batch;
            o.seed = 11;
            expect_all(o);
            o.drop_last = 1;
            expect_all(o);
            o.ranks = 3;
            o.rank = 2;
            o.no_shuffle = 1;
            expect_all(o);
        }
}

static void an_epoch_can_be_left_in_the_middle(void **state)
{
    oar_dataset *set = set_of(SAMPLES);
    const oar_loader_opts *o = OPTS(.batch = 4, .ahead = 3);
    oar_loader *loader = loader_of(set, o);
    oar_tensor *field[2];
    int more;

    for (int left = 0; left < 9; left++) {
        OK(oar_loader_start(loader, 1, 0));
        for (int i = 0; i < left; i++)
            OK(oar_loader_next(loader, field, &more));
        OK(oar_loader_start(loader, 2, 3));
        expect_epoch(loader, o, 2, 3);
    }
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void the_end_of_an_epoch_is_returned_again_and_again(void **state)
{
    oar_dataset *set = set_of(2), *empty = set_of(0);
    oar_loader *loader = loader_of(set, NULL);
    oar_tensor *field[2] = { 0 };
    int64_t index[MOST];
    int more = 1, batches;

    OK(oar_loader_start(loader, 0, 0));
    assert_int_equal(read_all(loader, index, &batches), 2);
    OK(oar_loader_next(loader, field, &more));
    assert_int_equal(more, 0);
    assert_null(field[0]);
    oar_loader_destroy(loader);
    loader = loader_of(empty, NULL);
    assert_int_equal(oar_loader_batches(loader), 0);
    OK(oar_loader_start(loader, 0, 0));
    OK(oar_loader_next(loader, field, &more));
    assert_int_equal(more, 0);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
    oar_dataset_destroy(empty);
}

/* ---- memory -------------------------------------------------------------- */

static void steady_as(int ahead)
{
    oar_dataset *set = set_of(SAMPLES);
    oar_loader *loader = loader_of(set, OPTS(.batch = 5, .ahead = ahead));
    int64_t index[MOST];
    uint64_t before = 0;
    int batches;

    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        if (epoch == 10)
            before = memory_now().allocations;
        OK(oar_loader_start(loader, epoch, 0));
        read_all(loader, index, &batches);
    }
    assert_int_equal(memory_now().allocations, before);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void nothing_is_allocated_in_the_steady_state(void **state)
{
    steady_as(-1);
    steady_as(3);
}

static void a_retained_field_is_not_used_again(void **state)
{
    oar_dataset *set = set_of(SAMPLES);

    for (int ahead = -1; ahead < 3; ahead++) {
        oar_loader *loader = loader_of(set, OPTS(.batch = 5, .ahead = ahead));
        int64_t kept_index[MOST], index[MOST];
        oar_tensor *kept[2];
        int more, batches;

        OK(oar_loader_start(loader, 0, 2));
        OK(oar_loader_next(loader, kept, &more));
        samples_of(kept, kept_index);
        oar_tensor_retain(kept[0]);
        oar_tensor_retain(kept[1]);
        read_all(loader, index, &batches);
        OK(oar_loader_start(loader, 1, 0));
        read_all(loader, index, &batches);
        oar_loader_destroy(loader);
        assert_int_equal(samples_of(kept, index), 5);
        assert_memory_equal(index, kept_index, 5 * sizeof *index);
        oar_tensor_release(kept[0]);
        oar_tensor_release(kept[1]);
    }
    oar_dataset_destroy(set);
}

static oar_status whole_life(void *arg)
{
    const int *ahead = arg;
    oar_dataset *set = set_of(SAMPLES); /* no allocation of these is to fail */
    oar_loader *loader = NULL;
    oar_tensor *field[2];
    oar_status status;
    int more = 1;

    status =
        oar_loader_create(set, OPTS(.batch = 10, .ahead = *ahead), &loader);
    if (status == OAR_OK)
        status = oar_loader_start(loader, 0, 0);
    while (status == OAR_OK && more)
        status = oar_loader_next(loader, field, &more);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
    return status;
}

/* Calls whole_life with the n-th allocation after the data set's failing. */
static void fail_each(int ahead)
{
    uint64_t first = memory_now().allocations;
    oar_dataset_destroy(set_of(SAMPLES));
    first = memory_now().allocations - first;
    for (uint64_t n = 1;; n++) {
        leak_check before = leak_check_begin();
        oar_status status;

        oar_memory_fail_after(first + n);
        status = whole_life(&ahead);
        oar_memory_fail_after(0);
        leak_check_end(&before);
        if (status == OAR_OK) {
            assert_true(n > 4);
            return;
        }
        assert_fails_with(status, OAR_E_NOMEM, "out of memory");
    }
}

static void every_allocation_may_fail(void **state)
{
    fail_each(-1);
    fail_each(2);
}

/* ---- failures and ends --------------------------------------------------- */

static char folder[FOLDER_PATH], path[FOLDER_PATH + 16];

/* A thousand tokens and one, 0, 1, 2, ..., and samples of ten. */
static oar_dataset *file_set(void)
{
    static int32_t token[1001];
    FILE *file;
    oar_dataset *set;

    for (int i = 0; i < 1001; i++)
        token[i] = i;
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(token, 4, 1001, file), 1001);
    assert_int_equal(fclose(file), 0);
    OK(oar_dataset_tokens(path, OAR_I32, 10, 0, &set));
    return set;
}

static void change_token(int place, int32_t token)
{
    int fd = open(path, O_WRONLY);

    assert_int_equal(pwrite(fd, &token, sizeof token, place * 4), 4);
    close(fd);
}

/* A token is broken: 50 good samples, then failures; it is mended, and the
 * batches come. */
static void fail_in_the_middle(int ahead)
{
    oar_dataset *set = file_set();
    oar_loader *loader =
        loader_of(set, OPTS(.batch = 10, .ahead = ahead, .no_shuffle = 1));
    oar_tensor *field[2];
    int more;

    change_token(505, -7);
    OK(oar_loader_start(loader, 0, 0));
    for (int i = 0; i < 5; i++)
        OK(oar_loader_next(loader, field, &more));
    for (int i = 0; i < 3; i++)
        assert_fails_with(oar_loader_next(loader, field, &more), OAR_E_DATA,
                          "token 505 is -7");
    change_token(505, 505);
    for (int i = 0; i < 5; i++) {
        oar_status status = oar_loader_next(loader, field, &more);

        if (i == 0 && status != OAR_OK) /* failed before it was mended */
            status = oar_loader_next(loader, field, &more);
        OK(status);
        assert_int_equal(more, 1);
        assert_int_equal(((int64_t *)oar_tensor_data(field[0]))[0],
                         500 + i * 100);
    }
    OK(oar_loader_next(loader, field, &more));
    assert_int_equal(more, 0);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void a_file_that_became_shorter_is_an_error_of_next(void **state)
{
    oar_dataset *set;
    oar_loader *loader;
    oar_tensor *field[2];
    int more;

    folder_make(folder);
    snprintf(path, sizeof path, "%s/tokens", folder);
    set = file_set();
    loader = loader_of(set, OPTS(.batch = 7, .ahead = 2));
    assert_int_equal(truncate(path, 4000), 0);
    OK(oar_loader_start(loader, 0, 0));
    assert_fails_with(oar_loader_next(loader, field, &more), OAR_E_STATE,
                      "has 4000 bytes: it had 4004");
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
    folder_remove(folder);
}

static void a_failure_in_the_thread_reaches_next_when_it_is_due(void **state)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/tokens", folder);
    fail_in_the_middle(-1);
    fail_in_the_middle(1);
    fail_in_the_middle(8);
    folder_remove(folder);
}

static void it_can_be_destroyed_while_the_thread_is_busy(void **state)
{
    oar_dataset *set = set_of(20000);
    leak_check before = leak_check_begin();

    for (int i = 0; i < 20; i++) {
        oar_loader *loader = loader_of(set, OPTS(.batch = 3000, .ahead = 4));
        oar_tensor *field[2];
        int more;

        if (i % 3 > 0)
            OK(oar_loader_start(loader, 0, 0));
        if (i % 3 > 1)
            OK(oar_loader_next(loader, field, &more));
        oar_loader_destroy(loader);
    }
    leak_check_end(&before);
    oar_dataset_destroy(set);
}

/* What a child sees of its parent's loader; 0 is good. */
static int child(oar_loader *loader)
{
    oar_tensor *field[2];
    int more;

    if (!fails_with(oar_loader_next(loader, field, &more), OAR_E_STATE,
                    "fork") ||
        !fails_with(oar_loader_start(loader, 0, 0), OAR_E_STATE, "fork"))
        return 1;
    oar_loader_destroy(loader);
    return 0;
}

static void
a_child_of_fork_gets_an_error_because_the_thread_is_gone(void **state)
{
    oar_dataset *set = set_of(SAMPLES);
    oar_loader *loader = loader_of(set, NULL);
    int64_t index[MOST];
    int status, batches;
    pid_t pid;

    OK(oar_loader_start(loader, 0, 0));
    pid = fork();
    if (pid == 0)
        _exit(child(loader));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(read_all(loader, index, &batches), SAMPLES);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

static void bad_arguments_are_refused_with_a_sentence(void **state)
{
    oar_dataset *set = set_of(SAMPLES);
    oar_loader *loader = NULL;
    oar_tensor *field[2];
    int more;

    assert_fails_with(oar_loader_create(NULL, NULL, &loader), OAR_E_ARG,
                      "no data");
    assert_fails_with(oar_loader_create(set, NULL, NULL), OAR_E_ARG, "nowhere");
    assert_fails_with(oar_loader_create(set, OPTS(.batch = -1), &loader),
                      OAR_E_ARG, "-1");
    assert_fails_with(oar_loader_create(set, OPTS(.ahead = 2000), &loader),
                      OAR_E_ARG, "2000");
    assert_fails_with(
        oar_loader_create(set, OPTS(.rank = 2, .ranks = 2), &loader),
        OAR_E_RANK, "rank 2 of 2");
    assert_fails_with(oar_loader_create(set, OPTS(.ranks = -2), &loader),
                      OAR_E_WORLD, "-2 ranks");
    assert_null(loader);
    loader = loader_of(set, OPTS(.batch = 10));
    assert_fails_with(oar_loader_next(loader, field, &more), OAR_E_STATE,
                      "before");
    assert_fails_with(oar_loader_start(loader, 0, 5), OAR_E_ARG,
                      "batch 5 of 4");
    assert_fails_with(oar_loader_start(loader, 0, -1), OAR_E_ARG, "batch -1");
    assert_fails_with(oar_loader_next(loader, NULL, &more), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_loader_next(loader, field, NULL), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_loader_next(NULL, field, &more), OAR_E_ARG, "NULL");
    assert_fails_with(oar_loader_start(NULL, 0, 0), OAR_E_ARG, "NULL");
    assert_int_equal(oar_loader_batches(NULL), 0);
    oar_loader_destroy(NULL);
    oar_loader_destroy(loader);
    oar_dataset_destroy(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_the_same_with_and_without_a_thread),
        cmocka_unit_test(an_epoch_can_be_left_in_the_middle),
        cmocka_unit_test(the_end_of_an_epoch_is_returned_again_and_again),
        cmocka_unit_test(nothing_is_allocated_in_the_steady_state),
        cmocka_unit_test(a_retained_field_is_not_used_again),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_failure_in_the_thread_reaches_next_when_it_is_due),
        cmocka_unit_test(a_file_that_became_shorter_is_an_error_of_next),
        cmocka_unit_test(it_can_be_destroyed_while_the_thread_is_busy),
        cmocka_unit_test(
            a_child_of_fork_gets_an_error_because_the_thread_is_gone),
        cmocka_unit_test(bad_arguments_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
