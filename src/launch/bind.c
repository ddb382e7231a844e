/* SPDX-License-Identifier: Apache-2.0 */
/* bind: cores for ranks. Neighbouring ranks are neighbours in the machine: of
 * the cores this process may use, rank i of n gets the part at i * parts / n.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "launch/launch.h"

#ifdef OARSONG_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#endif

static const char names[] =
    "none, core, socket, numa (node), core-complex or exclusive";

#ifdef OARSONG_HWLOC

static const struct {
    const char *name;
    hwloc_obj_type_t type;
    int exclusive;
} ways[] = {
    { "core", HWLOC_OBJ_CORE, 0 },
    { "socket", HWLOC_OBJ_PACKAGE, 0 },
    { "numa", HWLOC_OBJ_NUMANODE, 0 },
    { "node", HWLOC_OBJ_NUMANODE, 0 },
    { "core-complex", HWLOC_OBJ_L3CACHE, 0 },
    { "exclusive", HWLOC_OBJ_CORE, 1 },
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Gives the cores of the parts from `first` to before `last`. */
static void join_parts(hwloc_topology_t machine, int depth, int first, int last,
                       cpu_set_t *set)
{
    hwloc_bitmap_t cores = hwloc_bitmap_alloc();

    CPU_ZERO(set);
    for (int i = first; cores != NULL && i < last; i++) {
        hwloc_obj_t part = hwloc_get_obj_by_depth(machine, depth, (unsigned)i);
        if (part != NULL)
            hwloc_bitmap_or(cores, cores, part->cpuset);
    }
    if (cores != NULL)
        hwloc_cpuset_to_glibc_sched_affinity(machine, cores, set, sizeof *set);
    hwloc_bitmap_free(cores);
}

static oar_status share_cores(hwloc_topology_t machine, int way, int ranks,
                              cpu_set_t *sets)
{
    int depth = hwloc_get_type_depth(machine, ways[way].type);
    int parts;

    /* A machine may not say which caches its cores share, or be undivided. */
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN ||
        hwloc_get_nbobjs_by_depth(machine, depth) == 0)
        depth = hwloc_get_type_depth(machine, HWLOC_OBJ_MACHINE);
    parts = (int)hwloc_get_nbobjs_by_depth(machine, depth);
    if (ways[way].exclusive && parts < ranks)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%d ranks cannot have cores of their own: there are "
                         "%d",
                         ranks, parts);
    for (int i = 0; i < ranks; i++) {
        int first = parts >= ranks ? i * parts / ranks : i % parts;
        int last = ways[way].exclusive ? (i + 1) * parts / ranks : first + 1;
        join_parts(machine, depth, first, last, &sets[i]);
    }
    return OAR_OK;
}

static oar_status plan_cores(int way, int ranks, cpu_set_t **sets)
{
    hwloc_topology_t machine;
    cpu_set_t *made;
    oar_status status;

    if (hwloc_topology_init(&machine) != 0)
        return oari_fail(OAR_E_NOMEM, "no memory to look at the machine");
#if HWLOC_API_VERSION >= 0x00020500
    hwloc_topology_set_flags(machine,
                             HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                 HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
#endif
    made = oari_alloc((size_t)ranks, sizeof *made);
    if (made == NULL)
        status = OAR_E_NOMEM;
    else if (hwloc_topology_load(machine) != 0)
        status = oari_fail(OAR_E_SYSTEM, "look at the machine's cores");
    else
        status = share_cores(machine, way, ranks, made);
    hwloc_topology_destroy(machine);
    if (status == OAR_OK)
        *sets = made;
    else
        oari_free(made);
    return status;
}

oar_status launch_bind_plan(const char *how, int ranks, cpu_set_t **sets)
{
    *sets = NULL;
    if (how == NULL || strcmp(how, "none") == 0)
        return OAR_OK;
    for (int i = 0; i < WAYS; i++)
        if (strcmp(how, ways[i].name) == 0)
            return plan_cores(i, ranks, sets);
    return oari_fail(OAR_E_ARG, "no binding \"%s\": %s", how, names);
}

#else

oar_status launch_bind_plan(const char *how, int ranks, cpu_set_t **sets)
{
    *sets = NULL;
    if (how == NULL || strcmp(how, "none") == 0)
        return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "ranks cannot be bound (%s): this Oarsong was built "
                     "without hwloc",
                     names);
}

#endif
