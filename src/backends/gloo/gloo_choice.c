/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_choice: which of Gloo's algorithms a group uses. Rank 0's environment
 * decides, so that all ranks do the same; if it is wrong, all ranks report it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"

typedef struct kind_setting {
    const char *variable;
    gloo_algorithm standard;
} kind_setting;

/* reduce_scatter is planned: Gloo's second generation has none. */
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
} algorithms[] = {
#define X(algorithm, kind, name) [algorithm] = { kind, name },
    GLOO_ALGORITHM_LIST(X)
#undef X
};

static const char threads_variable[] = "OARSONG_GLOO_THREADS";

/* ---- the environment ----------------------------------------------------- */

static oar_status find_algorithm(oar_coll kind, const char *name,
                                 gloo_algorithm *algorithm)
{
    char names[160];
    size_t used = 0;

    *algorithm = GLOO_PLANNED;
    if (strcmp(name, "planned") == 0)
        return OAR_OK;
    for (int a = 0; a < GLOO_PLANNED; a++) {
        if (algorithms[a].kind != kind)
            continue;
        if (strcmp(algorithms[a].name, name) == 0) {
            *algorithm = (gloo_algorithm)a;
            return OAR_OK;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s, ",
                                 algorithms[a].name);
    }
    snprintf(names + used, sizeof names - used, "planned");
    return oar_backend_fail(OAR_E_ARG, "%s=%s is not one of: %s",
                            settings[kind].variable, name, names);
}

static oar_status read_workers(int *workers)
{
    const char *text = getenv(threads_variable);
    char *end;
    long number;

    *workers = 1;
    if (text == NULL || *text == 0)
        return OAR_OK;
    number = strtol(text, &end, 10);
    if (*end != 0 || number < 1 || number > GLOO_WORKERS_MAX)
        return oar_backend_fail(OAR_E_ARG, "%s=%s is not a number from 1 to %d",
                                threads_variable, text, GLOO_WORKERS_MAX);
    *workers = (int)number;
    return OAR_OK;
}

static oar_status read_environment(gloo_choice *choice)
{
    for (int kind = 0; kind < OAR_COLL_COUNT; kind++) {
        const kind_setting *setting = &settings[kind];
        const char *name =
            setting->variable != NULL ? getenv(setting->variable) : NULL;

        choice->algorithm[kind] =
            setting->variable != NULL ? setting->standard : GLOO_PLANNED;
        if (name != NULL && *name != 0)
            OARI_TRY(
                find_algorithm((oar_coll)kind, name, &choice->algorithm[kind]));
    }
    return read_workers(&choice->workers);
}

/* ---- agreeing ------------------------------------------------------------ */

/* What rank 0 puts into the store: a choice, or an error. */
typedef struct published_choice {
    uint32_t magic;
    int32_t status;
    gloo_choice choice;
    char text[400];
} published_choice;

enum { CHOICE_MAGIC = 0x474c4f32 };

static oar_status read_choice(const oar_backend_env *env, const char *key,
                              published_choice *p)
{
    void *value;
    size_t bytes;

    OARI_TRY(oar_store_get(env->store, key, env->timeout_ms, &value, &bytes));
    if (bytes == sizeof *p)
        memcpy(p, value, sizeof *p);
    oar_free(value);
    if (p->magic != CHOICE_MAGIC)
        return oar_backend_fail(OAR_E_MISMATCH,
                                "rank 0's gloo backend is another version");
    p->text[sizeof p->text - 1] = 0;
    return OAR_OK;
}

oar_status gloo_choice_agree(const oar_backend_env *env, const char *prefix,
                             gloo_choice *choice)
{
    char key[OAR_STORE_KEY_MAX];
    published_choice p = { 0 };

    snprintf(key, sizeof key, "%s/choice", prefix);
    if (env->rank == 0) {
        p.magic = CHOICE_MAGIC;
        p.status = (int32_t)read_environment(&p.choice);
        if (p.status != OAR_OK)
            snprintf(p.text, sizeof p.text, "%s", oar_last_error_text());
        OARI_TRY(oar_store_set(env->store, key, &p, sizeof p));
    } else {
        OARI_TRY(read_choice(env, key, &p));
    }
    if (p.status != OAR_OK)
        return oar_backend_fail((oar_status)p.status, "%s%s",
                                env->rank == 0 ? "" : "rank 0: ", p.text);
    *choice = p.choice;
    return OAR_OK;
}
