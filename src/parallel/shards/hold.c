/* SPDX-License-Identifier: Apache-2.0 */
/* hold: where whole arrays are held, and which ranks share that memory.
 *
 *            whole arrays are in            a rank gathers with
 *   MAPPED   one window of all ranks        nobody
 *   HOST     a window on each host          the ranks with its index on their
 *                                           hosts
 *   OWN      memory of each rank            all ranks
 *
 * Of arrays on a GPU, MAPPED is memory of the GPU that all ranks map, and HOST
 * a window of the only host, from which each rank copies units to its GPU.
 *
 * Arrays that are always whole (`resident`) are in one window, or in memory of
 * this rank; others are in buffers while they are whole.
 */
#include "base/alloc.h"
#include "base/status.h"
#include "parallel/shards/shards.h"

/* ---- where arrays are held ----------------------------------------------- */

/* The ranks on this rank's host, and its number among them. */
typedef struct host_view {
    int hosts, local_ranks, local_rank, host;
    int even; /* as many ranks on each host */
} host_view;

static host_view look_at_hosts(const oar_group *group)
{
    int ranks = oar_group_size(group), me = oar_group_rank(group);
    host_view v = { .host = oar_group_host(group, me), .even = 1 };

    for (int r = 0; r < ranks; r++) {
        int host = oar_group_host(group, r);

        if (host + 1 > v.hosts)
            v.hosts = host + 1;
        v.local_ranks += host == v.host;
        v.local_rank += host == v.host && r < me;
    }
    for (int h = 0; h < v.hosts; h++) {
        int there = 0;
        for (int r = 0; r < ranks; r++)
            there += oar_group_host(group, r) == h;
        v.even &= there * v.hosts == ranks;
    }
    return v;
}

static oar_status choose_gpu_hold(oar_shards *s, const host_view *v)
{
    oar_hold *hold = &s->opts.hold;
    int maps = v->hosts == 1 && s->one_gpu;

    if (*hold == OAR_HOLD_AUTO)
        *hold = maps ? OAR_HOLD_MAPPED : OAR_HOLD_OWN;
    if (*hold == OAR_HOLD_MAPPED && !maps)
        return oari_fail(OAR_E_DEVICE,
                         "OAR_HOLD_MAPPED of arrays on GPUs needs all ranks on "
                         "one GPU; they are on several");
    if (*hold == OAR_HOLD_HOST && v->hosts > 1)
        return oari_fail(OAR_E_DEVICE,
                         "OAR_HOLD_HOST of arrays on GPUs needs all ranks on "
                         "one host; they are on %d",
                         v->hosts);
    if (*hold == OAR_HOLD_HOST && s->opts.stage != OAR_ZERO_STAGE_3)
        return oari_fail(OAR_E_DEVICE,
                         "OAR_HOLD_HOST of arrays on GPUs needs "
                         "OAR_ZERO_STAGE_3: with other stages they are always "
                         "whole on the GPU");
    return OAR_OK;
}

static oar_status choose_hold(oar_shards *s, const host_view *v)
{
    oar_hold *hold = &s->opts.hold;

    if (*hold == OAR_HOLD_AUTO)
        *hold = v->hosts == 1                   ? OAR_HOLD_MAPPED
                : v->even && v->local_ranks > 1 ? OAR_HOLD_HOST
                                                : OAR_HOLD_OWN;
    if (*hold == OAR_HOLD_MAPPED && v->hosts > 1)
        return oari_fail(
            OAR_E_UNSUPPORTED,
            "OAR_HOLD_MAPPED needs all ranks on one host; they are "
            "on %d",
            v->hosts);
    if (*hold == OAR_HOLD_HOST && !v->even)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "OAR_HOLD_HOST needs as many ranks on each host; %d "
                         "ranks are on %d hosts unevenly",
                         s->ranks, v->hosts);
    return OAR_OK;
}

/* Numbers the parts. With one copy a host: by the index of a rank on its host,
 * then by host. */
oar_status oari_hold_number_parts(oar_shards *s, const oar_group *group)
{
    host_view v = look_at_hosts(group);
    int by_host = s->opts.hold == OAR_HOLD_HOST;

    s->part_of = oari_alloc((size_t)s->ranks, sizeof *s->part_of);
    if (s->part_of == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < s->ranks; r++) {
        int host = oar_group_host(group, r), index = 0;

        for (int q = 0; q < r; q++)
            index += oar_group_host(group, q) == host;
        s->part_of[r] = by_host ? index * v.hosts + host : r;
    }
    s->part = s->part_of[oar_group_rank(group)];
    s->gather_first = by_host ? v.local_rank * v.hosts : 0;
    return OAR_OK;
}

static oar_status make_groups(oar_shards *s, oar_group *group,
                              const host_view *v)
{
    int own = s->opts.hold == OAR_HOLD_OWN;
    int gather = own ? s->ranks : s->opts.hold == OAR_HOLD_HOST ? v->hosts : 1;

    OARI_TRY(oar_group_split(group, 0, s->part, &s->reduce));
    if (gather > 1)
        OARI_TRY(oar_group_split(group, own ? 0 : v->local_rank, s->part,
                                 &s->gather_group));
    if (!own && v->local_ranks > 1)
        OARI_TRY(oar_group_split(group, v->host, v->local_rank, &s->local));
    return OAR_OK;
}

void oari_hold_close(oar_shards *s)
{
    oar_group_destroy(s->reduce);
    oar_group_destroy(s->gather_group);
    oar_group_destroy(s->local);
    oar_group_destroy(s->replicas);
    s->reduce = s->gather_group = s->local = s->replicas = NULL;
}

oar_status oari_hold_choose(oar_shards *s, const oar_group *group)
{
    host_view hosts = look_at_hosts(group);

    OARI_TRY(oari_shards_on_gpu(s) ? choose_gpu_hold(s, &hosts)
                                   : choose_hold(s, &hosts));
    s->resident =
        s->opts.hold == OAR_HOLD_MAPPED || s->opts.stage != OAR_ZERO_STAGE_3;
    return OAR_OK;
}

/* ---- memory -------------------------------------------------------------- */

static void release_window(void *window)
{
    oar_window_release(window);
}

/* Makes the whole arrays a view of a window that the ranks of the host have in
 * common. */
static oar_status map_whole(oar_shards *s)
{
    size_t bytes = s->whole_bytes != 0 ? s->whole_bytes : 1;

    OARI_TRY(oar_window_create(s->local != NULL ? s->local : s->reduce, bytes,
                               NULL, &s->window));
    OARI_TRY(oar_storage_create_detached(bytes, 0, &s->whole));
    OARI_TRY(oar_storage_attach(s->whole, oar_window_data(s->window),
                                release_window, s->window));
    oar_window_retain(s->window); /* the storage's */
    return OAR_OK;
}

/* Makes the memory that ranks have in common; a collective. */
static oar_status make_common_memory(oar_shards *s)
{
    oari_whole_buffer *largest;
    size_t bytes = 0;

    if (s->resident)
        return map_whole(s);
    for (int f = 0; f < s->flats; f++) {
        size_t flat = s->flat[f].count * oar_dtype_size(s->flat[f].whole_dtype);
        bytes = bytes < flat ? flat : bytes;
    }
    OARI_TRY(oari_buffer_take(&s->arrays_pool, bytes, &largest));
    return oari_buffer_give_back(&s->arrays_pool, largest);
}

oar_status oari_hold_open(oar_shards *s, oar_group *group)
{
    host_view hosts = look_at_hosts(group);

    OARI_TRY(make_groups(s, group, &hosts));
    if (s->opts.hold == OAR_HOLD_OWN)
        return OAR_OK;
    if (oari_shards_on_gpu(s))
        return s->opts.hold == OAR_HOLD_HOST ? oari_offload_open(s)
                                             : oari_gpu_map_whole(s);
    if (s->opts.hold == OAR_HOLD_HOST)
        s->arrays_pool.local = s->local;
    return make_common_memory(s);
}

/* A rank writes to its own part and, when it gathers, to those of its gather
 * group. The last page of a flat holds nothing else. */
oar_status oari_hold_protect(oar_shards *s)
{
    int first = s->gather_group != NULL ? s->gather_first : s->part;
    int parts = s->gather_group != NULL ? oar_group_size(s->gather_group) : 1;

    if (s->window == NULL || s->offload != NULL)
        return OAR_OK;
    for (int f = 0; f < s->flats; f++) {
        const oari_flat *flat = &s->flat[f];
        size_t size = oar_dtype_size(flat->whole_dtype);
        size_t from = oari_flat_part_first(flat, first) * size;
        size_t to = oari_flat_part_first(flat, first + parts) * size;
        size_t end = f + 1 < s->flats ? flat[1].whole_at : s->whole_bytes;

        OARI_TRY(oar_window_protect(s->window, flat->whole_at, from, 0));
        OARI_TRY(oar_window_protect(s->window, flat->whole_at + to,
                                    end - flat->whole_at - to, 0));
    }
    return OAR_OK;
}
