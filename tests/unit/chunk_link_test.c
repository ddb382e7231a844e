/* SPDX-License-Identifier: Apache-2.0 */
/* Full messages out of blocks: chunk_link.h, over a transport in memory that
 * delivers late, in an order of its own across pairs and lanes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "link/match.h"
#include "link/chunk_link.h"
#include "support/leak_check.h"

enum { RANKS = 3, EAGER = 100, LANES = 5, MOST = 4096 };
#define ANY_TAG UINT64_MAX

typedef struct posted_block {
    oari_chunk *chunk;
    int from, to; /* of a get: from may be -1 */
} posted_block;

/* What is in flight between all ranks, in the order started. */
typedef struct block_ranks {
    posted_block put[MOST], get[MOST];
    int puts, gets;
    int mixed, no_drop;
    oari_chunk *kept[8]; /* that were not let go of */
    int kept_count;
    int fail_puts; /* every put from now on fails */
    uint64_t random;
    struct block_rank {
        struct block_ranks *ranks;
        int rank;
    } rank_of[RANKS];
    oari_chunk_link *link[RANKS];
    leak_check before;
} block_ranks;

static oar_status put(void *self, oari_chunk *chunk)
{
    struct block_rank *rank_of = self;
    block_ranks *t = rank_of->ranks;

    if (t->fail_puts)
        return oar_backend_fail(OAR_E_SYSTEM, "the transport fails");
    assert_true(t->puts < MOST && chunk->lane < LANES && !chunk->done);
    t->put[t->puts++] = (posted_block){ chunk, rank_of->rank, chunk->peer };
    return OAR_OK;
}

static oar_status get(void *self, oari_chunk *chunk)
{
    struct block_rank *rank_of = self;
    block_ranks *t = rank_of->ranks;

    assert_true(t->gets < MOST && chunk->lane < LANES && !chunk->done);
    assert_true(chunk->peer >= 0 || (t->mixed && chunk->lane == 0));
    t->get[t->gets++] = (posted_block){ chunk, chunk->peer, rank_of->rank };
    return OAR_OK;
}

static void remove_block(posted_block *list, int *count, int at)
{
    memmove(list + at, list + at + 1, (size_t)(*count - at - 1) * sizeof *list);
    --*count;
}

static int find_block(const posted_block *list, int count,
                      const oari_chunk *chunk)
{
    int at = 0;

    while (at < count && list[at].chunk != chunk)
        at++;
    return at;
}

static int drop(void *self, oari_chunk *chunk)
{
    block_ranks *t = ((struct block_rank *)self)->ranks;
    int at = find_block(t->put, t->puts, chunk);

    if (at < t->puts)
        remove_block(t->put, &t->puts, at);
    else if ((at = find_block(t->get, t->gets, chunk)) < t->gets)
        remove_block(t->get, &t->gets, at);
    if (t->no_drop)
        t->kept[t->kept_count++] = chunk;
    return !t->no_drop;
}

static void open_ranks(block_ranks *t, int mixed)
{
    memset(t, 0, sizeof *t);
    t->before = leak_check_begin();
    t->mixed = mixed;
    t->random = 88172645463325252u;
    for (int r = 0; r < RANKS; r++) {
        oari_chunk_transport transport_ops = { put,   get,
                                               drop,  &t->rank_of[r],
                                               LANES, mixed };
        t->rank_of[r].ranks = t;
        t->rank_of[r].rank = r;
        assert_int_equal(oari_chunk_link_create(&transport_ops, r, RANKS, EAGER,
                                                &t->link[r]),
                         OAR_OK);
    }
}

static void close_ranks(block_ranks *t)
{
    for (int r = 0; r < RANKS; r++)
        oari_chunk_link_destroy(t->link[r]);
    assert_int_equal(t->puts + t->gets, 0);
    leak_check_end(&t->before);
}

static uint64_t draw(block_ranks *t, uint64_t below)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random % below;
}

/* ---- delivering ---------------------------------------------------------- */

static int same_way(const posted_block *a, const posted_block *b)
{
    return a->from == b->from && a->to == b->to &&
           a->chunk->lane == b->chunk->lane;
}

/* Whether no earlier one goes the same way. */
static int is_first(const block_ranks *t, int at)
{
    for (int i = 0; i < at; i++)
        if (same_way(&t->put[i], &t->put[at]))
            return 0;
    return 1;
}

static int find_get(const block_ranks *t, const posted_block *p)
{
    for (int i = 0; i < t->gets; i++)
        if (t->get[i].to == p->to && t->get[i].chunk->lane == p->chunk->lane &&
            (t->get[i].from == p->from || t->get[i].from < 0))
            return i;
    return -1;
}

static int deliver(block_ranks *t, int at)
{
    oari_chunk *p = t->put[at].chunk, *g;
    int to = find_get(t, &t->put[at]);

    if (to < 0 || !is_first(t, at))
        return 0;
    g = t->get[to].chunk;
    assert_true(p->lane == 0 ? p->bytes <= g->bytes : p->bytes == g->bytes);
    memcpy(g->data, p->data, p->bytes);
    g->peer = t->put[at].from;
    remove_block(t->put, &t->puts, at);
    remove_block(t->get, &t->gets, to);
    g->status = p->status = OAR_OK;
    g->done = p->done = 1;
    return 1;
}

/* One block, any that may come now; 0: none can. */
static int deliver_one(block_ranks *t)
{
    int start = t->puts != 0 ? (int)draw(t, (uint64_t)t->puts) : 0;

    for (int i = 0; i < t->puts; i++)
        if (deliver(t, (start + i) % t->puts))
            return 1;
    return 0;
}

static void look(block_ranks *t)
{
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(oari_chunk_link_progress(t->link[r]), OAR_OK);
}

/* Until nothing moves. */
static void settle(block_ranks *t)
{
    look(t);
    while (deliver_one(t))
        if (draw(t, 3) == 0)
            look(t);
        else
            oari_chunk_link_progress(t->link[draw(t, RANKS)]);
    look(t);
    if (deliver_one(t))
        settle(t);
}

static oar_transfer message(int peer, uint64_t tag, void *data, size_t bytes)
{
    return (oar_transfer){ .size = sizeof(oar_transfer),
                           .peer = peer,
                           .tag = tag,
                           .data = data,
                           .bytes = bytes };
}

static oar_transfer from_any(void *data, size_t bytes)
{
    oar_transfer t = message(-1, 0, data, bytes);

    t.any = ANY_TAG;
    return t;
}

static void send_message(block_ranks *t, int rank, oar_transfer *transfer)
{
    assert_int_equal(oari_chunk_link_send(t->link[rank], transfer), OAR_OK);
}

static void receive_message(block_ranks *t, int rank, oar_transfer *transfer)
{
    assert_int_equal(oari_chunk_link_recv(t->link[rank], transfer), OAR_OK);
}

#define assert_ended(transfer, why) \
    assert_true((transfer).done && (transfer).status == (why))

/* ---- messages ------------------------------------------------------------ */

static void every_size_arrives_whichever_side_is_first(void **state)
{
    static const size_t sizes[] = { 0, 1, 99, 100, 101, 3001, 70001 };
    block_ranks *t = *state;

    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i / 2];
        unsigned char *out = malloc(bytes + 1), *in = calloc(1, bytes + 1);
        oar_transfer s = message(1, 7, out, bytes);
        oar_transfer r = message(0, 7, in, bytes);
        memset(out, (int)i + 1, bytes);
        if (i % 2 == 0)
            receive_message(t, 1, &r);
        send_message(t, 0, &s);
        settle(t);
        if (i % 2 == 1)
            receive_message(t, 1, &r);
        settle(t);
        assert_ended(s, OAR_OK);
        assert_ended(r, OAR_OK);
        assert_true(r.source == 0 && r.got_tag == 7 && r.got_bytes == bytes);
        assert_memory_equal(in, out, bytes);
        free(in);
        free(out);
    }
}

enum { MANY = 90 };

typedef struct test_messages {
    unsigned char *out[MANY], *in[MANY];
    oar_transfer send[MANY], receive[MANY];
} test_messages;

static size_t size_of(int i)
{
    return i % 5 == 0 ? 0 : i % 3 == 0 ? 40 : 500 + (size_t)i;
}

/* Sizes tell which message came: order holds for any mix of small and large. */
static void messages_of_a_pair_and_tag_come_in_the_order_sent(void **state)
{
    block_ranks *t = *state;
    test_messages *l = calloc(1, sizeof *l);

    for (int i = 0; i < MANY; i++) {
        l->out[i] = malloc(1000);
        l->in[i] = calloc(1, 1000);
        memset(l->out[i], i + 1, 1000);
        l->send[i] = message(2, 3, l->out[i], size_of(i));
        l->receive[i] = message(0, 3, l->in[i], size_of(i));
        l->send[i].synchronous = i % 7 == 0;
        send_message(t, 0, &l->send[i]);
        if (draw(t, 2))
            deliver_one(t);
        if (draw(t, 2))
            look(t);
        if (i >= 10)
            receive_message(t, 2, &l->receive[i - 10]);
    }
    for (int i = MANY - 10; i < MANY; i++)
        receive_message(t, 2, &l->receive[i]);
    settle(t);
    for (int i = 0; i < MANY; i++) {
        assert_ended(l->send[i], OAR_OK);
        assert_ended(l->receive[i], OAR_OK);
        assert_memory_equal(l->in[i], l->out[i], size_of(i));
        free(l->in[i]);
        free(l->out[i]);
    }
    free(l);
    for (int r = 0; r < RANKS; r++)
        assert_true(oari_chunk_link_idle(t->link[r]));
}

static void any_source_and_any_tag_take_what_came_first(void **state)
{
    block_ranks *t = *state;
    unsigned char big[300] = { 5 }, got[300] = { 0 };
    int small = 9, value = 0;
    oar_transfer a = message(1, 11, big, sizeof big);
    oar_transfer b = message(1, 22, &small, sizeof small);
    oar_transfer first = from_any(got, sizeof got);
    oar_transfer second = from_any(&value, sizeof value);

    send_message(t, 0, &a);
    settle(t);
    assert_int_equal(oari_chunk_link_peek(t->link[1], -1, 0, ANY_TAG, NULL), 0);
    settle(t); /* a peek has opened the inboxes */
    send_message(t, 2, &b);
    settle(t);
    receive_message(t, 1, &first);
    receive_message(t, 1, &second);
    settle(t);
    assert_ended(first, OAR_OK);
    assert_ended(second, OAR_OK);
    assert_true(first.source == 0 && first.got_tag == 11 && got[0] == 5);
    assert_true(second.source == 2 && second.got_tag == 22 && value == 9);
}

static void a_probe_sees_what_waits_and_leaves_it(void **state)
{
    block_ranks *t = *state;
    unsigned char data[3000] = { 1 }, got[3000];
    oar_envelope found = { .size = sizeof found };
    oar_transfer s = message(2, 4, data, sizeof data);
    oar_transfer r = message(1, 4, got, sizeof got);

    oari_chunk_link_peek(t->link[2], 1, 4, 0, NULL);
    send_message(t, 1, &s);
    settle(t);
    for (int i = 0; i < 2; i++) {
        assert_true(oari_chunk_link_peek(t->link[2], -1, 4, 0, &found));
        assert_true(found.source == 1 && found.tag == 4 &&
                    found.bytes == sizeof data);
    }
    assert_false(oari_chunk_link_peek(t->link[2], 0, 4, 0, NULL));
    assert_false(oari_chunk_link_peek(t->link[2], 1, 5, 0, NULL));
    receive_message(t, 2, &r);
    settle(t);
    assert_ended(r, OAR_OK);
    assert_false(oari_chunk_link_peek(t->link[2], -1, 4, 0, NULL));
}

static void a_wrong_size_fails_on_both_sides_and_the_next_succeeds(void **state)
{
    block_ranks *t = *state;
    unsigned char data[500] = { 3 }, got[500] = { 0 };
    oar_transfer large = message(1, 1, data, 500);
    oar_transfer little = message(1, 1, data, 50);
    oar_transfer well = message(1, 1, data, 400);
    oar_transfer r[3] = { message(0, 1, got, 499), message(0, 1, got, 51),
                          message(0, 1, got, 400) };

    send_message(t, 0, &large);
    send_message(t, 0, &little);
    send_message(t, 0, &well);
    for (int i = 0; i < 3; i++)
        receive_message(t, 1, &r[i]);
    settle(t);
    assert_ended(large, OAR_E_SIZE);
    assert_ended(little, OAR_OK); /* it was away already */
    assert_ended(r[0], OAR_E_SIZE);
    assert_ended(r[1], OAR_E_SIZE);
    assert_int_equal(r[0].got_bytes, 500);
    assert_ended(well, OAR_OK);
    assert_ended(r[2], OAR_OK);
    assert_memory_equal(got, data, 400);
}

static void a_synchronous_send_waits_for_its_receive(void **state)
{
    block_ranks *t = *state;
    int out = 4, in = 0;
    oar_transfer s = message(0, 1, &out, sizeof out);
    oar_transfer none = message(0, 2, NULL, 0);
    oar_transfer r = message(1, 1, &in, sizeof in);
    oar_transfer r_none = message(1, 2, NULL, 0);

    s.synchronous = none.synchronous = 1;
    send_message(t, 1, &s);
    send_message(t, 1, &none);
    settle(t);
    assert_false(s.done || none.done);
    receive_message(t, 0, &r);
    receive_message(t, 0, &r_none);
    settle(t);
    assert_ended(s, OAR_OK);
    assert_ended(none, OAR_OK);
    assert_int_equal(in, 4);
}

static void messages_to_oneself_are_like_others(void **state)
{
    block_ranks *t = *state;
    unsigned char data[3000] = { 8 }, got[3000] = { 0 };
    oar_transfer s = message(1, 5, data, sizeof data);
    oar_transfer r = from_any(got, sizeof got);

    send_message(t, 1, &s);
    assert_false(s.done);
    receive_message(t, 1, &r);
    assert_ended(s, OAR_OK);
    assert_ended(r, OAR_OK);
    assert_memory_equal(got, data, sizeof got);
}

static void one_rank_alone_needs_no_transport(void **state)
{
    oari_chunk_transport none = { .lanes = LANES, .mixed = 1 };
    unsigned char data[3000] = { 8 }, got[3000] = { 0 };
    oar_transfer s = message(0, 5, data, sizeof data);
    oar_transfer r = from_any(got, sizeof got);
    oari_chunk_link *link = NULL;

    assert_int_equal(oari_chunk_link_create(&none, 0, 1, EAGER, &link), OAR_OK);
    assert_int_equal(oari_chunk_link_recv(link, &r), OAR_OK);
    assert_int_equal(oari_chunk_link_send(link, &s), OAR_OK);
    assert_int_equal(oari_chunk_link_progress(link), OAR_OK);
    assert_ended(s, OAR_OK);
    assert_ended(r, OAR_OK);
    assert_memory_equal(got, data, sizeof got);
    oari_chunk_link_destroy(link);
}

/* ---- memory -------------------------------------------------------------- */

/* While no rank receives, pushes end with the credit; the rest is offered, and
 * nothing is lost. */
static void a_flood_is_bounded_and_arrives(void **state)
{
    block_ranks *t = *state;
    enum { FLOOD = 400000 };
    unsigned char data[EAGER] = { 0 }, got[EAGER];
    oar_transfer *offered = NULL, *s = calloc(FLOOD, sizeof *s);
    int pushed = 0;

    oari_chunk_link_peek(t->link[1], -1, 0, ANY_TAG, NULL);
    while (offered == NULL) {
        assert_true(pushed < FLOOD);
        memcpy(data, &pushed, sizeof pushed);
        s[pushed] = message(1, 1, data, sizeof data);
        send_message(t, 0, &s[pushed]);
        if (!s[pushed].done)
            offered = &s[pushed];
        else
            pushed++;
        deliver_one(t);
        look(t);
    }
    assert_true(pushed > 1000);
    for (int i = 0; i <= pushed; i++) {
        oar_transfer r = message(0, 1, got, sizeof got);
        int value;
        receive_message(t, 1, &r);
        if (i == pushed)
            settle(t);
        assert_ended(r, OAR_OK);
        memcpy(&value, got, sizeof value);
        assert_int_equal(value, i);
    }
    assert_ended(*offered, OAR_OK);
    free(s);
}

/* A sender that never hears anything else is told of its credit in time. */
static void credit_comes_back_to_a_rank_that_only_sends(void **state)
{
    block_ranks *t = *state;
    unsigned char data[EAGER] = { 0 }, got[EAGER];
    int offered = 0;

    for (int i = 0; i < 300000; i++) {
        oar_transfer r = message(0, 1, got, sizeof got);
        oar_transfer s = message(1, 1, data, sizeof data);
        receive_message(t, 1, &r);
        send_message(t, 0, &s);
        offered += !s.done;
        while (!s.done || !r.done) {
            deliver_one(t);
            look(t);
        }
    }
    assert_true(offered <= 1); /* the first to find the credit known spent */
}

/* ---- the end ------------------------------------------------------------- */

static void an_abort_ends_everything_and_lets_go_of_buffers(void **state)
{
    block_ranks *t = *state;
    unsigned char data[3000] = { 0 }, got[3000] = { 0 };
    oar_transfer s[3] = { message(1, 1, data, sizeof data),
                          message(2, 1, data, sizeof data),
                          message(0, 1, data, sizeof data) };
    oar_transfer r[3] = { message(0, 1, got, sizeof got),
                          message(2, 9, got, sizeof got),
                          from_any(got, sizeof got) };

    for (int i = 0; i < 3; i++)
        send_message(t, 0, &s[i]);
    receive_message(t, 1, &r[0]);
    receive_message(t, 0, &r[1]);
    for (int i = 0; i < 20 && t->link[0] != NULL; i++) {
        int data_way = 0;
        for (int k = 0; k < t->puts; k++)
            data_way += t->put[k].chunk->lane != 0;
        if (data_way)
            break; /* the data of the first is under way */
        deliver_one(t);
        look(t);
    }
    oari_chunk_link_abort(t->link[0], OAR_E_ABORTED);
    oari_chunk_link_abort(t->link[0], OAR_E_TIMEOUT);
    receive_message(t, 0, &r[2]);
    for (int i = 0; i < 3; i++)
        assert_ended(s[i], OAR_E_ABORTED);
    assert_ended(r[1], OAR_E_ABORTED);
    assert_ended(r[2], OAR_E_ABORTED);
    for (int k = 0; k < t->puts; k++)
        assert_true(t->put[k].from != 0 || t->put[k].chunk->lane == 0);
    assert_false(r[0].done); /* another rank's */
    oari_chunk_link_abort(t->link[1], OAR_E_PEER);
    assert_ended(r[0], OAR_E_PEER);
    assert_int_equal(oari_chunk_link_progress(t->link[0]), OAR_OK);
}

static void a_transport_that_fails_fails_the_call(void **state)
{
    block_ranks *t = *state;
    unsigned char data[3000] = { 0 }, got[3000];
    oar_transfer s = message(1, 1, data, sizeof data);
    oar_transfer r = message(0, 1, got, sizeof got);

    send_message(t, 0, &s);
    receive_message(t, 1, &r);
    t->fail_puts = 1;
    deliver_one(t); /* the offer; its answer cannot be sent */
    assert_int_equal(oari_chunk_link_progress(t->link[1]), OAR_E_SYSTEM);
    assert_int_equal(oari_chunk_link_send(t->link[2], &s), OAR_E_SYSTEM);
    oari_chunk_link_abort(t->link[0], OAR_E_ABORTED);
    oari_chunk_link_abort(t->link[1], OAR_E_ABORTED);
    assert_true(r.done && s.done);
}

static void what_is_put_counts_as_leaving_until_it_is_there(void **state)
{
    block_ranks *t = *state;
    int value = 1;
    oar_transfer s = message(1, 1, &value, sizeof value);

    send_message(t, 0, &s);
    assert_ended(s, OAR_OK); /* a copy of it */
    settle(t);
    assert_int_equal(oari_chunk_link_leaving(t->link[0]),
                     1); /* no inbox there */
    oari_chunk_link_peek(t->link[1], -1, 0, ANY_TAG, NULL);
    settle(t);
    assert_int_equal(oari_chunk_link_leaving(t->link[0]), 0);
}

/* What a transport cannot let go of is never freed under it. */
static void memory_that_the_transport_still_uses_stays(void **state)
{
    block_ranks *t = *state;
    int value = 1;
    oar_transfer s = message(1, 1, &value, sizeof value);

    send_message(t, 0, &s);
    oari_chunk_link_peek(t->link[0], -1, 0, ANY_TAG, NULL);
    t->no_drop = 1;
    oari_chunk_link_destroy(t->link[0]);
    t->link[0] = NULL;
    assert_int_equal(t->kept_count, t->mixed ? 2 : RANKS);
    for (int i = 0; i < t->kept_count; i++) {
        *(volatile char *)t->kept[i]->data = 1; /* asan would tell */
        oari_free(t->kept[i]);
    }
}

static oar_status make_and_drop(void *arg)
{
    block_ranks *t = arg;
    oari_chunk_transport transport_ops = { put,   get, drop, &t->rank_of[0],
                                           LANES, 0 };
    oari_chunk_link *link = NULL;
    oar_status status =
        oari_chunk_link_create(&transport_ops, 0, RANKS, EAGER, &link);

    oari_chunk_link_destroy(link);
    return status;
}

static void a_creation_that_fails_leaves_nothing(void **state)
{
    fail_each_allocation(make_and_drop, *state);
}

/* ---- both kinds of inboxes ----------------------------------------------- */

static int set_up(void **state)
{
    static block_ranks t;

    open_ranks(&t, 0);
    *state = &t;
    return 0;
}

static int set_up_mixed(void **state)
{
    static block_ranks t;

    open_ranks(&t, 1);
    *state = &t;
    return 0;
}

static int tear_down(void **state)
{
    close_ranks(*state);
    return 0;
}

#define OVER(set, fn)                 \
    {                                 \
#fn, fn, set, tear_down, NULL \
    }
#define EACH(fn)                                           \
    OVER(set_up, fn),                                      \
    {                                                      \
#fn "_one_gate", fn, set_up_mixed, tear_down, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(every_size_arrives_whichever_side_is_first),
        EACH(messages_of_a_pair_and_tag_come_in_the_order_sent),
        EACH(any_source_and_any_tag_take_what_came_first),
        EACH(a_probe_sees_what_waits_and_leaves_it),
        EACH(a_wrong_size_fails_on_both_sides_and_the_next_succeeds),
        EACH(a_synchronous_send_waits_for_its_receive),
        EACH(messages_to_oneself_are_like_others),
        OVER(set_up, one_rank_alone_needs_no_transport),
        EACH(a_flood_is_bounded_and_arrives),
        EACH(credit_comes_back_to_a_rank_that_only_sends),
        EACH(an_abort_ends_everything_and_lets_go_of_buffers),
        EACH(a_transport_that_fails_fails_the_call),
        EACH(what_is_put_counts_as_leaving_until_it_is_there),
        EACH(memory_that_the_transport_still_uses_stays),
        OVER(set_up, a_creation_that_fails_leaves_nothing),
    };

    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
