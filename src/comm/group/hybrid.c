/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid: one backend for host memory and one for device memory, by name:
 *     cpu:native,cuda:nccl      what "nccl" is short for
 *     cpu:mpi,cuda:ipc          any pair
 *     cpu:native,cuda:auto      what "hybrid" is short for: nccl, but ipc where
 *                               ranks share a GPU, which NCCL refuses
 *
 * Host memory goes the way it goes without the second half. Which engine does
 * an operation on device memory is decided in gpu_check.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "base/status.h"
#include "comm/group/group.h"
#include "device/cuda/cuda.h"
#include "comm/fault/fault.h"

enum { HALF_BYTES = 200 };

/* ---- names --------------------------------------------------------------- */

typedef struct halves {
    char cpu[HALF_BYTES], cuda[HALF_BYTES]; /* "": not given */
} halves;

static oar_status fail_on_name(const char *name)
{
    return oari_fail(OAR_E_ARG,
                     "backend \"%s\": \"cpu:NAME,cuda:NAME\" is meant", name);
}

/* Reads "cpu:NAME,cuda:NAME", or one half of it. */
static oar_status read_halves(const char *name, halves *h)
{
    memset(h, 0, sizeof *h);
    for (const char *half = name;;) {
        size_t length = strcspn(half, ",");
        char *to = strncmp(half, "cpu:", 4) == 0    ? h->cpu
                   : strncmp(half, "cuda:", 5) == 0 ? h->cuda
                                                    : NULL;
        size_t skip = to == h->cpu ? 4 : 5;

        if (to == NULL || to[0] != 0 || length <= skip ||
            length - skip >= HALF_BYTES)
            return fail_on_name(name);
        memcpy(to, half + skip, length - skip);
        if (half[length] == 0)
            return OAR_OK;
        half += length + 1;
    }
}

/* ---- choosing ------------------------------------------------------------ */

static oar_status choose_gpu(const char *name, oari_choice *choice)
{
    oar_backend_caps caps;

    if (strcmp(name, "auto") == 0) {
        OARI_TRY(oar_device_available(OAR_CUDA));
        choice->any_gpu = 1;
        return OAR_OK;
    }
    OARI_TRY(oari_backend_probe(name, &choice->gpu, &caps));
    if ((caps.devices & 1u << OAR_CUDA) != 0)
        return OAR_OK;
    return oari_fail(
        OAR_E_UNSUPPORTED,
        "backend \"%s\" has no engine for GPUs: nccl, ipc and auto "
        "have",
        name);
}

static oar_status choose_pair(const char *name, int ranks, oari_choice *choice)
{
    const oar_backend_ops *found;
    oar_backend_caps caps;
    halves h;

    OARI_TRY(read_halves(name, &h));
    if (h.cpu[0] == 0)
        OARI_TRY(oari_backend_find(NULL, ranks, &choice->host));
    else {
        OARI_TRY(oari_backend_probe(h.cpu, &found, &caps));
        if (oari_backend_is_for_gpus(&caps))
            return oari_fail(OAR_E_UNSUPPORTED,
                             "backend \"%s\" has no way for host memory",
                             h.cpu);
        choice->host = found;
    }
    return h.cuda[0] != 0 ? choose_gpu(h.cuda, choice) : OAR_OK;
}

static int is_pair(const char *name)
{
    return strncmp(name, "cpu:", 4) == 0 || strncmp(name, "cuda:", 5) == 0;
}

oar_status oari_backend_choose(const char *name, int ranks, oari_choice *choice)
{
    const oar_backend_ops *found;
    oar_backend_caps caps;

    *choice = (oari_choice){ .name = name };
    if (name == NULL)
        return oari_backend_find(NULL, ranks, &choice->host);
    if (strcmp(name, "hybrid") == 0)
        return choose_pair("cuda:auto", ranks, choice);
    if (is_pair(name))
        return choose_pair(name, ranks, choice);
    OARI_TRY(oari_backend_probe(name, &found, &caps));
    if (!oari_backend_is_for_gpus(&caps)) {
        choice->host = found;
        return OAR_OK;
    }
    choice->gpu = found;
    return oari_backend_find(NULL, ranks, &choice->host);
}

oar_status oar_backend_available(const char *name, oar_backend_caps *caps)
{
    const oar_backend_ops *ops;
    oar_backend_caps found;
    oari_choice choice;

    if (name == NULL)
        return oari_fail(OAR_E_ARG, "backend_available without a name");
    if (strchr(name, ':') == NULL) {
        OARI_TRY(oari_backend_probe(name, &ops, &found));
    } else {
        if (!is_pair(name))
            return fail_on_name(name);
        OARI_TRY(choose_pair(name, 2, &choice));
        found = oar_backend_caps_init();
        found.devices = 1u << OAR_CPU;
        if (choice.gpu != NULL || choice.any_gpu)
            found.devices |= 1u << OAR_CUDA;
    }
    if (caps == NULL)
        return OAR_OK;
    return oari_struct_give(caps, &found, sizeof found, "caps");
}

/* ---- auto: what the ranks' GPUs allow ------------------------------------ */

/* What a rank says of its GPU. It goes through the store as text. */
typedef struct card {
    int host, nccl, ipc;
    char uuid[33];
} card;

static oar_status read_card(oar_group *g, const char *prefix, int rank,
                            int64_t rendezvous_ms, card *c)
{
    char key[OARI_NAME_MAX + 64], text[96] = "";
    void *found;
    size_t bytes;

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    OARI_TRY(oar_store_get(g->store, key, rendezvous_ms, &found, &bytes));
    if (bytes < sizeof text)
        memcpy(text, found, bytes);
    oar_free(found);
    if (sscanf(text, "%d %d %d %32s", &c->host, &c->nccl, &c->ipc, c->uuid) ==
        4)
        return OAR_OK;
    return oari_fail(OAR_E_DATA, "rank %d describes its GPU as \"%.80s\"", rank,
                     text);
}

/* Writes what this rank says of its GPU, and reads what all ranks say. */
static oar_status gather_cards(oar_group *g, int64_t rendezvous_ms, card *all)
{
    char prefix[OARI_NAME_MAX + 32], key[OARI_NAME_MAX + 64], text[96];
    int64_t times;
    card *mine = &all[g->rank];
    oar_device_properties p = oar_device_properties_init();
    const int *host =
        g->in_tree->hosts != NULL ? g->in_tree->hosts(g->self) : NULL;

    OARI_TRY(oar_device_describe(oar_device_of(OAR_CUDA, g->device), &p));
    mine->host = host != NULL ? host[g->rank] : 0;
    mine->nccl = oar_backend_available("nccl", NULL) == OAR_OK;
    mine->ipc = oar_backend_available("ipc", NULL) == OAR_OK;
    for (int i = 0; i < 16; i++)
        snprintf(mine->uuid + 2 * i, 3, "%02x", p.uuid[i]);
    if (g->ranks == 1)
        return OAR_OK;
    snprintf(key, sizeof key, "%s/gpu/%d", g->name, g->rank);
    OARI_TRY(oar_store_add(g->store, key, 1, &times));
    snprintf(prefix, sizeof prefix, "%s/gpu/%" PRId64, g->name, times);
    snprintf(key, sizeof key, "%s/%d", prefix, g->rank);
    snprintf(text, sizeof text, "%d %d %d %s", mine->host, mine->nccl,
             mine->ipc, mine->uuid);
    OARI_TRY(oar_store_set(g->store, key, text, strlen(text)));
    for (int r = 0; r < g->ranks; r++)
        if (r != g->rank)
            OARI_TRY(read_card(g, prefix, r, rendezvous_ms, &all[r]));
    return OAR_OK;
}

static oar_status choose_for_all(const oar_group *g, const card *all,
                                 const char **name)
{
    int shared = 0, nccl = 1, ipc = 1;

    for (int r = 0; r < g->ranks; r++) {
        nccl &= all[r].nccl;
        ipc &= all[r].ipc && all[r].host == all[0].host;
        for (int s = 0; s < r; s++)
            shared |= all[r].host == all[s].host &&
                      strcmp(all[r].uuid, all[s].uuid) == 0;
    }
    *name = nccl && !shared ? "nccl" : ipc ? "ipc" : NULL;
    if (*name != NULL)
        return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "no engine fits the GPUs of group \"%s\": nccl %s; ipc %s",
                     g->name,
                     !nccl    ? "is not available on every rank"
                     : shared ? "refuses two ranks on one GPU"
                              : "would",
                     "is not available on every rank, or they are on several "
                     "hosts (`oarsong info` says why)");
}

oar_status oari_hybrid_settle(oar_group *group, int64_t rendezvous_ms,
                              const oar_backend_ops **ops)
{
    card *all = oari_alloc((size_t)group->ranks, sizeof *all);
    oar_backend_caps caps;
    const char *name = NULL;
    oar_status status;

    if (all == NULL)
        return OAR_E_NOMEM;
    status = gather_cards(group, rendezvous_ms, all);
    if (status == OAR_OK)
        status = choose_for_all(group, all, &name);
    oari_free(all);
    return status == OAR_OK ? oari_backend_probe(name, ops, &caps) : status;
}

/* ---- the name itself ----------------------------------------------------- */

static oar_status probe_hybrid(oar_backend_caps *caps)
{
    OARI_TRY(oar_device_available(OAR_CUDA));
    caps->devices = 1u << OAR_CPU | 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS;
    caps->note = "cpu:native,cuda:auto; cpu:NAME,cuda:NAME for any other pair";
    return OAR_OK;
}

const oari_backend oari_backend_hybrid = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "hybrid",
    .ops.probe = probe_hybrid,
};
