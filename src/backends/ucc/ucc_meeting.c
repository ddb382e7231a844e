/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_meeting: the all-gather that UCC asks for while a group opens, over our
 * store.
 *
 * Rank 0 reads the others' parts, one key each, and puts the row where all read
 * it: 2n requests for n ranks, not n squared. UCC calls `test` over and over
 * and does other things in between; each call looks for one key and waits for
 * it a few milliseconds at most. Every call looks at the deadline of the open,
 * so that UCC, which has none, gives up when we do.
 */
#include <stdio.h>
#include <string.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"

enum {
    PIECE = 1 << 19,    /* bytes of the row in one value */
    LOOK_MS = 5,        /* how long a test may wait for a key */
    PART_MAX = 1 << 20, /* bytes of one rank */
};

/* One all-gather under way. */
typedef struct gathering {
    oari_ucc_meeting *meeting;
    unsigned number;
    unsigned char *row; /* NULL: none, only a pause */
    size_t part_bytes, row_bytes;
    int next;    /* rank 0: whose part comes next */
    size_t have; /* bytes of the row: read, or on rank 0 written */
} gathering;

static int64_t deadline_of(int64_t timeout_ms)
{
    return timeout_ms < 0 ? OARI_NEVER
                          : oari_now_ns() + timeout_ms * (int64_t)1000000;
}

void oari_ucc_meeting_begin(oari_ucc_meeting *meeting,
                            const oar_backend_env *env)
{
    snprintf(meeting->name, sizeof meeting->name, "%s", env->name);
    meeting->store = env->store;
    meeting->rank = env->rank;
    meeting->ranks = env->ranks;
    meeting->timeout_ms = env->timeout_ms;
    meeting->deadline_ns = deadline_of(env->timeout_ms);
    meeting->state = OARI_UCC_OPENING;
}

void oari_ucc_meeting_end(oari_ucc_meeting *meeting)
{
    meeting->state = OARI_UCC_OPEN;
}

/* ---- keys ---------------------------------------------------------------- */

typedef struct key {
    char text[OAR_STORE_KEY_MAX];
} key;

static key key_of(const gathering *g, const char *what, size_t index)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/ucc/%u/%s%zu", g->meeting->name,
             g->number, what, index);
    return k;
}

/* Our own error says more than UCC's will; it is the thread's last error until
 * open returns it. */
static ucc_status_t broke(gathering *g, oar_status status)
{
    g->meeting->status = status;
    return status == OAR_E_TIMEOUT ? UCC_ERR_TIMED_OUT : UCC_ERR_NO_MESSAGE;
}

static ucc_status_t too_late(gathering *g, int rank)
{
    return broke(g, oar_backend_fail(
                        OAR_E_TIMEOUT,
                        "rank %d did not come to UCC's exchange %u of group "
                        "\"%s\" in %lld ms",
                        rank, g->number, g->meeting->name,
                        (long long)g->meeting->timeout_ms));
}

/* Copies the value of a key to `into` if it is there by now. whose: who is to
 * put it there. */
static ucc_status_t fetch(gathering *g, key k, int whose, void *into,
                          size_t bytes)
{
    void *value;
    size_t got;
    oar_status status =
        oar_store_get(g->meeting->store, k.text, LOOK_MS, &value, &got);

    if (status == OAR_E_TIMEOUT)
        return oari_now_ns() < g->meeting->deadline_ns ? UCC_INPROGRESS
                                                       : too_late(g, whose);
    if (status != OAR_OK)
        return broke(g, status);
    if (got == bytes)
        memcpy(into, value, bytes);
    oar_free(value);
    if (got != bytes)
        return broke(g, oar_backend_fail(OAR_E_MISMATCH,
                                         "rank %d exchanges %zu bytes with "
                                         "UCC's peers, this rank %zu: another "
                                         "version of UCC?",
                                         whose, got, bytes));
    return UCC_OK;
}

/* ---- rank 0 -------------------------------------------------------------- */

static ucc_status_t publish(gathering *g)
{
    if (g->meeting->ranks == 1)
        return UCC_OK;
    for (; g->have < g->row_bytes; g->have += PIECE) {
        size_t left = g->row_bytes - g->have;
        oar_status status = oar_store_set(
            g->meeting->store, key_of(g, "row", g->have / PIECE).text,
            g->row + g->have, left < PIECE ? left : PIECE);
        if (status != OAR_OK)
            return broke(g, status);
    }
    return UCC_OK;
}

static ucc_status_t collect(gathering *g)
{
    if (g->next < g->meeting->ranks) {
        ucc_status_t status =
            fetch(g, key_of(g, "", (size_t)g->next), g->next,
                  g->row + (size_t)g->next * g->part_bytes, g->part_bytes);
        if (status != UCC_OK)
            return status;
        g->next++;
    }
    return g->next < g->meeting->ranks ? UCC_INPROGRESS : publish(g);
}

/* ---- the others ---------------------------------------------------------- */

static ucc_status_t read_row(gathering *g)
{
    size_t left = g->row_bytes - g->have;
    size_t bytes = left < PIECE ? left : PIECE;

    if (left > 0) {
        ucc_status_t status = fetch(g, key_of(g, "row", g->have / PIECE), 0,
                                    g->row + g->have, bytes);
        if (status != UCC_OK)
            return status;
        g->have += bytes;
    }
    return g->have < g->row_bytes ? UCC_INPROGRESS : UCC_OK;
}

/* ---- as UCC calls it ----------------------------------------------------- */

static ucc_status_t begin(gathering *g, const void *part)
{
    oari_ucc_meeting *m = g->meeting;
    oar_status status;

    if (m->rank == 0) {
        memcpy(g->row, part, g->part_bytes);
        return UCC_OK;
    }
    status = oar_store_set(m->store, key_of(g, "", (size_t)m->rank).text, part,
                           g->part_bytes);
    return status == OAR_OK ? UCC_OK : broke(g, status);
}

/* UCC asks for one more, as a barrier, when a context is destroyed: between
 * ending its connections and closing them. By then there is no store any more,
 * and a peer that is gone would never come; so it is a pause instead, in which
 * UCC moves things on, where a connection can be reset under a peer. */
static ucc_status_t linger(oari_ucc_meeting *m, void **request)
{
    gathering *g;

    if (m->linger_ms == 0)
        return UCC_ERR_NOT_SUPPORTED;
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return UCC_ERR_NO_MEMORY;
    g->meeting = m;
    m->deadline_ns = deadline_of(m->linger_ms);
    *request = g;
    return UCC_OK;
}

static ucc_status_t start(void *part, void *row, size_t bytes, void *info,
                          void **request)
{
    oari_ucc_meeting *m = info;
    gathering *g;
    ucc_status_t status;

    if (m->state == OARI_UCC_ENDING)
        return linger(m, request);
    if (m->state != OARI_UCC_OPENING)
        return UCC_ERR_TIMED_OUT;
    if (bytes > PART_MAX)
        return UCC_ERR_NO_RESOURCE;
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return UCC_ERR_NO_MEMORY;
    *g = (gathering){ .meeting = m,
                      .number = m->number++,
                      .row = row,
                      .part_bytes = bytes,
                      .row_bytes = bytes * (size_t)m->ranks,
                      .next = 1 };
    status = begin(g, part);
    if (status == UCC_OK)
        *request = g;
    else
        oari_free(g);
    return status;
}

static ucc_status_t test(void *request)
{
    gathering *g = request;

    if (g->row == NULL)
        return oari_now_ns() < g->meeting->deadline_ns ? UCC_INPROGRESS
                                                       : UCC_OK;
    if (g->meeting->state != OARI_UCC_OPENING)
        return UCC_ERR_TIMED_OUT;
    return g->meeting->rank == 0 ? collect(g) : read_row(g);
}

static ucc_status_t end(void *request)
{
    oari_free(request);
    return UCC_OK;
}

ucc_oob_coll_t oari_ucc_meeting_calls(oari_ucc_meeting *meeting)
{
    return (ucc_oob_coll_t){ .allgather = start,
                             .req_test = test,
                             .req_free = end,
                             .coll_info = meeting,
                             .n_oob_eps = (uint32_t)meeting->ranks,
                             .oob_ep = (uint32_t)meeting->rank };
}

oar_status oari_ucc_meeting_exchange(oari_ucc_meeting *meeting, void *part,
                                     void *row, size_t bytes)
{
    void *request;
    ucc_status_t status = start(part, row, bytes, meeting, &request);

    if (status == UCC_OK) {
        while ((status = test(request)) == UCC_INPROGRESS)
            ;
        end(request);
    }
    if (status == UCC_OK)
        return OAR_OK;
    return meeting->status != OAR_OK ? meeting->status : OAR_E_NOMEM;
}
