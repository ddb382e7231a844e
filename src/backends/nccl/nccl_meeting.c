/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_meeting: what ranks tell each other through the store before NCCL is
 * called.
 *
 * Every rank leaves a card; rank 0 reads them all, sees whether they go
 * together, and leaves its verdict: NCCL's id, or why not, in the same words
 * for everyone. A few requests for each rank. NCCL itself would find two ranks
 * on one GPU, or versions that differ, late and in words of its own, and ids
 * that differ never.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/nccl/nccl_engine.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group.h"

/* CUdevice_attribute: of the compute capability. */
enum { MAJOR = 75, MINOR = 76 };
enum { FP8_CAPABILITY = 90, FP8_VERSION = 22400, SLICE_MS = 100 };

/* What a rank leaves. It goes between processes of one build of the library or
 * of several: its size is checked. */
typedef struct card {
    uint8_t uuid[16];
    uint64_t id_hash; /* 0: the caller gave none */
    int32_t version;  /* NCCL's */
    int32_t device, capability;
    char host[64];
} card;

typedef struct verdict {
    int32_t status;
    int32_t peer; /* whom a refusal is about; -1: nobody */
    int32_t has_fp8;
    oari_nccl_id id;
    char text[400];
} verdict;

typedef struct meeting {
    const oari_nccl *lib;
    const oari_open *with;
    int64_t deadline_ns;
    int64_t times; /* that this name was used */
} meeting;

/* ---- keys ---------------------------------------------------------------- */

typedef struct key {
    char text[OAR_STORE_KEY_MAX];
} key;

static key card_key(const meeting *m, int rank)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/nccl/%lld/%d", m->with->env.name,
             (long long)m->times, rank);
    return k;
}

static key verdict_key(const meeting *m)
{
    key k;

    snprintf(k.text, sizeof k.text, "%s/nccl/%lld/id", m->with->env.name,
             (long long)m->times);
    return k;
}

/* A name can be used again: which time this is, by the joins of a rank. */
static oar_status leave_card(meeting *m, const card *mine)
{
    char text[OAR_STORE_KEY_MAX];

    snprintf(text, sizeof text, "%s/nccl/joins/%d", m->with->env.name,
             m->with->env.rank);
    OARI_TRY(oar_store_add(m->with->env.store, text, 1, &m->times));
    return oar_store_set(m->with->env.store,
                         card_key(m, m->with->env.rank).text, mine,
                         sizeof *mine);
}

/* Whatever lies there is somebody else's word: its size is looked at first. */
static oar_status fetch(const meeting *m, key k, int64_t timeout_ms, void *into,
                        size_t bytes)
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

/* The same with patience: until the deadline, or until a rank is gone that has
 * left no word (what it left it had put there before it went). */
static oar_status await(const meeting *m, key k, void *into, size_t bytes)
{
    const oar_group *group = m->with->group;
    int lost = -1;

    for (;;) {
        int left = oari_deadline_left_ms(m->deadline_ns);
        int slice = left < 0 || left > SLICE_MS ? SLICE_MS : left;
        oar_status status = fetch(m, k, lost < 0 ? slice : 0, into, bytes);

        if (status != OAR_E_TIMEOUT || left == 0)
            return status;
        if (lost >= 0)
            return oari_about(
                lost, oar_backend_fail(OAR_E_PEER,
                                       "rank %d was gone before the NCCL "
                                       "communicator of group \"%s\" was made",
                                       lost, m->with->env.name));
        lost = oari_nccl_lost(group, m->with->env.rank, m->with->env.ranks);
    }
}

/* ---- who has not come ---------------------------------------------------- */

static int is_missing(const meeting *m, int rank)
{
    card ignored;

    return rank != m->with->env.rank && fetch(m, card_key(m, rank), 0, &ignored,
                                              sizeof ignored) == OAR_E_TIMEOUT;
}

static void note_missing(const meeting *m, int rank)
{
    if (m->with->missing != NULL)
        m->with->missing[rank] = 1;
}

/* Says who is not there, and returns OAR_E_TIMEOUT. */
static oar_status nobody_else_came(const meeting *m)
{
    char list[200] = "";
    size_t used = 0;
    int missing = 0, first = 0;

    for (int r = 0; r < m->with->env.ranks; r++) {
        if (!is_missing(m, r))
            continue;
        if (missing++ == 0)
            first = r;
        note_missing(m, r);
        if (used < sizeof list - 16)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d",
                                     missing > 1 ? ", " : "", r);
    }
    if (missing == 0) /* they have, but rank 0 has not answered */
        snprintf(list, sizeof list, "0");
    return oari_about(
        first, oar_backend_fail(OAR_E_TIMEOUT,
                                "rank%s %s did not come to the NCCL "
                                "communicator of group \"%s\" in %lld ms",
                                missing > 1 ? "s" : "", list, m->with->env.name,
                                (long long)m->with->env.timeout_ms));
}

/* ---- the cards ----------------------------------------------------------- */

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = UINT64_C(1469598103934665603);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash | 1; /* never "none" */
}

static oar_status read_device(const meeting *m, card *c)
{
    oari_cu_uuid uuid;
    oari_cu_device device;
    const oari_cuda *cu;
    int major = 0, minor = 0;
    oar_status status;

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

static oar_status write_card(const meeting *m, card *c)
{
    *c = (card){ .version = m->lib->version, .device = m->with->env.device };
    if (m->with->env.id != NULL)
        c->id_hash = hash_of(m->with->env.id, sizeof(oari_nccl_id));
    gethostname(c->host, sizeof c->host - 1);
    return read_device(m, c);
}

/* ---- what rank 0 sees in them -------------------------------------------- */

static oar_status refuse_sharing(const card *a, int first, int second)
{
    return oar_backend_fail(
        OAR_E_UNSUPPORTED,
        "ranks %d and %d share one GPU (cuda:%d on %s), which NCCL refuses: "
        "use the backend \"ipc\", which is made for that (\"hybrid\" takes it "
        "by itself), or give every rank a GPU of its own",
        first, second, a->device, a->host);
}

static oar_status check_pair(const card *row, int a, int b)
{
    if (memcmp(row[a].uuid, row[b].uuid, sizeof row[a].uuid) == 0)
        return refuse_sharing(&row[a], a, b);
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

static oar_status check_row(card *row, int ranks)
{
    for (int r = 0; r < ranks; r++)
        row[r].host[sizeof row[r].host - 1] = 0;
    for (int b = 1; b < ranks; b++)
        for (int a = 0; a < b; a++)
            OARI_TRY(check_pair(row, a, b));
    return OAR_OK;
}

static int all_have_fp8(const card *row, int ranks)
{
    int all = row[0].version >= FP8_VERSION;

    for (int r = 0; r < ranks; r++)
        all &= row[r].capability >= FP8_CAPABILITY;
    return all;
}

static oar_status choose_id(const meeting *m, oari_nccl_id *id)
{
    if (m->with->env.id != NULL) {
        memcpy(id, m->with->env.id, sizeof *id);
        return OAR_OK;
    }
    return oari_nccl_check(m->lib, m->lib->GetUniqueId(id), NULL,
                           "making a unique id");
}

static oar_status collect(const meeting *m, card *row)
{
    for (int r = 1; r < m->with->env.ranks; r++) {
        oar_status status = await(m, card_key(m, r), &row[r], sizeof row[r]);

        if (status == OAR_E_TIMEOUT)
            return nobody_else_came(m);
        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

static oar_status judge(const meeting *m, card *row, verdict *v)
{
    OARI_TRY(collect(m, row));
    OARI_TRY(check_row(row, m->with->env.ranks));
    v->has_fp8 = all_have_fp8(row, m->with->env.ranks);
    return choose_id(m, &v->id);
}

/* A failure is told as well, so that nobody waits for what will not come. */
static oar_status preside(const meeting *m, const card *mine, verdict *v)
{
    card *row = oari_alloc((size_t)m->with->env.ranks, sizeof *row);
    oar_error record;
    oar_status status;

    if (row == NULL)
        return OAR_E_NOMEM;
    row[0] = *mine;
    status = judge(m, row, v);
    oari_free(row);
    v->status = (int32_t)status;
    if (status == OAR_OK)
        return m->with->env.ranks == 1
                   ? OAR_OK
                   : oar_store_set(m->with->env.store, verdict_key(m).text, v,
                                   sizeof *v);
    record = *oar_last_error();
    v->peer = record.peer;
    snprintf(v->text, sizeof v->text, "%.399s", record.text);
    if (m->with->env.ranks > 1)
        oar_store_set(m->with->env.store, verdict_key(m).text, v, sizeof *v);
    return oari_fail_with(&record);
}

/* ---- the others ---------------------------------------------------------- */

static oar_status hear(const meeting *m, verdict *v)
{
    oar_status status;

    status = await(m, verdict_key(m), v, sizeof *v);
    if (status == OAR_E_TIMEOUT)
        return nobody_else_came(m);
    if (status != OAR_OK || v->status == OAR_OK)
        return status;
    v->text[sizeof v->text - 1] = 0;
    status = oar_backend_fail((oar_status)v->status, "%s", v->text);
    return v->peer >= 0 ? oari_about(v->peer, status) : status;
}

oar_status oari_nccl_meet(const oari_nccl *lib, const oari_open *with,
                          int64_t deadline_ns, oari_nccl_terms *terms)
{
    meeting m = { .lib = lib, .with = with, .deadline_ns = deadline_ns };
    verdict v = { 0 };
    card mine;

    OARI_TRY(write_card(&m, &mine));
    if (with->env.ranks > 1)
        OARI_TRY(leave_card(&m, &mine));
    if (with->env.rank == 0)
        OARI_TRY(preside(&m, &mine, &v));
    else
        OARI_TRY(hear(&m, &v));
    terms->id = v.id;
    terms->has_fp8 = v.has_fp8;
    return OAR_OK;
}
