/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks, on every backend: what p2p.h promises. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>
#include <oarsong/shared.h>

#include "link/shm/board.h"
#include "support/last_error.h"

/* Around a ring of shared memory, whose messages have heads of 16 bytes. */
static const size_t sizes[] = {
    0,
    1,
    3,
    17,
    4096,
    OARI_MAIL_BYTES - 128 - 17,
    OARI_MAIL_BYTES - 128 - 16,
    OARI_MAIL_BYTES - 128 - 15,
    OARI_MAIL_BYTES - 128,
    OARI_MAIL_BYTES - 1,
    OARI_MAIL_BYTES,
    OARI_MAIL_BYTES + 1,
    3 << 20,
};
enum { SIZES = sizeof sizes / sizeof *sizes, LARGE = 3 << 20, EAGER = 65536 };

static unsigned char byte_of(int from, uint32_t tag, size_t i)
{
    return (unsigned char)(i * 7 + (i >> 8) + tag * 13 + (uint32_t)from * 31);
}

static unsigned char *fill(unsigned char *data, int from, uint32_t tag,
                           size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, tag, i);
    return data;
}

static int is_filled(const unsigned char *data, int from, uint32_t tag,
                     size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != byte_of(from, tag, i))
            return 0;
    return 1;
}

static oar_span bytes_at(void *data, size_t bytes)
{
    return oar_span_of(data, bytes, OAR_U8);
}

/* Blocking, with the right content. */
static oar_status send_one(oar_group *g, int peer, uint32_t tag, size_t bytes)
{
    unsigned char *data =
        fill(malloc(bytes + 1), oar_group_rank(g), tag, bytes);

    CHECK_OK(oar_send(g, bytes_at(data, bytes), peer, tag, NULL, NULL));
    free(data);
    return OAR_OK;
}

static oar_status recv_one(oar_group *g, int peer, uint32_t tag, size_t bytes)
{
    unsigned char *data = calloc(bytes + 1, 1);

    CHECK_OK(oar_recv(g, bytes_at(data, bytes), peer, tag, NULL, NULL));
    CHECK(is_filled(data, peer, tag, bytes));
    CHECK(data[bytes] == 0);
    free(data);
    return OAR_OK;
}

/* ---- sizes, tags and order ----------------------------------------------- */

static oar_status pass_every_size(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), last = oar_group_size(g) - 1;

    for (int i = 0; i < SIZES; i++) {
        uint32_t tag = (uint32_t)i;
        if (rank == 0) {
            CHECK_OK(send_one(g, last, tag, sizes[i]));
            CHECK_OK(recv_one(g, last, tag, sizes[i]));
        } else if (rank == last) {
            CHECK_OK(recv_one(g, 0, tag, sizes[i]));
            CHECK_OK(send_one(g, 0, tag, sizes[i]));
        }
    }
    return OAR_OK;
}

static void every_size_goes_there_and_back(void **state)
{
    ranks_all(2, pass_every_size, NULL);
    ranks_all(3, pass_every_size, NULL);
}

static oar_status pass_between_others(oar_group *g, void *arg)
{
    if (oar_group_rank(g) == 1)
        CHECK_OK(send_one(g, 2, 5, 1000));
    if (oar_group_rank(g) == 2)
        CHECK_OK(recv_one(g, 1, 5, 1000));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (oar_group_rank(g) == 2)
        CHECK_OK(send_one(g, 1, 5, LARGE));
    if (oar_group_rank(g) == 1)
        CHECK_OK(recv_one(g, 2, 5, LARGE));
    return OAR_OK;
}

static void ranks_other_than_0_talk_to_each_other(void **state)
{
    ranks_all(3, pass_between_others, NULL);
    ranks_all(5, pass_between_others, NULL);
}

static oar_status pass_in_order(oar_group *g, void *arg)
{
    enum { MESSAGES = 200 };

    for (int i = 0; i < MESSAGES; i++) {
        int got = -1;
        if (oar_group_rank(g) == 0)
            CHECK_OK(oar_send(g, bytes_at(&i, sizeof i), 1, 7, NULL, NULL));
        else {
            CHECK_OK(oar_recv(g, bytes_at(&got, sizeof got), 0, 7, NULL, NULL));
            CHECK(got == i);
        }
    }
    return OAR_OK;
}

static void messages_of_one_tag_arrive_in_order(void **state)
{
    ranks_all(2, pass_in_order, NULL);
}

/* Also when many receives are posted at once. */
static oar_status post_many_receives(oar_group *g, void *arg)
{
    enum { MESSAGES = 20 };
    int value[MESSAGES];
    oar_work *work[MESSAGES];

    for (int i = 0; i < MESSAGES; i++) {
        oar_span s = bytes_at(&value[i], sizeof value[i]);
        value[i] = oar_group_rank(g) == 0 ? i : -1;
        if (oar_group_rank(g) == 0)
            CHECK_OK(oar_send(g, s, 1, 7, NULL, &work[i]));
        else
            CHECK_OK(oar_recv(g, s, 0, 7, NULL, &work[i]));
    }
    CHECK_OK(oar_work_wait_all(MESSAGES, work));
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(value[i] == i);
        oar_work_release(work[i]);
    }
    return OAR_OK;
}

static void receives_in_flight_are_filled_in_order(void **state)
{
    ranks_all(2, post_many_receives, NULL);
}

static oar_status take_tags_out_of_order(oar_group *g, void *arg)
{
    static const uint32_t tag[] = { 0, 1, UINT32_MAX, 77, 1u << 31 };
    enum { TAGS = sizeof tag / sizeof *tag };

    for (int round = 0; round < 10; round++)
        for (int i = 0; i < TAGS; i++)
            if (oar_group_rank(g) == 0)
                CHECK_OK(send_one(g, 1, tag[i], 100 + (size_t)i));
            else
                CHECK_OK(recv_one(g, 0, tag[TAGS - 1 - i],
                                  100 + (size_t)(TAGS - 1 - i)));
    return OAR_OK;
}

static void tags_are_received_in_any_order(void **state)
{
    ranks_all(2, take_tags_out_of_order, NULL);
}

/* Everything is there before the first receive is posted. */
static oar_status come_unexpected(oar_group *g, void *arg)
{
    unsigned char *data = fill(malloc(LARGE), oar_group_rank(g), 100, LARGE);
    oar_work *work = NULL;

    if (oar_group_rank(g) == 0) {
        for (uint32_t t = 0; t < 10; t++)
            CHECK_OK(send_one(g, 1, t, 17 * t));
        CHECK_OK(oar_send(g, bytes_at(data, LARGE), 1, 100, NULL, &work));
    }
    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (oar_group_rank(g) == 1) {
        for (uint32_t t = 9; t < 10; t--)
            CHECK_OK(recv_one(g, 0, t, 17 * t));
        CHECK_OK(recv_one(g, 0, 100, LARGE));
    }
    if (work != NULL)
        CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    free(data);
    return OAR_OK;
}

static void messages_may_arrive_before_their_receives(void **state)
{
    ranks_all(2, come_unexpected, NULL);
}

/* A small one behind a large one whose receive comes later. */
static oar_status overtake(oar_group *g, void *arg)
{
    unsigned char *data = fill(malloc(LARGE), oar_group_rank(g), 1, LARGE);
    oar_work *work;

    if (oar_group_rank(g) == 0) {
        CHECK_OK(oar_send(g, bytes_at(data, LARGE), 1, 1, NULL, &work));
        CHECK_OK(send_one(g, 1, 2, 17));
        CHECK_OK(oar_work_wait(work));
        oar_work_release(work);
    } else {
        CHECK_OK(recv_one(g, 0, 2, 17));
        CHECK_OK(recv_one(g, 0, 1, LARGE));
    }
    free(data);
    return OAR_OK;
}

static void a_small_message_is_received_before_a_large_one(void **state)
{
    ranks_all(2, overtake, NULL);
}

/* ---- to oneself ---------------------------------------------------------- */

static oar_status talk_to_oneself(oar_group *g, void *arg)
{
    int me = oar_group_rank(g);

    for (int i = 0; i < SIZES; i++)
        for (int receive_first = 0; receive_first < 2; receive_first++) {
            size_t bytes = sizes[i];
            unsigned char *from = fill(malloc(bytes + 1), me, 3, bytes);
            unsigned char *to = calloc(bytes + 1, 1);
            oar_work *work;
            if (receive_first)
                CHECK_OK(oar_recv(g, bytes_at(to, bytes), me, 3, NULL, &work));
            else
                CHECK_OK(
                    oar_send(g, bytes_at(from, bytes), me, 3, NULL, &work));
            if (receive_first)
                CHECK_OK(oar_send(g, bytes_at(from, bytes), me, 3, NULL, NULL));
            else
                CHECK_OK(oar_recv(g, bytes_at(to, bytes), me, 3, NULL, NULL));
            CHECK_OK(oar_work_wait(work));
            CHECK(is_filled(to, me, 3, bytes));
            oar_work_release(work);
            free(from);
            free(to);
        }
    return OAR_OK;
}

static void sending_to_oneself_works(void **state)
{
    ranks_all(1, talk_to_oneself, NULL);
    ranks_all(3, talk_to_oneself, NULL);
}

/* ---- the wrong size ------------------------------------------------------ */

static const size_t misfits[][2] = { { 17, 18 },      { 18, 17 },
                                     { 0, 1 },        { 1, 0 },
                                     { LARGE, 17 },   { 17, LARGE },
                                     { 65536, 65535 } };
enum { MISFITS = sizeof misfits / sizeof *misfits };

static oar_status recv_misfit(oar_group *g, size_t bytes)
{
    unsigned char *data = malloc(bytes + 1);

    memset(data, 0x77, bytes + 1);
    CHECK(fails_with(oar_recv(g, bytes_at(data, bytes), 0, 9, NULL, NULL),
                     OAR_E_SIZE, "rank 0 with tag 9"));
    CHECK(data[bytes] == 0x77);
    free(data);
    return OAR_OK;
}

/* A message too large to be done before its receive is there fails too. The
 * plugin sends everything at once. */
static oar_status what_the_sender_hears(const oar_group *g, size_t sent)
{
    int plugin = strcmp(oar_group_backend(g), "carrier") == 0;

    return sent > EAGER && !plugin ? OAR_E_SIZE : OAR_OK;
}

/* arg: the messages are there before their receives. */
static oar_status pass_misfits(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    float x = 1;

    for (int i = 0; i < MISFITS; i++) {
        oar_work *work = NULL;
        size_t sent = misfits[i][0];
        unsigned char *data = fill(malloc(sent + 1), 0, 9, sent);
        if (rank == 0)
            CHECK_OK(oar_send(g, bytes_at(data, sent), 1, 9, NULL, &work));
        if (arg != NULL)
            CHECK_OK(oar_barrier(g, NULL, NULL));
        if (rank == 1)
            CHECK_OK(recv_misfit(g, misfits[i][1]));
        if (rank == 0) {
            CHECK(oar_work_wait(work) == what_the_sender_hears(g, sent));
            CHECK_OK(send_one(g, 1, 9, 33));
        } else if (rank == 1)
            CHECK_OK(recv_one(g, 0, 9, 33));
        oar_work_release(work);
        free(data);
    }
    CHECK_OK(oar_group_fault(g, NULL));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL));
    CHECK(x == (float)oar_group_size(g));
    return OAR_OK;
}

static void
a_message_of_the_wrong_size_fails_there_and_the_group_goes_on(void **state)
{
    ranks_all(2, pass_misfits, NULL);
    ranks_all(3, pass_misfits, (void *)"late");
}

/* ---- in flight ----------------------------------------------------------- */

static oar_status receive_across_collectives(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), n = oar_group_size(g);
    unsigned char *data = calloc(LARGE, 1);
    oar_work *work = NULL;

    if (rank == 1)
        CHECK_OK(oar_recv(g, bytes_at(data, LARGE), 0, 4, NULL, &work));
    for (int i = 0; i < 10; i++) {
        float x[300];
        for (int k = 0; k < 300; k++)
            x[k] = (float)i;
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK_OK(oar_all_reduce(g, oar_span_of(x, 300, OAR_F32), OAR_SUM, NULL,
                                NULL));
        CHECK(x[0] == (float)(i * n) && x[299] == x[0]);
    }
    if (rank == 0)
        CHECK_OK(send_one(g, 1, 4, LARGE));
    if (rank == 1) {
        CHECK_OK(oar_work_wait(work));
        CHECK(is_filled(data, 0, 4, LARGE));
        oar_work_release(work);
    }
    free(data);
    return OAR_OK;
}

static void a_receive_posted_before_collectives_ends_after_them(void **state)
{
    ranks_all(3, receive_across_collectives, NULL);
}

/* Collectives that are messages themselves do not get the user's. */
static void messages_of_collectives_and_users_do_not_mix(void **state)
{
    static const char *const backend[] = { "sim", "shm" };

    setenv("OARSONG_ALGO", "exchange", 1);
    for (int i = 0; i < 2; i++)
        if (ranks_run(backend[i], 3, NULL, receive_across_collectives, NULL) !=
                OAR_OK ||
            ranks_run(backend[i], 3, NULL, pass_every_size, NULL) != OAR_OK)
            fail_msg("%s: %s", backend[i], oar_last_error_text());
    unsetenv("OARSONG_ALGO");
}

/* All ranks send to all ranks, themselves included, and none waits first. */
static oar_status exchange_all(oar_group *g, void *arg)
{
    enum { MAX = 5 };
    size_t bytes = *(const size_t *)arg;
    int me = oar_group_rank(g), n = oar_group_size(g);
    unsigned char *out[MAX], *in[MAX];
    oar_work *work[2 * MAX] = { NULL };

    for (int r = 0; r < n; r++) {
        uint32_t tag = (uint32_t)(me * n + r);
        out[r] = fill(malloc(bytes + 1), me, tag, bytes);
        in[r] = calloc(bytes + 1, 1);
        CHECK_OK(oar_send(g, bytes_at(out[r], bytes), r, tag, NULL, &work[r]));
    }
    for (int r = 0; r < n; r++)
        CHECK_OK(oar_recv(g, bytes_at(in[r], bytes), r, (uint32_t)(r * n + me),
                          NULL, &work[MAX + r]));
    CHECK_OK(oar_work_wait_all(2 * MAX, work));
    for (int r = 0; r < n; r++) {
        CHECK(is_filled(in[r], r, (uint32_t)(r * n + me), bytes));
        free(in[r]);
        free(out[r]);
    }
    for (int i = 0; i < 2 * MAX; i++)
        oar_work_release(work[i]);
    return OAR_OK;
}

static void
large_messages_in_all_directions_at_once_do_not_deadlock(void **state)
{
    size_t bytes[] = { LARGE, 100000, 17 };

    ranks_all(2, exchange_all, &bytes[0]);
    ranks_all(3, exchange_all, &bytes[0]);
    ranks_all(5, exchange_all, &bytes[1]);
    ranks_all(5, exchange_all, &bytes[2]);
}

/* Messages of a pair arrive in order: what was released is there when what came
 * behind it is. */
static oar_status release_messages(oar_group *g, void *arg)
{
    unsigned char data[100] = { 0 };
    oar_work *work;

    if (oar_group_rank(g) == 0) {
        fill(data, 0, 1, sizeof data);
        CHECK_OK(oar_send(g, bytes_at(data, sizeof data), 1, 1, NULL, &work));
        oar_work_release(work);
        CHECK_OK(send_one(g, 1, 1, 17));
    } else {
        CHECK_OK(oar_recv(g, bytes_at(data, sizeof data), 0, 1, NULL, &work));
        oar_work_release(work);
        CHECK_OK(recv_one(g, 0, 1, 17));
        CHECK(is_filled(data, 0, 1, sizeof data));
    }
    return oar_barrier(g, NULL, NULL);
}

static void a_message_goes_on_when_its_handle_is_released(void **state)
{
    ranks_all(2, release_messages, NULL);
}

static oar_status use_shared_memory(oar_group *g, void *arg)
{
    void *memory;

    CHECK_OK(oar_shared_alloc(100000, &memory));
    if (oar_group_rank(g) == 0) {
        fill(memory, 0, 6, 100000);
        CHECK_OK(oar_send(g, bytes_at(memory, 100000), 1, 6, NULL, NULL));
    } else {
        CHECK_OK(oar_recv(g, bytes_at(memory, 100000), 0, 6, NULL, NULL));
        CHECK(is_filled(memory, 0, 6, 100000));
    }
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_shared_free(memory);
    return OAR_OK;
}

static void messages_go_from_and_into_shared_memory(void **state)
{
    ranks_all(2, use_shared_memory, NULL);
}

/* ---- refused calls and timeouts ------------------------------------------ */

static oar_status refuse_messages(oar_group *g, void *arg)
{
    int x = 0, n = oar_group_size(g);
    oar_span s = bytes_at(&x, sizeof x);
    oar_work *work = NULL;

    CHECK(fails_with(oar_send(g, s, n, 0, NULL, NULL), OAR_E_RANK, "send"));
    CHECK(
        fails_with(oar_send(g, s, -1, 0, NULL, &work), OAR_E_RANK, "rank -1"));
    CHECK(fails_with(oar_recv(g, s, n, 0, NULL, &work), OAR_E_RANK, "recv"));
    CHECK(fails_with(oar_recv(g, s, -7, 0, NULL, NULL), OAR_E_RANK, "rank -7"));
    CHECK(fails_with(oar_send(NULL, s, 0, 0, NULL, NULL), OAR_E_ARG, "group"));
    CHECK(fails_with(oar_recv(NULL, s, 0, 0, NULL, NULL), OAR_E_ARG, "group"));
    CHECK(fails_with(oar_send(g, bytes_at(NULL, 1), 0, 0, NULL, NULL),
                     OAR_E_ARG, "NULL"));
    CHECK(fails_with(
        oar_recv(g, oar_span_of(&x, 1, (oar_dtype)55), 0, 0, NULL, NULL),
        OAR_E_DTYPE, "55"));
    s.device.kind = OAR_CUDA;
    CHECK(fails_with(oar_send(g, s, 0, 0, NULL, NULL), OAR_E_UNSUPPORTED,
                     "OARSONG_ENABLE_GPU_FALLBACK"));
    CHECK(work == NULL);
    return pass_in_order(g, NULL);
}

static void bad_peers_and_spans_are_refused_and_the_group_goes_on(void **state)
{
    ranks_all(2, refuse_messages, NULL);
}

static oar_status wait_until_timeout(oar_group *g, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    char x;

    o.timeout_ms = 50;
    CHECK(fails_with(oar_recv(g, bytes_at(&x, 1), 0, 3, &o, NULL),
                     OAR_E_TIMEOUT, "recv waited 50 ms for rank 0"));
    CHECK(oar_last_error()->peer == 0);
    CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_TIMEOUT, "recv waited"));
    return OAR_OK;
}

static void a_receive_without_a_message_times_out(void **state)
{
    ranks_all(1, wait_until_timeout, NULL);
}

/* What is there is named: the sender, or this rank, has the wrong tag. */
static oar_status ask_for_another_tag(oar_group *g, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    char x = 0;

    if (oar_group_rank(g) == 1) {
        CHECK_OK(oar_send(g, bytes_at(&x, 1), 0, 8, NULL, NULL));
        CHECK(oar_recv(g, bytes_at(&x, 1), 0, 9, NULL, NULL) == OAR_E_TIMEOUT);
        return OAR_OK;
    }
    CHECK_OK(oar_probe_wait(g, 1, 8, 0, NULL));
    o.timeout_ms = 50;
    CHECK(fails_with(
        oar_recv(g, bytes_at(&x, 1), 1, 7, &o, NULL), OAR_E_TIMEOUT,
        "from rank 1 there is a message of 1 bytes with tag 8, but this "
        "receive wants tag 7"));
    return OAR_OK;
}

static void a_message_with_another_tag_is_named_at_the_timeout(void **state)
{
    /* Not over the plugin, which cannot be probed. */
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            ranks_run(ranks_backends()[i], 2, NULL, ask_for_another_tag, NULL),
            OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_goes_there_and_back),
        cmocka_unit_test(ranks_other_than_0_talk_to_each_other),
        cmocka_unit_test(messages_of_one_tag_arrive_in_order),
        cmocka_unit_test(receives_in_flight_are_filled_in_order),
        cmocka_unit_test(tags_are_received_in_any_order),
        cmocka_unit_test(messages_may_arrive_before_their_receives),
        cmocka_unit_test(a_small_message_is_received_before_a_large_one),
        cmocka_unit_test(sending_to_oneself_works),
        cmocka_unit_test(
            a_message_of_the_wrong_size_fails_there_and_the_group_goes_on),
        cmocka_unit_test(a_receive_posted_before_collectives_ends_after_them),
        cmocka_unit_test(messages_of_collectives_and_users_do_not_mix),
        cmocka_unit_test(
            large_messages_in_all_directions_at_once_do_not_deadlock),
        cmocka_unit_test(a_message_goes_on_when_its_handle_is_released),
        cmocka_unit_test(messages_go_from_and_into_shared_memory),
        cmocka_unit_test(bad_peers_and_spans_are_refused_and_the_group_goes_on),
        cmocka_unit_test(a_receive_without_a_message_times_out),
        cmocka_unit_test(a_message_with_another_tag_is_named_at_the_timeout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
