/* SPDX-License-Identifier: Apache-2.0 */
/* What the original's tests of RPC call or lack, beyond rpc_call_test and
 * rpc_ref_test: calls both ways at once, messages of every size, values that
 * stay with their owner by the bytes that travel; and messages that no agent
 * sends, which are refused before memory is taken. OARSONG_TEST_ALL: up to 256
 * MiB; OARSONG_TEST_LARGE: more than 4 GiB. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/memory.h>
#include <oarsong/p2p.h>

#include "parallel/rpc/rpc_agent.h"
#include "support/ranks.h"
#include "support/rpc_functions.h"

static void on_backends(int count, int ranks, oar_rank_fn fn)
{
    static const char *const backends[] = { "shm", "sim", "tcp" };

    for (int i = 0; i < count; i++)
        if (ranks_run(backends[i], ranks, NULL, fn, NULL) != OAR_OK)
            fail_msg("%s: %s", backends[i], oar_last_error_text());
}

/* ---- both ways at once --------------------------------------------------- */

static oar_status negate(void *arg, oar_rpc_call *call)
{
    int64_t n;

    (void)arg;
    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK)
        return OAR_E_DATA;
    return oar_rpc_put_i64(oar_rpc_reply(call), -n);
}

/* Rank 0 has 5 negated while rank 1 has 3.0 doubled. */
static oar_status run_both_ways(oar_group *group, void *arg)
{
    oar_rpc_function f = { .size = sizeof f, .name = "negate", .fn = negate };
    oar_rpc_message *m, *reply;
    oar_rpc *rpc;
    int64_t n;
    double x;

    (void)arg;
    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    for (int i = 0; i < 200; i++)
        if (oar_group_rank(group) == 0) {
            CHECK_OK(rpc_number(rpc, 1, "negate", 5 + i, &n));
            CHECK(n == -5 - i);
        } else {
            CHECK_OK(oar_rpc_message_create(&m));
            CHECK_OK(oar_rpc_put_f64(m, 3.0 + i));
            CHECK_OK(oar_rpc_sync(rpc, 0, "double", m, NULL, &reply));
            CHECK_OK(oar_rpc_get_f64(reply, &x));
            CHECK(x == 6.0 + 2 * i);
            oar_rpc_message_destroy(reply);
        }
    return rpc_close(rpc);
}

static void original_both_ways(void **state)
{
    (void)state;
    on_backends(3, 2, run_both_ways);
}

/* ---- every size ---------------------------------------------------------- */

/* Gives the number of bytes of an array, and its first and last. */
static oar_status measure(void *arg, oar_rpc_call *call)
{
    oar_rpc_message *reply = oar_rpc_reply(call);
    oar_span span;
    oar_status status = oar_rpc_get_span(oar_rpc_args(call), &span);
    const unsigned char *byte = span.data;

    (void)arg;
    if (status != OAR_OK)
        return status;
    status = oar_rpc_put_i64(reply, (int64_t)span.count);
    if (status == OAR_OK)
        status = oar_rpc_put_i64(
            reply, span.count > 0 ? byte[0] * 256 + byte[span.count - 1] : 0);
    return status;
}

/* Sends an array; its pages are made as they are touched. */
static oar_status send_size(oar_rpc *rpc, size_t bytes)
{
    unsigned char *data =
        mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int64_t count, ends;
    oar_rpc_message *m, *reply;

    CHECK(data != MAP_FAILED);
    data[0] = 7;
    if (bytes > 1)
        data[bytes - 1] = 9;
    CHECK_OK(oar_rpc_message_create(&m));
    CHECK_OK(oar_rpc_put_span(m, oar_span_of(data, bytes, OAR_U8), NULL, NULL));
    CHECK_OK(oar_rpc_sync(rpc, 1, "measure", m, NULL, &reply));
    CHECK_OK(oar_rpc_get_i64(reply, &count));
    CHECK_OK(oar_rpc_get_i64(reply, &ends));
    CHECK(count == (int64_t)bytes);
    CHECK(ends == (bytes == 0 ? 0 : bytes == 1 ? 7 * 256 + 7 : 7 * 256 + 9));
    oar_rpc_message_destroy(reply);
    munmap(data, bytes + 1);
    return OAR_OK;
}

static oar_status run_sizes(oar_group *group, void *arg)
{
    static const size_t sizes[] = { 0,     1,     4096,  4097,    32700,
                                    32768, 65536, 65537, 1 << 20, 5000001 };
    oar_rpc_function f = { .size = sizeof f, .name = "measure", .fn = measure };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc *rpc;

    (void)arg;
    opts.message_bytes = (size_t)6 << 30;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (oar_group_rank(group) == 0) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            CHECK_OK(send_size(rpc, sizes[i]));
        if (getenv("OARSONG_TEST_ALL") != NULL)
            CHECK_OK(send_size(rpc, (size_t)256 << 20));
        if (getenv("OARSONG_TEST_LARGE") != NULL)
            CHECK_OK(send_size(rpc, ((size_t)4 << 30) + 4097));
    }
    return rpc_close(rpc);
}

static void any_size_arrives(void **state)
{
    (void)state;
    on_backends(getenv("OARSONG_TEST_LARGE") != NULL ? 1 : 3, 2, run_sizes);
}

/* ---- values stay with their owner ---------------------------------------- */

static oar_status make_large(void *arg, oar_rpc_call *call)
{
    static unsigned char large[1 << 20];

    (void)arg;
    return oar_rpc_put_bytes(oar_rpc_reply(call), large, sizeof large);
}

static oar_status run_stays(oar_group *group, void *arg)
{
    oar_rpc_function f = { .size = sizeof f,
                           .name = "make_large",
                           .fn = make_large };
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rpc_message *value;
    oar_future *future;
    oar_rref *rref;
    oar_rpc *rpc;

    (void)arg;
    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (oar_group_rank(group) == 0) {
        CHECK_OK(oar_rpc_remote(rpc, 1, "make_large", NULL, NULL, &rref));
        CHECK_OK(
            oar_rref_call(rref, "add_one", rpc_message_of(1), NULL, &future));
        CHECK_OK(oar_future_wait(future, NULL));
        oar_future_release(future);
        CHECK_OK(oar_rpc_read_stats(rpc, &stats));
        CHECK(stats.bytes_in < 4096); /* the value was not sent */
        CHECK_OK(oar_rref_fetch(rref, NULL, &value));
        CHECK_OK(oar_rpc_read_stats(rpc, &stats));
        CHECK(stats.bytes_in >= 1 << 20);
        oar_rpc_message_destroy(value);
        oar_rref_release(rref);
    }
    return rpc_close(rpc);
}

static void a_remote_value_stays_with_its_owner(void **state)
{
    (void)state;
    on_backends(2, 2, run_stays);
}

/* ---- messages that no agent sends ---------------------------------------- */

/* Sends a head as it is to rank 1, past the agent. */
static oar_status send_head(oar_rpc *rpc, const oari_rpc_head *head,
                            size_t more)
{
    unsigned char byte[OARI_RPC_HEAD + OARI_RPC_NAME + OARI_RPC_SITE + 64] = {
        0
    };
    size_t bytes = oari_rpc_write_head(byte, head) + more;

    oari_rpc_set_u64(byte + 8, head->sequence);
    return oar_send(rpc->net->group, oar_span_of(byte, bytes, OAR_U8), 1, 0,
                    NULL, NULL);
}

static oar_status read_refused(oar_rpc *rpc, uint64_t *refused)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_status status = oar_rpc_read_stats(rpc, &stats);

    *refused = stats.refused;
    return status;
}

/* Rank 0 forges, replays and exaggerates; rank 1 refuses each, takes no memory
 * for it, and goes on serving. */
static oar_status run_forged(oar_group *group, void *arg)
{
    oari_rpc_head call = {
        .kind = OARI_RPC_CALL, .call = 1000, .left_ms = -1, .name = "add_one"
    };
    oari_rpc_head bad[6];
    oar_memory_stats memory = oar_memory_stats_init();
    uint64_t before, after, used;
    oar_rpc *rpc;
    int64_t n;

    (void)arg;
    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(read_refused(rpc, &before));
    CHECK_OK(oar_memory_read(&memory));
    used = memory.live_bytes;
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (oar_group_rank(group) == 0) {
        for (int i = 0; i < 6; i++) {
            bad[i] = call;
            bad[i].sequence = rpc->peer[1].sent + 1000;
        }
        bad[0].sequence = 0; /* replayed: that number has been */
        bad[1].sequence += 1 << 20;
        bad[2].flags = OARI_RPC_APART; /* larger than it takes */
        bad[2].value_bytes = (uint64_t)1 << 40;
        bad[3].kind = OARI_RPC_ANSWER; /* that nobody asked for */
        bad[4].arrays = 5;             /* but it has no table */
        bad[5].value_bytes = 100;      /* that are not there */
        for (int i = 0; i < 6; i++)
            CHECK_OK(send_head(rpc, &bad[i], 0));
        CHECK_OK(rpc_number(rpc, 1, "add_one", 1, &n));
        CHECK(n == 2);
        CHECK_OK(oar_barrier(group, NULL, NULL));
    } else {
        CHECK_OK(oar_barrier(group, NULL, NULL));
        do
            CHECK_OK(read_refused(rpc, &after));
        while (after < before + 6);
        CHECK(after == before + 6);
        CHECK_OK(oar_memory_read(&memory));
        CHECK(memory.live_bytes < used + (1 << 20));
    }
    return rpc_close(rpc);
}

static void forged_heads_are_refused_before_memory_is_taken(void **state)
{
    (void)state;
    on_backends(3, 2, run_forged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(original_both_ways),
        cmocka_unit_test(any_size_arrives),
        cmocka_unit_test(a_remote_value_stays_with_its_owner),
        cmocka_unit_test(forged_heads_are_refused_before_memory_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
