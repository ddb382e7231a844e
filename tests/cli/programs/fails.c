/* SPDX-License-Identifier: Apache-2.0 */
/* fails: rank 2 of the job goes wrong before its fourth all_reduce.
 *     oarsong run -n 4 fails HOW
 *
 * HOW is what it does: sleep, stop, exit, leave, crash, abort; or late: it
 * aborts the group, and crashes when it is told to end, after the others.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

enum { CULPRIT = 2, STEPS = 5, WRONG = 3, TIMEOUT_MS = 1000 };

static void crash_when_told(oar_group *world)
{
    sigset_t end;
    int which;

    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    oar_group_abort(world, "it crashes late");
    sigwait(&end, &which);
    abort();
}

static void go_wrong(oar_group *world, const char *how)
{
    if (strcmp(how, "sleep") == 0)
        sleep(60);
    else if (strcmp(how, "stop") == 0)
        raise(SIGSTOP);
    else if (strcmp(how, "exit") == 0)
        exit(0);
    else if (strcmp(how, "crash") == 0)
        abort();
    else if (strcmp(how, "abort") == 0)
        oar_group_abort(world, "loss is NaN");
    else if (strcmp(how, "late") == 0)
        crash_when_told(world);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    oar_group_opts opts = oar_group_opts_init();
    oar_group *world = NULL;
    float x = 1;

    opts.timeout_ms = TIMEOUT_MS;
    if (oar_group_from_env(&opts, &world) != OAR_OK)
        return 2;
    for (int step = 0; step < STEPS; step++) {
        if (step == WRONG && oar_group_rank(world) == CULPRIT) {
            if (strcmp(how, "leave") == 0)
                break;
            go_wrong(world, how);
        }
        if (oar_all_reduce(world, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                           NULL) != OAR_OK) {
            fprintf(stderr, "%s\n", oar_last_error_text());
            return 1;
        }
    }
    oar_group_destroy(world);
    return 0;
}
