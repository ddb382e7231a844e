/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_meet: at which address Gloo's sockets are, and whether they may be.
 *
 * If all ranks share a network stack: loopback. Else the address that the
 * core's own links would use. Gloo neither encrypts nor asks who connects, so
 * between hosts it must be allowed by OARSONG_WIRE=plain.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/gloo/gloo.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group.h"
#include "net/sock.h"

typedef struct stack_note {
    char text[96]; /* the same for ranks that share a network stack */
} stack_note;

static void describe_stack(stack_note *note)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    char boot[48] = "";
    struct stat about = { 0 };

    if (file != NULL) {
        if (fgets(boot, sizeof boot, file) == NULL)
            boot[0] = 0;
        fclose(file);
    }
    boot[strcspn(boot, "\n")] = 0;
    stat("/proc/self/ns/net", &about);
    snprintf(note->text, sizeof note->text, "%s %" PRIu64, boot,
             (uint64_t)about.st_ino);
}

static oar_status read_note(const oar_backend_env *env, const char *prefix,
                            int rank, int64_t deadline, stack_note *note)
{
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    snprintf(key, sizeof key, "%s/stack/%d", prefix, rank);
    OARI_TRY(oar_store_get(env->store, key, oari_deadline_left_ms(deadline),
                           &value, &bytes));
    if (bytes == sizeof *note)
        memcpy(note, value, sizeof *note);
    oar_free(value);
    note->text[sizeof note->text - 1] = 0;
    return OAR_OK;
}

static oar_status is_one_stack(const oar_backend_env *env, const char *prefix,
                               int64_t deadline, int *one)
{
    stack_note mine = { 0 }, other = { 0 };
    char key[OAR_STORE_KEY_MAX];

    describe_stack(&mine);
    snprintf(key, sizeof key, "%s/stack/%d", prefix, env->rank);
    OARI_TRY(oar_store_set(env->store, key, &mine, sizeof mine));
    *one = 1;
    for (int r = 0; r < env->ranks; r++) {
        if (r == env->rank)
            continue;
        OARI_TRY(read_note(env, prefix, r, deadline, &other));
        *one &= strcmp(mine.text, other.text) == 0;
    }
    return OAR_OK;
}

static int is_set(const char *variable)
{
    const char *text = getenv(variable);

    return text != NULL && *text != 0;
}

/* "ip:port" or "[ip]:port" without the port. */
static void cut_port(char *text)
{
    char *port = strrchr(text, ':');

    if (port != NULL)
        *port = 0;
    if (text[0] == '[') {
        memmove(text, text + 1, strlen(text));
        text[strcspn(text, "]")] = 0;
    }
}

static oar_status allow_plain(void)
{
    const char *wire = getenv("OARSONG_WIRE");

    if (wire != NULL && strcmp(wire, "plain") == 0)
        return OAR_OK;
    return oar_backend_fail(
        OAR_E_AUTH, "gloo's connections between hosts are neither encrypted "
                    "nor authenticated; OARSONG_WIRE=plain allows that");
}

static oar_status choose_address(const oar_backend_env *env, int one,
                                 char text[OARI_SOCK_TEXT])
{
    const char *family = getenv("OARSONG_SOCKET_FAMILY");

    if (one && !is_set("OARSONG_SOCKET_IFNAME")) {
        snprintf(text, OARI_SOCK_TEXT, "%s",
                 family != NULL && strcmp(family, "inet6") == 0 ? "::1"
                                                                : "127.0.0.1");
        return OAR_OK;
    }
    if (!one)
        OARI_TRY(allow_plain());
    OARI_TRY(oari_sock_local(env->store_address, text));
    cut_port(text);
    return OAR_OK;
}

static int has_old(const gloo_choice *choice)
{
    int old = 0;

    for (int kind = 0; kind < OAR_COLL_COUNT; kind++)
        old |= gloo_is_old(choice->way[kind]);
    return old;
}

oar_status gloo_meet(const oar_backend_env *env, const char *prefix,
                     const gloo_choice *choice, gloo_mesh **mesh)
{
    char address[OARI_SOCK_TEXT], why[GLOO_WHY];
    gloo_site site = { .rank = env->rank,
                       .ranks = env->ranks,
                       .store = env->store,
                       .prefix = prefix,
                       .address = address,
                       .old = has_old(choice) };
    int64_t deadline = oari_deadline(env->timeout_ms);
    sigset_t before;
    int one, failed;

    OARI_TRY(is_one_stack(env, prefix, deadline, &one));
    OARI_TRY(choose_address(env, one, address));
    site.timeout_ms = oari_deadline_left_ms(deadline);
    if (site.timeout_ms == 0)
        site.timeout_ms = 1; /* 0 is for ever */
    gloo_signal_block(&before);
    failed = gloo_mesh_open(&site, mesh, why);
    gloo_signal_restore(&before);
    if (failed)
        return oar_backend_fail(OAR_E_CLOSED, "gloo at %s: %s", address, why);
    return OAR_OK;
}
