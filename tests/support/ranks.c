/* SPDX-License-Identifier: Apache-2.0 */
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

oar_status ranks_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: [pid %d] failed: %s\n    last error: %s: %s\n",
            file, line, (int)getpid(), condition,
            oar_status_name(oar_last_error()->status), oar_last_error_text());
    return oari_fail(OAR_E_INTERNAL, "a check failed");
}

oar_status ranks_run(const char *backend, int n, const oar_group_opts *opts,
                     oar_rank_fn fn, void *arg)
{
    oar_group_opts o = opts != NULL ? *opts : oar_group_opts_init();

    o.backend = backend;
    if (o.timeout_ms == 0)
        o.timeout_ms = 30000;
    if (strcmp(backend, "sim") == 0)
        return oar_sim_run_with(n, &o, fn, arg);
    return oar_launch_fn(n, fn, arg, &o,
                         OAR_OPTS(oar_launch_opts, .timeout_ms = 240000), NULL);
}

const char *const *ranks_backends(void)
{
    static const char *list[5] = { "sim", "shm", "tcp" };

    list[3] = getenv("OARSONG_TEST_PLUGIN");
    return list;
}

void ranks_all(int n, oar_rank_fn fn, void *arg)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++) {
        oar_status status = ranks_run(*b, n, NULL, fn, arg);
        if (status != OAR_OK)
            fail_msg("backend %s, %d ranks: %s", *b, n, oar_last_error_text());
    }
}
