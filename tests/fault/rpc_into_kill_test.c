/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies or stops while its reply arrives in memory of the caller: the
 * call ends in time, and nothing writes to the memory afterwards. */
#include "support/test_job.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "base/clock.h"
#include "support/rpc_functions.h"

enum { VICTIM = 1, COUNT = 4 << 20, KILLED = 128 + SIGKILL };

typedef struct into_kill {
    const char *backend;
    int hosts, signal;
    shared_flag reported;
} into_kill;

static void *end_soon(void *arg)
{
    const into_kill *k = arg;

    usleep(500);
    raise(k->signal);
    return NULL;
}

/* -> f32 [COUNT]; the rank ends while it goes, or a little before or after */
static oar_status give_and_end(void *arg, oar_rpc_call *call)
{
    static float large[COUNT];
    pthread_t thread;

    pthread_create(&thread, NULL, end_soon, arg);
    pthread_detach(thread);
    return oar_rpc_put_span(oar_rpc_reply(call),
                            oar_span_of(large, COUNT, OAR_F32), NULL, NULL);
}

static int call_victim(test_job *c, int rank, into_kill *k, oar_rpc *rpc)
{
    static float memory[COUNT];
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_span place = oar_span_of(memory, COUNT, OAR_F32);
    int64_t began = oari_now_ns();
    oar_status status;

    opts.into = &place;
    opts.into_count = 1;
    opts.timeout_ms = k->signal == SIGSTOP ? 300 : 30000;
    status = oar_rpc_sync(rpc, VICTIM, "end", NULL, &opts, NULL);
    RANK_CHECK(status == OAR_OK ||
               status == (k->signal == SIGSTOP ? OAR_E_TIMEOUT : OAR_E_PEER));
    RANK_CHECK(status == OAR_OK || oar_last_error()->peer == VICTIM);
    RANK_CHECK(oari_now_ns() - began < 10 * (int64_t)1000000000);
    memset(memory, 0x11, sizeof memory);
    shared_flag_raise(&k->reported);
    RANK_CHECK(shared_flag_await(&k->reported, 2, 20000));
    RANK_OK(oar_rpc_shutdown(rpc, 20000)); /* the rank is known to be gone */
    for (size_t i = 0; i < sizeof memory; i++)
        RANK_CHECK(((unsigned char *)memory)[i] == 0x11);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    into_kill *k = arg;
    oar_group_opts o = { .size = sizeof o, .backend = k->backend };
    oar_rpc_function f = { .size = sizeof f, .name = "end", .arg = k };
    oar_group *group;
    oar_rpc *rpc;
    int failed;

    f.fn = give_and_end;
    if (k->hosts > 1)
        setenv("OARSONG_HOST_ID", rank == VICTIM ? "far" : "near", 1);
    RANK_OK(test_job_join(c, rank, &o, &group));
    RANK_OK(rpc_open(group, NULL, &rpc));
    RANK_OK(oar_rpc_register(rpc, &f));
    RANK_OK(oar_barrier(group, NULL, NULL));
    while (rank == VICTIM)
        pause();
    failed = call_victim(c, rank, k, rpc);
    oar_rpc_destroy(rpc);
    oar_group_destroy(group);
    return failed;
}

static void run_case(const char *backend, int hosts, int signal)
{
    into_kill *k = shared_page(sizeof *k);
    test_job c;

    k->backend = backend;
    k->hosts = hosts;
    k->signal = signal;
    test_job_start(&c, 2, run_rank, k, "%s, %d hosts, signal %d", backend,
                   hosts, signal);
    assert_true(shared_flag_await(&k->reported, 1, 20000));
    kill(c.pid[VICTIM], SIGKILL);
    test_job_expect(&c, VICTIM, KILLED);
    shared_flag_raise(&k->reported);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

static void nothing_is_written_after_the_call(void **state)
{
    (void)state;
    for (int stop = 0; stop < 2; stop++) {
        run_case("shm", 1, stop ? SIGSTOP : SIGKILL);
        run_case("tcp", 1, stop ? SIGSTOP : SIGKILL);
        run_case("native", 2, stop ? SIGSTOP : SIGKILL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_written_after_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
