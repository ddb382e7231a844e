/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_choice: which of Gloo's algorithms a group uses. Rank 0's environment
 * decides, so that all ranks do the same; what is wrong with it, all ranks say.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"

typedef struct kind_setting {
    const char *variable;
    gloo_way normally;
} kind_setting;

/* reduce_scatter is planned: Gloo's own may write over what it still sends. */
static const kind_setting settings[OAR_COLL_COUNT] = {
    [OAR_COLL_BARRIER] = { "OARSONG_GLOO_BARRIER", GLOO_BARRIER_TREE },
    [OAR_COLL_BROADCAST] = { "OARSONG_GLOO_BROADCAST", GLOO_BROADCAST_TREE },
    [OAR_COLL_ALL_REDUCE] = { "OARSONG_GLOO_ALLREDUCE", GLOO_ALLREDUCE_RING },
    [OAR_COLL_REDUCE] = { "OARSONG_GLOO_REDUCE", GLOO_REDUCE_RING },
    [OAR_COLL_GATHER] = { "OARSONG_GLOO_GATHER", GLOO_GATHER_DIRECT },
    [OAR_COLL_SCATTER] = { "OARSONG_GLOO_SCATTER", GLOO_SCATTER_DIRECT },
    [OAR_COLL_ALL_GATHER] = { "OARSONG_GLOO_ALLGATHER", GLOO_ALLGATHER_RING },
    [OAR_COLL_REDUCE_SCATTER] = { "OARSONG_GLOO_REDUCE_SCATTER", GLOO_PLANNED },
    [OAR_COLL_ALL_TO_ALL] = { "OARSONG_GLOO_ALLTOALL", GLOO_ALLTOALL_PAIRS },
};

static const struct {
    oar_coll kind;
    const char *name;
} ways[] = {
#define X(way, kind, name) [way] = { kind, name },
    GLOO_WAY_LIST(X)
#undef X
};

static const char lanes_variable[] = "OARSONG_GLOO_THREADS";

/* ---- the environment ----------------------------------------------------- */

static void list_names(oar_coll kind, char *text, size_t room)
{
    size_t used = 0;

    for (int way = 0; way < GLOO_PLANNED; way++)
        if (ways[way].kind == kind)
            used += (size_t)snprintf(text + used, room - used, "%s, ",
                                     ways[way].name);
    snprintf(text + used, room - used, "planned");
}

static oar_status find_way(oar_coll kind, const char *name, gloo_way *way)
{
    char names[160];

    for (int w = 0; w < GLOO_PLANNED; w++)
        if (ways[w].kind == kind && strcmp(ways[w].name, name) == 0) {
            *way = (gloo_way)w;
            return OAR_OK;
        }
    *way = GLOO_PLANNED;
    if (strcmp(name, "planned") == 0)
        return OAR_OK;
    list_names(kind, names, sizeof names);
    return oar_backend_fail(OAR_E_ARG, "%s=%s is not one of: %s",
                            settings[kind].variable, name, names);
}

static oar_status read_way(oar_coll kind, gloo_way *way)
{
    const char *variable = settings[kind].variable;
    const char *name = variable != NULL ? getenv(variable) : NULL;

    *way = variable != NULL ? settings[kind].normally : GLOO_PLANNED;
    if (name == NULL || *name == 0)
        return OAR_OK;
    return find_way(kind, name, way);
}

static oar_status read_lanes(int *lanes)
{
    const char *text = getenv(lanes_variable);
    char *end;
    long number;

    *lanes = 1;
    if (text == NULL || *text == 0)
        return OAR_OK;
    number = strtol(text, &end, 10);
    if (*end != 0 || number < 1 || number > GLOO_LANES)
        return oar_backend_fail(OAR_E_ARG, "%s=%s is not a number from 1 to %d",
                                lanes_variable, text, GLOO_LANES);
    *lanes = (int)number;
    return OAR_OK;
}

static oar_status read_environment(gloo_choice *choice)
{
    for (int kind = 0; kind < OAR_COLL_COUNT; kind++)
        OARI_TRY(read_way((oar_coll)kind, &choice->way[kind]));
    return read_lanes(&choice->lanes);
}

/* ---- telling ------------------------------------------------------------- */

/* What lies in the store: a choice, or why there is none. */
typedef struct verdict {
    uint32_t magic;
    int32_t status;
    gloo_choice choice;
    char text[400];
} verdict;

enum { VERDICT = 0x474c4f31 };

static oar_status decide(const oar_backend_env *env, const char *key,
                         verdict *v)
{
    v->magic = VERDICT;
    v->status = (int32_t)read_environment(&v->choice);
    if (v->status != OAR_OK)
        snprintf(v->text, sizeof v->text, "%s", oar_last_error_text());
    return oar_store_set(env->store, key, v, sizeof *v);
}

static oar_status hear(const oar_backend_env *env, const char *key, verdict *v)
{
    void *value;
    size_t bytes;

    OARI_TRY(oar_store_get(env->store, key, env->timeout_ms, &value, &bytes));
    if (bytes == sizeof *v)
        memcpy(v, value, sizeof *v);
    oar_free(value);
    if (v->magic != VERDICT)
        return oar_backend_fail(OAR_E_MISMATCH,
                                "rank 0's gloo backend is another version");
    v->text[sizeof v->text - 1] = 0;
    return OAR_OK;
}

oar_status gloo_agree(const oar_backend_env *env, const char *prefix,
                      gloo_choice *choice)
{
    char key[OAR_STORE_KEY_MAX];
    verdict v = { 0 };

    snprintf(key, sizeof key, "%s/choice", prefix);
    OARI_TRY(env->rank == 0 ? decide(env, key, &v) : hear(env, key, &v));
    if (v.status != OAR_OK)
        return oar_backend_fail((oar_status)v.status, "%s%s",
                                env->rank == 0 ? "" : "rank 0: ", v.text);
    *choice = v.choice;
    return OAR_OK;
}
