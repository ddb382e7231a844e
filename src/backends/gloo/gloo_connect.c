/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_connect: chooses the address of Gloo's sockets, and connects.
 *
 * If all ranks share a network stack: loopback. Else the address that the
 * core's own links would use. Gloo neither encrypts nor authenticates, so
 * between hosts OARSONG_WIRE=plain must allow it.
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

/* The same text on ranks that share a network stack. */
typedef struct stack_id {
    char text[96];
} stack_id;

static void describe_stack(stack_id *stack)
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
    snprintf(stack->text, sizeof stack->text, "%s %" PRIu64, boot,
             (uint64_t)about.st_ino);
}

static oar_status compare_stacks(const oar_backend_env *env, const char *prefix,
                                 int64_t deadline, int *same)
{
    stack_id mine = { 0 }, other = { 0 };
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    describe_stack(&mine);
    snprintf(key, sizeof key, "%s/stack/%d", prefix, env->rank);
    OARI_TRY(oar_store_set(env->store, key, &mine, sizeof mine));
    *same = 1;
    for (int r = 0; r < env->ranks; r++) {
        if (r == env->rank)
            continue;
        snprintf(key, sizeof key, "%s/stack/%d", prefix, r);
        OARI_TRY(oar_store_get(env->store, key, oari_deadline_left_ms(deadline),
                               &value, &bytes));
        if (bytes == sizeof other)
            memcpy(&other, value, sizeof other);
        oar_free(value);
        other.text[sizeof other.text - 1] = 0;
        *same &= strcmp(mine.text, other.text) == 0;
    }
    return OAR_OK;
}

static oar_status choose_address(const oar_backend_env *env, int same_stack,
                                 char text[OARI_SOCK_TEXT])
{
    const char *family = getenv("OARSONG_SOCKET_FAMILY");
    const char *interface = getenv("OARSONG_SOCKET_IFNAME");
    const char *wire = getenv("OARSONG_WIRE");
    char *port;

    if (same_stack && (interface == NULL || *interface == 0)) {
        snprintf(text, OARI_SOCK_TEXT, "%s",
                 family != NULL && strcmp(family, "inet6") == 0 ? "::1"
                                                                : "127.0.0.1");
        return OAR_OK;
    }
    if (!same_stack && (wire == NULL || strcmp(wire, "plain") != 0))
        return oar_backend_fail(
            OAR_E_AUTH,
            "gloo's connections between hosts are neither encrypted nor "
            "authenticated; OARSONG_WIRE=plain allows that");
    OARI_TRY(oari_sock_local(env->store_address, text));
    if ((port = strrchr(text, ':')) != NULL) /* "ip:port" or "[ip]:port" */
        *port = 0;
    if (text[0] == '[') {
        memmove(text, text + 1, strlen(text));
        text[strcspn(text, "]")] = 0;
    }
    return OAR_OK;
}

oar_status gloo_connect(const oar_backend_env *env, const char *prefix,
                        gloo_mesh **mesh)
{
    char address[OARI_SOCK_TEXT], why[GLOO_WHY];
    gloo_mesh_opts opts = { .rank = env->rank,
                            .ranks = env->ranks,
                            .store = env->store,
                            .prefix = prefix,
                            .address = address };
    int64_t deadline = oari_deadline(env->timeout_ms);
    sigset_t before;
    int same_stack, failed;

    OARI_TRY(compare_stacks(env, prefix, deadline, &same_stack));
    OARI_TRY(choose_address(env, same_stack, address));
    opts.timeout_ms = oari_deadline_left_ms(deadline);
    if (opts.timeout_ms == 0)
        opts.timeout_ms = 1; /* 0 is for ever */
    gloo_signal_block(&before);
    failed = gloo_mesh_open(&opts, mesh, why);
    gloo_signal_restore(&before);
    if (failed)
        return oar_backend_fail(OAR_E_CLOSED, "gloo at %s: %s", address, why);
    return OAR_OK;
}
