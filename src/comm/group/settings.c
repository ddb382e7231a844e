/* SPDX-License-Identifier: Apache-2.0 */
/* settings: the options of a group, what the environment says, and our own
 * defaults, in that order. Settings that decide how operations run must be the
 * same on all ranks: those of rank 0 count, and travel through the store as a
 * line of text. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "plan/choose.h"
#include "comm/group/group.h"
#include "comm/rendezvous/bootstrap.h"
#include "link/rendezvous.h"
#include "net/secret.h"

enum { ALGORITHM_MAX = 250 };

/* Sizes in bytes, as options, environment and agreed text have them. */
static const struct {
    const char *name, *env;
    size_t at, least, most, usual;
} sizes[] = {
    { "small_bytes", "OARSONG_SMALL_BYTES",
      offsetof(oar_group_opts, small_bytes), 8, 1 << 20, 512 },
    { "stage_bytes", "OARSONG_STAGE_BYTES",
      offsetof(oar_group_opts, stage_bytes), 64, 64 << 20, 256 << 10 },
    { "eager_bytes", "OARSONG_EAGER_BYTES",
      offsetof(oar_group_opts, eager_bytes), 1, 16 << 20, 64 << 10 },
    { "chunk_bytes", "OARSONG_CHUNK_BYTES",
      offsetof(oar_group_opts, chunk_bytes), 64, 1 << 30, 512 << 10 },
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static size_t *size_in(oar_group_opts *o, int i)
{
    return (size_t *)((char *)o + sizes[i].at);
}

static oar_status settle_size(oar_group_opts *o, int i)
{
    size_t *size = size_in(o, i);
    int64_t found = 0;

    OARI_TRY(oari_env_int(sizes[i].env, (int64_t)sizes[i].least,
                          (int64_t)sizes[i].most, &found));
    if (*size == 0)
        *size = found != 0 ? (size_t)found : sizes[i].usual;
    if (*size >= sizes[i].least && *size <= sizes[i].most)
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s %zu: %zu to %zu", sizes[i].name, *size,
                     sizes[i].least, sizes[i].most);
}

oar_status oari_group_settings(const oar_group_opts *opts, oar_group_opts *o)
{
    OARI_TRY(oari_opts_read(o, sizeof *o, opts));
    OARI_TRY(oari_env_check(oari_launcher_first()));
    for (int i = 0; i < SIZES; i++)
        OARI_TRY(settle_size(o, i));
    if (o->timeout_ms == 0)
        OARI_TRY(oari_env_int("OARSONG_TIMEOUT_MS", -1, INT64_MAX / 2000000,
                              &o->timeout_ms));
    if (o->timeout_ms == 0)
        o->timeout_ms = OARI_DEFAULT_TIMEOUT_MS;
    if (o->stall_ms == 0)
        OARI_TRY(oari_env_int("OARSONG_STALL_MS", -1, INT64_MAX / 2000000,
                              &o->stall_ms));
    if (o->stall_ms == 0)
        o->stall_ms = OARI_DEFAULT_STALL_MS;
    if (o->spin_us == 0)
        OARI_TRY(oari_env_int("OARSONG_SPIN_US", -1, 1000000, &o->spin_us));
    if (o->name != NULL && strlen(o->name) > OARI_NAME_MAX)
        return oari_fail(OAR_E_ARG, "a group name of %zu bytes: at most %d",
                         strlen(o->name), OARI_NAME_MAX);
    if (o->secret != NULL) {
        oari_secret secret;

        OARI_TRY(oari_secret_given(o->secret, &secret));
        oari_secret_forget(&secret);
    }
    if (o->algorithm == NULL)
        o->algorithm = oari_env_text("OARSONG_ALGO");
    if (o->algorithm != NULL && strlen(o->algorithm) > ALGORITHM_MAX)
        return oari_fail(OAR_E_ARG, "an algorithm of %zu bytes",
                         strlen(o->algorithm));
    return OAR_OK;
}

/* ---- agreeing ------------------------------------------------------------ */

/* The numbers among the rules, in the order of their list. */
enum {
#define X(field, name, normal, text) RULE_##field,
    OARI_RULE_LIST(X)
#undef X
        RULES
};

static int64_t *rule_in(oari_rules *rules, int i)
{
    int64_t *const at[] = {
#define X(field, name, normal, text) &rules->field,
        OARI_RULE_LIST(X)
#undef X
    };

    return at[i];
}

oar_status oari_settings_own(const char *text, oar_group_opts *o,
                             char **algorithm)
{
    char *copy = text != NULL ? oari_strdup(text) : NULL;

    if (text != NULL && copy == NULL)
        return OAR_E_NOMEM;
    oari_free(*algorithm);
    o->algorithm = *algorithm = copy;
    return OAR_OK;
}

static oar_status fail_on_text(const char *text)
{
    return oari_fail(OAR_E_DATA, "rank 0's settings are \"%.80s\"", text);
}

/* Reads rank 0's settings. Bytes from the store are checked like a user's. */
static oar_status read_text(const char *text, oar_group_opts *o,
                            char **algorithm, oari_rules *rules)
{
    int64_t rule[RULES];
    int through_host = 0, end = 0;

    for (int i = 0; i < SIZES; i++) {
        int used = 0;

        if (sscanf(text, "%zu %n", size_in(o, i), &used) != 1 || used == 0)
            return fail_on_text(text);
        OARI_TRY(settle_size(o, i));
        text += used;
    }
    for (int i = 0; i < RULES; i++) {
        int used = 0;

        if (sscanf(text, "%" SCNd64 " %n", &rule[i], &used) != 1 || used == 0 ||
            rule[i] < 0 || rule[i] > OARI_RULE_MOST)
            return fail_on_text(text);
        text += used;
    }
    if (sscanf(text, "%d%n", &through_host, &end) != 1 || end == 0 ||
        text[end] != ' ' || strlen(text + end + 1) > ALGORITHM_MAX)
        return fail_on_text(text);
    text += end + 1;
    OARI_TRY(oari_settings_own(*text != 0 ? text : NULL, o, algorithm));
    OARI_TRY(oari_rules_read(rules, o->algorithm));
    for (int i = 0; i < RULES; i++)
        *rule_in(rules, i) = rule[i];
    rules->through_host = through_host == 1;
    return OAR_OK;
}

/* Puts rank 0's settings into the store. */
static oar_status publish_settings(oar_store *store, const char *key,
                                   oar_group_opts *o, oari_rules *rules)
{
    char text[(SIZES + RULES) * 24 + 16 + ALGORITHM_MAX + 1];
    size_t bytes = sizeof text, used = 0;

    OARI_TRY(oari_rules_read(rules, o->algorithm));
    for (int i = 0; i < SIZES; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%zu ", *size_in(o, i));
    for (int i = 0; i < RULES; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%" PRId64 " ",
                                 *rule_in(rules, i));
    snprintf(text + used, bytes - used, "%d %s", rules->through_host,
             o->algorithm != NULL ? o->algorithm : "");
    return oar_store_set(store, key, text, strlen(text));
}

/* A name can be used again: each rank counts its joins, and the count is part
 * of the key. */
oar_status oari_settings_agree(oar_store *store, const char *name, int rank,
                               int ranks, int64_t rendezvous_ms,
                               oar_group_opts *o, char **algorithm,
                               oari_rules *rules)
{
    oari_rendezvous meet = { .store = store,
                             .group = name,
                             .rank = rank,
                             .ranks = ranks,
                             .timeout_ms = rendezvous_ms };
    char key[OARI_NAME_MAX + 32];
    int64_t times;
    void *text;
    size_t bytes;
    oar_status status;

    OARI_TRY(oari_rendezvous_sign(store, name, rank));
    snprintf(key, sizeof key, "%s/agree/%d", name, rank);
    OARI_TRY(oar_store_add(store, key, 1, &times));
    snprintf(key, sizeof key, "%s/settings/%" PRId64, name, times);
    if (rank == 0)
        return publish_settings(store, key, o, rules);
    OARI_TRY(oari_rendezvous_get(&meet, key, 0, oari_deadline(rendezvous_ms),
                                 &text, &bytes));
    status = read_text(text, o, algorithm, rules);
    oar_free(text);
    return status;
}
