/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of private memory are copied from process to process if the system lets
 * every rank read all others; if one may not, no rank does. */
#include "support/test_job.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <oarsong/collective.h>

#include "comm/comm.h"
#include "link/shm/shm.h"

enum { RANKS = 3, PART = 5000, TIMEOUT_MS = 10000 };

static const oari_shm_ops *real_ops;
static oari_shm_ops counting_ops;
static int fetched, may_fetch, hidden_rank;

static oar_status count_fetch(void *self, int peer, uint64_t address, void *to,
                              size_t bytes)
{
    fetched++;
    return peer != hidden_rank ? real_ops->fetch(self, peer, address, to, bytes)
                               : OAR_E_UNSUPPORTED;
}

static int answer(void *self)
{
    return may_fetch && real_ops->fetches(self);
}

static int run_all_gather(test_job *c, int rank, oar_group *g, float *in)
{
    static float out[RANKS * PART];

    memset(out, 0, sizeof out);
    for (size_t i = 0; i < PART; i++)
        in[i] = (float)rank * 100 + (float)(i % 89);
    RANK_OK(oar_all_gather(g, oar_span_of(in, PART, OAR_F32),
                           oar_span_of(out, RANKS * PART, OAR_F32), NULL,
                           NULL));
    for (size_t i = 0; i < RANKS * PART; i++)
        RANK_CHECK(out[i] == (float)(i / PART) * 100 + (float)(i % PART % 89));
    return 0;
}

/* A rank that may not read the others, one whose memory they cannot have, and
 * one whose memory the system gives nobody; -1: none. */
typedef struct barrier_to_copies {
    int blind, hidden, secret;
} barrier_to_copies;

static void *map_secret(size_t bytes)
{
    int fd = (int)syscall(SYS_memfd_secret, 0);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return memory != MAP_FAILED ? memory : NULL;
}

static int gather_parts(test_job *c, int rank, void *arg)
{
    static float plain[PART];
    const barrier_to_copies *barred = arg;
    float *in = rank == barred->secret ? map_secret(sizeof plain) : plain;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    RANK_CHECK(in != NULL);
    setenv("OARSONG_FETCH_BYTES", "1K", 1);
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &g));
    may_fetch = rank != barred->blind;
    hidden_rank = barred->hidden;
    real_ops = g->shm->ops;
    counting_ops = *real_ops;
    counting_ops.fetch = count_fetch;
    counting_ops.fetches = answer;
    g->shm->ops = &counting_ops;
    for (int i = 0; i < 3; i++)
        RANK_ZERO(run_all_gather(c, rank, g, in));
    RANK_CHECK(fetched == (barred->blind < 0 ? 3 * (RANKS - 1) : 0));
    oar_group_destroy(g);
    return 0;
}

static void run_job(int blind, int hidden, int secret)
{
    barrier_to_copies barred = { blind, hidden, secret };
    test_job c;

    test_job_start(&c, RANKS, gather_parts, &barred,
                   "rank %d may not read, ranks %d and %d not be read", blind,
                   hidden, secret);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void parts_are_copied_once(void **state)
{
    run_job(-1, -1, -1);
}

static void one_rank_that_may_not_read_is_enough_for_none_to_do_so(void **state)
{
    for (int barred = 0; barred < RANKS; barred++)
        run_job(barred, -1, -1);
}

static void memory_that_cannot_be_read_is_staged(void **state)
{
    for (int hidden = 0; hidden < RANKS; hidden++)
        run_job(-1, hidden, -1);
}

/* As memory of a device: a process has it, and no system call reaches it. */
static void memory_of_no_other_process_is_staged(void **state)
{
    void *memory = map_secret(1);

    if (memory == NULL)
        skip(); /* older systems */
    munmap(memory, 1);
    for (int secret = 0; secret < RANKS; secret++)
        run_job(-1, -1, secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_copied_once),
        cmocka_unit_test(memory_that_cannot_be_read_is_staged),
        cmocka_unit_test(memory_of_no_other_process_is_staged),
        cmocka_unit_test(
            one_rank_that_may_not_read_is_enough_for_none_to_do_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
