/* SPDX-License-Identifier: Apache-2.0 */
/* environment: what a rank is told, under our names and those of torchrun, and
 * the store and secret of an epoch, which are a part of that. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"
#include "launch/launch.h"

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_own_names(const launch *l, int local)
{
    const launch_epoch *e = &l->epoch;
    char store[OARI_SOCK_TEXT + 8];

    snprintf(store, sizeof store, "tcp:%s", e->store);
    setenv("OARSONG_STORE", store, 1);
    setenv("OARSONG_SECRET", e->secret, 1);
    set_number("OARSONG_RANK", e->first + local);
    set_number("OARSONG_SIZE", e->world);
    set_number("OARSONG_LOCAL_RANK", local);
    set_number("OARSONG_LOCAL_SIZE", l->ranks);
    set_number("OARSONG_NODE", e->node);
    set_number("OARSONG_NODES", e->nodes);
    set_number("OARSONG_EPOCH", e->number);
    set_number("OARSONG_RESPAWN", l->rank[local].respawns);
    setenv("OARSONG_RUN_ID", l->run_id, 1);
    if (l->opts.hosts != NULL)
        set_number("OARSONG_HOST_ID", l->opts.hosts[local]);
    if (l->rank[local].box >= 0)
        set_number("OARSONG_RECORDER_FD", l->rank[local].box);
    else
        unsetenv("OARSONG_RECORDER_FD");
}

/* In a program that meets as torch does, rank 0 serves at MASTER_PORT. */
static void set_torch_names(const launch *l, int local)
{
    const launch_epoch *e = &l->epoch;

    set_number("RANK", e->first + local);
    set_number("WORLD_SIZE", e->world);
    set_number("LOCAL_RANK", local);
    set_number("LOCAL_WORLD_SIZE", l->ranks);
    set_number("GROUP_RANK", e->node);
    set_number("GROUP_WORLD_SIZE", e->nodes);
    set_number("ROLE_RANK", e->first + local);
    set_number("ROLE_WORLD_SIZE", e->world);
    setenv("ROLE_NAME", l->opts.role != NULL ? l->opts.role : "default", 1);
    setenv("MASTER_ADDR", e->master, 1);
    set_number("MASTER_PORT", e->master_port);
    set_number("TORCHELASTIC_RESTART_COUNT", e->restarts);
    set_number("TORCHELASTIC_MAX_RESTARTS", l->opts.max_restarts);
    setenv("TORCHELASTIC_RUN_ID", l->run_id, 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
}

void launch_environment_set(const launch *l, int local)
{
    char name[256];

    /* Many threads in each of many ranks are slower than one. */
    if (l->ranks > 1 && oari_env_text("OMP_NUM_THREADS") == NULL)
        setenv("OMP_NUM_THREADS", "1", 1);
    for (const char *const *env = l->opts.env; env != NULL && *env != NULL;
         env++) {
        size_t bytes = strcspn(*env, "=");

        if ((*env)[bytes] == 0 || bytes == 0 || bytes >= sizeof name)
            continue; /* the options were checked for that */
        memcpy(name, *env, bytes);
        name[bytes] = 0;
        setenv(name, *env + bytes + 1, 1);
    }
    set_own_names(l, local);
    set_torch_names(l, local);
}

/* Returns a port that was free a moment ago; 0: there is none. */
static int find_free_port(void)
{
    struct sockaddr_in here = { .sin_family = AF_INET };
    socklen_t bytes = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

    here.sin_addr.s_addr = htonl(INADDR_ANY);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &bytes) == 0)
        port = ntohs(here.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

oar_status launch_epoch_serve(launch *l, const char *host)
{
    launch_epoch *e = &l->epoch;
    char address[OARI_SOCK_TEXT];
    unsigned char bytes[32];
    int v6 = strchr(host, ':') != NULL;

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return oari_fail(OAR_E_SYSTEM, "make a secret for the job");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(e->secret + 2 * i, 3, "%02x", bytes[i]);
    snprintf(e->master, sizeof e->master, "%s",
             l->opts.master_addr != NULL ? l->opts.master_addr : host);
    e->master_port =
        l->opts.master_port > 0 ? l->opts.master_port : find_free_port();
    if (e->master_port <= 0)
        return oari_fail(OAR_E_SYSTEM, "find a free port for MASTER_PORT");
    snprintf(address, sizeof address, v6 ? "[%.250s]:0" : "%.250s:0", host);
    return launch_store_process_start(
        &l->keeper,
        &(launch_store_task){ .serve = address, .secret = e->secret },
        e->store);
}
