/* SPDX-License-Identifier: Apache-2.0 */
/* shrinks: a job whose ranks go on when one of them dies.
 *     oarsong run -n 4 --keep-going shrinks 2
 *
 * Rank 2 kills itself in the middle. The others shrink the group, load what was
 * saved, and go on to the last step. Every step checks its sum.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

enum { STEPS = 20, DEADLY = 7 };

static int mortal, step, saved;

static int give_up(void)
{
    fprintf(stderr, "%s\n", oar_last_error_text());
    return 1;
}

/* Every rank has saved the same step or the one before; the least counts. */
static void load_what_was_saved(oar_group *group)
{
    int32_t least = saved;

    if (oar_all_reduce(group, oar_span_of(&least, 1, OAR_I32), OAR_MIN, NULL,
                       NULL) == OAR_OK)
        step = saved = least;
}

static oar_status train(oar_group *group)
{
    for (; step < STEPS; saved = ++step) {
        float sum = 1;
        oar_status status;

        if (step == DEADLY && oar_group_size(group) == 4 &&
            oar_group_rank(group) == mortal)
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
    oar_group *group = NULL;

    mortal = argc > 1 ? atoi(argv[1]) : -1;
    if (oar_group_from_env(NULL, &group) != OAR_OK)
        return give_up();
    while (train(group) != OAR_OK) {
        oar_group *left;
        if (oar_group_shrink(group, NULL, &left) != OAR_OK)
            return give_up();
        oar_group_destroy(group);
        group = left;
        load_what_was_saved(group);
    }
    printf("%d steps, %d ranks at the end\n", step, oar_group_size(group));
    oar_group_destroy(group);
    return 0;
}
