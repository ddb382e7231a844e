/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_rendezvous: what ranks exchange through the store before NCCL is called.
 *
 * Every rank writes a description of itself; rank 0 reads them all, checks that
 * they fit, and publishes the terms: NCCL's id, or an error, with the same text
 * for all. That is a few requests for each rank. NCCL itself would notice two
 * ranks on one GPU, or versions that differ, late and with a text of its own,
 * and ids that differ never.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/nccl/nccl_engine.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group.h"

/* CUdevice_attribute: the compute capability. */
enum { MAJOR = 75, MINOR = 76 };
enum { FP8_CAPABILITY = 90, FP8_VERSION = 22400, SLICE_MS = 100 };

/* What a rank writes. Processes may have different builds of the library, so
 * its size is checked. */
typedef struct rank_info {
    uint8_t uuid[16];
    uint64_t id_hash; /* 0: the caller gave none */
    int32_t version;  /* NCCL's */
    int32_t device, capability;
    char host[64];
} rank_info;

typedef struct published_terms {
    int32_t status;
    int32_t peer; /* the rank that an error is about; -1: none */
    int32_t has_fp8;
    oari_nccl_id id;
    char text[400];
} published_terms;

typedef struct rendezvous {
    const oari_nccl *lib;
    const oari_open *with;
    int64_t deadline_ns;
    int64_t times; /* how often this name was used */
} rendezvous;

/* ---- keys ---------------------------------------------------------------- */

typedef struct key {
    char text[OAR_STORE_KEY_MAX];
} key;

static key info_key(const rendezvous *m, int rank)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/nccl/%lld/%d", m->with->env.name,
             (long long)m->times, rank);
    return k;
}

static key terms_key(const rendezvous *m)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/nccl/%lld/id", m->with->env.name,
             (long long)m->times);
    return k;
}

static oar_status read_key(const rendezvous *m, key k, int64_t timeout_ms,
                           void *into, size_t bytes)
{
    void *value;
    size_t got;

    OARI_TRY(
        oar_store_get(m->with->env.store, k.text, timeout_ms, &value, &got));
    if (got == bytes)
        memcpy(into, value, bytes);
    oar_free(value);
    if (got != bytes)
        return oar_backend_fail(OAR_E_MISMATCH,
                                "\"%s\" has %zu bytes, not %zu: another "
                                "version of this library?",
                                k.text, got, bytes);
    return OAR_OK;
}

/* Waits for the key, until the deadline or until a rank is gone. After that it
 * reads once more: the rank may have written before it went. */
static oar_status await_key(const rendezvous *m, key k, void *into,
                            size_t bytes)
{
    const oar_group *group = m->with->group;
    int lost = -1;

    for (;;) {
        int left = oari_deadline_left_ms(m->deadline_ns);
        int slice = left < 0 || left > SLICE_MS ? SLICE_MS : left;
        oar_status status = read_key(m, k, lost < 0 ? slice : 0, into, bytes);

        if (status != OAR_E_TIMEOUT || left == 0)
            return status;
        if (lost >= 0)
            return oari_about(
                lost, oar_backend_fail(OAR_E_PEER,
                                       "rank %d was gone before the NCCL "
                                       "communicator of group \"%s\" was made",
                                       lost, m->with->env.name));
        lost =
            oari_nccl_find_lost(group, m->with->env.rank, m->with->env.ranks);
    }
}

/* ---- ranks that have not come -------------------------------------------- */

/* Sets the last error to which ranks are missing; returns OAR_E_TIMEOUT. */
static oar_status fail_missing(const rendezvous *m)
{
    char list[200] = "";
    size_t used = 0;
    int missing = 0, first = 0;
    rank_info ignored;

    for (int r = 0; r < m->with->env.ranks; r++) {
        if (r == m->with->env.rank || read_key(m, info_key(m, r), 0, &ignored,
                                               sizeof ignored) != OAR_E_TIMEOUT)
            continue;
        if (missing++ == 0)
            first = r;
        if (m->with->missing != NULL)
            m->with->missing[r] = 1;
        if (used < sizeof list - 16)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d",
                                     missing > 1 ? ", " : "", r);
    }
    if (missing == 0) /* all have come, but rank 0 has not published */
        snprintf(list, sizeof list, "0");
    return oari_about(
        first, oar_backend_fail(OAR_E_TIMEOUT,
                                "rank%s %s did not come to the NCCL "
                                "communicator of group \"%s\" in %lld ms",
                                missing > 1 ? "s" : "", list, m->with->env.name,
                                (long long)m->with->env.timeout_ms));
}

/* ---- describing a rank --------------------------------------------------- */

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = UINT64_C(1469598103934665603);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash | 1; /* never 0, which is "none" */
}

static oar_status describe_rank(const rendezvous *m, rank_info *c)
{
    oari_cu_uuid uuid;
    oari_cu_device device;
    const oari_cuda *cu;
    int major = 0, minor = 0;
    oar_status status;

    *c = (rank_info){ .version = m->lib->version,
                      .device = m->with->env.device };
    if (m->with->env.id != NULL)
        c->id_hash = hash_of(m->with->env.id, sizeof(oari_nccl_id));
    gethostname(c->host, sizeof c->host - 1);
    OARI_TRY(oari_cuda_enter(m->with->env.device, &cu));
    status = oari_cuda_check(cu->DeviceGet(&device, m->with->env.device),
                             "find the device");
    if (status == OAR_OK)
        status = oari_cuda_check(cu->DeviceGetUuid(&uuid, device),
                                 "ask a device for its name");
    if (status == OAR_OK) {
        cu->DeviceGetAttribute(&major, MAJOR, device);
        cu->DeviceGetAttribute(&minor, MINOR, device);
        memcpy(c->uuid, uuid.bytes, sizeof c->uuid);
        c->capability = major * 10 + minor;
    }
    oari_cuda_leave();
    return status;
}

/* ---- rank 0 -------------------------------------------------------------- */

static oar_status check_pair(const rank_info *row, int a, int b)
{
    if (memcmp(row[a].uuid, row[b].uuid, sizeof row[a].uuid) == 0)
        return oar_backend_fail(
            OAR_E_UNSUPPORTED,
            "ranks %d and %d share one GPU (cuda:%d on %s), which NCCL "
            "refuses: use the backend \"ipc\", which is made for that "
            "(\"hybrid\" takes it by itself), or give every rank a GPU of its "
            "own",
            a, b, row[a].device, row[a].host);
    if (row[a].version != row[b].version)
        return oar_backend_fail(OAR_E_MISMATCH,
                                "rank %d has NCCL %s, rank %d NCCL %s: all "
                                "ranks need the same",
                                a, oari_nccl_version(row[a].version).text, b,
                                oari_nccl_version(row[b].version).text);
    if ((row[a].id_hash == 0) != (row[b].id_hash == 0))
        return oar_backend_fail(
            OAR_E_MISMATCH, "rank %d was given an NCCL id and rank %d none",
            row[a].id_hash != 0 ? a : b, row[a].id_hash != 0 ? b : a);
    if (row[a].id_hash != row[b].id_hash)
        return oar_backend_fail(OAR_E_MISMATCH,
                                "ranks %d and %d were given different NCCL ids",
                                a, b);
    return OAR_OK;
}

static oar_status decide_terms(const rendezvous *m, rank_info *row,
                               published_terms *t)
{
    int ranks = m->with->env.ranks;

    for (int r = 1; r < ranks; r++) {
        oar_status status =
            await_key(m, info_key(m, r), &row[r], sizeof row[r]);

        if (status == OAR_E_TIMEOUT)
            return fail_missing(m);
        if (status != OAR_OK)
            return status;
        row[r].host[sizeof row[r].host - 1] = 0;
    }
    for (int b = 1; b < ranks; b++)
        for (int a = 0; a < b; a++)
            OARI_TRY(check_pair(row, a, b));
    t->has_fp8 = row[0].version >= FP8_VERSION;
    for (int r = 0; r < ranks; r++)
        t->has_fp8 &= row[r].capability >= FP8_CAPABILITY;
    if (m->with->env.id == NULL)
        return oari_nccl_check(m->lib, m->lib->GetUniqueId(&t->id), NULL,
                               "making a unique id");
    memcpy(&t->id, m->with->env.id, sizeof t->id);
    return OAR_OK;
}

/* Publishes an error as well, so that no rank waits for terms that do not come.
 */
static oar_status publish_terms(const rendezvous *m, const rank_info *mine,
                                published_terms *v)
{
    rank_info *row = oari_alloc((size_t)m->with->env.ranks, sizeof *row);
    oar_error record;
    oar_status status;

    if (row == NULL)
        return OAR_E_NOMEM;
    row[0] = *mine;
    status = decide_terms(m, row, v);
    oari_free(row);
    v->status = (int32_t)status;
    if (status == OAR_OK)
        return m->with->env.ranks == 1
                   ? OAR_OK
                   : oar_store_set(m->with->env.store, terms_key(m).text, v,
                                   sizeof *v);
    record = *oar_last_error();
    v->peer = record.peer;
    snprintf(v->text, sizeof v->text, "%.399s", record.text);
    if (m->with->env.ranks > 1)
        oar_store_set(m->with->env.store, terms_key(m).text, v, sizeof *v);
    return oari_fail_with(&record);
}

/* ---- the other ranks ----------------------------------------------------- */

static oar_status read_terms(const rendezvous *m, published_terms *v)
{
    oar_status status;

    status = await_key(m, terms_key(m), v, sizeof *v);
    if (status == OAR_E_TIMEOUT)
        return fail_missing(m);
    if (status != OAR_OK || v->status == OAR_OK)
        return status;
    v->text[sizeof v->text - 1] = 0;
    status = oar_backend_fail((oar_status)v->status, "%s", v->text);
    return v->peer >= 0 ? oari_about(v->peer, status) : status;
}

oar_status oari_nccl_rendezvous(const oari_nccl *lib, const oari_open *with,
                                int64_t deadline_ns, oari_nccl_terms *terms)
{
    rendezvous m = { .lib = lib, .with = with, .deadline_ns = deadline_ns };
    published_terms v = { 0 };
    char joins[OAR_STORE_KEY_MAX];
    rank_info mine;

    OARI_TRY(describe_rank(&m, &mine));
    if (with->env.ranks > 1) {
        /* A name can be used again: the joins of a rank are counted. */
        snprintf(joins, sizeof joins, "%s/nccl/joins/%d", with->env.name,
                 with->env.rank);
        OARI_TRY(oar_store_add(with->env.store, joins, 1, &m.times));
        OARI_TRY(oar_store_set(with->env.store,
                               info_key(&m, with->env.rank).text, &mine,
                               sizeof mine));
    }
    if (with->env.rank == 0)
        OARI_TRY(publish_terms(&m, &mine, &v));
    else
        OARI_TRY(read_terms(&m, &v));
    terms->id = v.id;
    terms->has_fp8 = v.has_fp8;
    return OAR_OK;
}
