/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_oob: UCC's out-of-band all-gather, over our store, while a group opens.
 *
 * Rank 0 reads the others' parts, one key each, and writes the row for all to
 * read: 2n requests for n ranks, not n squared. UCC calls `req_test` again and
 * again and does other things in between; each call reads one key and waits for
 * it a few milliseconds at most. Every call checks the deadline of the open:
 * UCC has none.
 */
#include <stdio.h>
#include <string.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"

enum {
    CHUNK = 1 << 19,    /* bytes of the row in one value */
    TEST_MS = 5,        /* how long a test may wait for a key */
    PART_MAX = 1 << 20, /* bytes of one rank */
};

/* One all-gather in flight. */
typedef struct allgather {
    oari_ucc_oob *oob;
    unsigned number;
    unsigned char *row; /* NULL: no exchange, only a pause */
    size_t part_bytes, row_bytes;
    int next;    /* rank 0: whose part is read next */
    size_t have; /* bytes of the row: read, or on rank 0 written */
} allgather;

void oari_ucc_oob_init(oari_ucc_oob *oob, const oar_backend_env *env)
{
    snprintf(oob->name, sizeof oob->name, "%s", env->name);
    oob->store = env->store;
    oob->rank = env->rank;
    oob->ranks = env->ranks;
    oob->timeout_ms = env->timeout_ms;
    oob->deadline_ns = oari_deadline(env->timeout_ms);
    oob->state = OARI_UCC_OPENING;
}

/* ---- keys ---------------------------------------------------------------- */

typedef struct key {
    char text[OAR_STORE_KEY_MAX];
} key;

static key key_of(const allgather *g, const char *what, size_t index)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/ucc/%u/%s%zu", g->oob->name, g->number,
             what, index);
    return k;
}

/* Keeps our own error, which says more than UCC's: it is the thread's last
 * error until open returns it. */
static ucc_status_t fail_allgather(allgather *g, oar_status status)
{
    g->oob->status = status;
    return status == OAR_E_TIMEOUT ? UCC_ERR_TIMED_OUT : UCC_ERR_NO_MESSAGE;
}

/* Copies the value of a key to `into` if rank `whose` has written it. */
static ucc_status_t read_key(allgather *g, key k, int whose, void *into,
                             size_t bytes)
{
    void *value;
    size_t got;
    oar_status status =
        oar_store_get(g->oob->store, k.text, TEST_MS, &value, &got);

    if (status == OAR_E_TIMEOUT && oari_now_ns() < g->oob->deadline_ns)
        return UCC_INPROGRESS;
    if (status == OAR_E_TIMEOUT)
        status = oar_backend_fail(
            OAR_E_TIMEOUT,
            "rank %d did not join UCC's exchange %u of group \"%s\" in %lld "
            "ms",
            whose, g->number, g->oob->name, (long long)g->oob->timeout_ms);
    if (status != OAR_OK)
        return fail_allgather(g, status);
    if (got == bytes)
        memcpy(into, value, bytes);
    oar_free(value);
    if (got != bytes)
        return fail_allgather(
            g, oar_backend_fail(OAR_E_MISMATCH,
                                "rank %d exchanges %zu bytes with "
                                "UCC's peers, this rank %zu: another "
                                "version of UCC?",
                                whose, got, bytes));
    return UCC_OK;
}

/* ---- rank 0 -------------------------------------------------------------- */

/* Reads the next part; after the last one writes the row. */
static ucc_status_t collect_row(allgather *g)
{
    if (g->next < g->oob->ranks) {
        ucc_status_t status =
            read_key(g, key_of(g, "", (size_t)g->next), g->next,
                     g->row + (size_t)g->next * g->part_bytes, g->part_bytes);
        if (status != UCC_OK)
            return status;
        g->next++;
    }
    if (g->next < g->oob->ranks)
        return UCC_INPROGRESS;
    for (; g->oob->ranks > 1 && g->have < g->row_bytes; g->have += CHUNK) {
        size_t left = g->row_bytes - g->have;
        oar_status status =
            oar_store_set(g->oob->store, key_of(g, "row", g->have / CHUNK).text,
                          g->row + g->have, left < CHUNK ? left : CHUNK);
        if (status != OAR_OK)
            return fail_allgather(g, status);
    }
    return UCC_OK;
}

/* ---- the others ---------------------------------------------------------- */

static ucc_status_t read_row(allgather *g)
{
    size_t left = g->row_bytes - g->have;
    size_t bytes = left < CHUNK ? left : CHUNK;

    if (left > 0) {
        ucc_status_t status = read_key(g, key_of(g, "row", g->have / CHUNK), 0,
                                       g->row + g->have, bytes);
        if (status != UCC_OK)
            return status;
        g->have += bytes;
    }
    return g->have < g->row_bytes ? UCC_INPROGRESS : UCC_OK;
}

/* ---- what UCC calls ------------------------------------------------------ */

/* When a context is destroyed, UCC calls one more all-gather as a barrier,
 * between ending its connections and closing them. There is no store then, and
 * a peer that is gone would never come. So it is a pause, in which UCC goes on,
 * if there are connections that could be reset under a peer. */
static ucc_status_t start_pause(oari_ucc_oob *m, void **request)
{
    allgather *g;

    if (m->linger_ms == 0)
        return UCC_ERR_NOT_SUPPORTED;
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return UCC_ERR_NO_MEMORY;
    g->oob = m;
    m->deadline_ns = oari_deadline(m->linger_ms);
    *request = g;
    return UCC_OK;
}

static ucc_status_t start_allgather(void *part, void *row, size_t bytes,
                                    void *info, void **request)
{
    oari_ucc_oob *m = info;
    allgather *g;
    oar_status status;

    if (m->state == OARI_UCC_ENDING)
        return start_pause(m, request);
    if (m->state != OARI_UCC_OPENING)
        return UCC_ERR_TIMED_OUT;
    if (bytes > PART_MAX)
        return UCC_ERR_NO_RESOURCE;
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return UCC_ERR_NO_MEMORY;
    *g = (allgather){ .oob = m,
                      .number = m->number++,
                      .row = row,
                      .part_bytes = bytes,
                      .row_bytes = bytes * (size_t)m->ranks,
                      .next = 1 };
    if (m->rank == 0) {
        memcpy(g->row, part, g->part_bytes);
        *request = g;
        return UCC_OK;
    }
    status = oar_store_set(m->store, key_of(g, "", (size_t)m->rank).text, part,
                           g->part_bytes);
    if (status != OAR_OK) {
        ucc_status_t failed = fail_allgather(g, status);
        oari_free(g);
        return failed;
    }
    *request = g;
    return UCC_OK;
}

static ucc_status_t test_allgather(void *request)
{
    allgather *g = request;

    if (g->row == NULL)
        return oari_now_ns() < g->oob->deadline_ns ? UCC_INPROGRESS : UCC_OK;
    if (g->oob->state != OARI_UCC_OPENING)
        return UCC_ERR_TIMED_OUT;
    return g->oob->rank == 0 ? collect_row(g) : read_row(g);
}

static ucc_status_t free_allgather(void *request)
{
    oari_free(request);
    return UCC_OK;
}

ucc_oob_coll_t oari_ucc_oob_calls(oari_ucc_oob *oob)
{
    return (ucc_oob_coll_t){ .allgather = start_allgather,
                             .req_test = test_allgather,
                             .req_free = free_allgather,
                             .coll_info = oob,
                             .n_oob_eps = (uint32_t)oob->ranks,
                             .oob_ep = (uint32_t)oob->rank };
}

oar_status oari_ucc_oob_exchange(oari_ucc_oob *oob, void *part, void *row,
                                 size_t bytes)
{
    void *request;
    ucc_status_t status = start_allgather(part, row, bytes, oob, &request);

    if (status == UCC_OK) {
        while ((status = test_allgather(request)) == UCC_INPROGRESS)
            ;
        free_allgather(request);
    }
    if (status == UCC_OK)
        return OAR_OK;
    return oob->status != OAR_OK ? oob->status : OAR_E_NOMEM;
}
