/* SPDX-License-Identifier: Apache-2.0 */
/* rejoins: a job whose ranks make a new group when one of them was started
 * again.
 *     oarsong run -n 4 --respawn 1 rejoins 2
 *
 * Rank 2 kills itself in the middle of the first group. The second group has
 * all four ranks again. Every step checks its sum.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

enum { STEPS = 20, DEADLY = 7 };

static int give_up(void)
{
    fprintf(stderr, "%s\n", oar_last_error_text());
    return 1;
}

static oar_status train(oar_group *group, int mortal)
{
    for (int step = 0; step < STEPS; step++) {
        float sum = 1;
        oar_status status;

        if (step == DEADLY && oar_group_rank(group) == mortal)
            raise(SIGKILL);
        status = oar_all_reduce(group, oar_span_of(&sum, 1, OAR_F32), OAR_SUM,
                                NULL, NULL);
        if (status != OAR_OK)
            return status;
        if (sum != (float)oar_group_size(group))
            abort();
    }
    return OAR_OK;
}

int main(int argc, char **argv)
{
    const char *respawn = getenv("OARSONG_RESPAWN");
    int mortal = argc > 1 ? atoi(argv[1]) : -1, number;
    oar_group *group = NULL;
    oar_status status = OAR_E_PEER;
    char name[32];

    for (number = atoi(respawn); status == OAR_E_PEER; number++) {
        oar_group_opts opts = oar_group_opts_init();

        snprintf(name, sizeof name, "try %d", number);
        opts.name = name;
        if (oar_group_from_env(&opts, &group) != OAR_OK)
            return give_up();
        status = train(group, number == 0 ? mortal : -1);
        if (status != OAR_OK && status != OAR_E_PEER)
            return give_up();
        oar_group_destroy(group);
    }
    printf("the group \"%s\" did %d steps\n", name, STEPS);
    return 0;
}
