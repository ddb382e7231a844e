/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests under other launchers: makes a group from the environment
 * twice, and sums over both.
 *   two_groups          prints one line on rank 0
 *   two_groups RANK     then kills that rank; every other rank prints its error
 *                       and succeeds if that names the right rank */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/collective.h>
#include <oarsong/group.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, oar_last_error_text());
    return 1;
}

static int sum_over(oar_group *g)
{
    int32_t one = 1;
    oar_span span = oar_span_of(&one, 1, OAR_I32);

    if (oar_all_reduce(g, span, OAR_SUM, NULL, NULL) != OAR_OK)
        return -1;
    return one;
}

static int outlive(oar_group *g, int victim)
{
    oar_status status;

    if (oar_group_rank(g) == victim)
        raise(SIGKILL);
    status = oar_barrier(g, NULL, NULL);
    printf("rank %d: %s: %s\n", oar_group_rank(g), oar_status_name(status),
           oar_last_error_text());
    return status == OAR_E_PEER && oar_last_error()->peer == victim ? 0 : 1;
}

int main(int argc, char **argv)
{
    oar_group *first, *second;
    int status = 0;

    if (oar_group_from_env(NULL, &first) != OAR_OK)
        return fail("first group");
    if (sum_over(first) != oar_group_size(first))
        return fail("sum over the first");
    oar_group_destroy(first);
    if (oar_group_from_env(NULL, &second) != OAR_OK)
        return fail("second group");
    if (sum_over(second) != oar_group_size(second))
        return fail("sum over the second");
    if (argc > 1)
        status = outlive(second, atoi(argv[1]));
    else if (oar_group_rank(second) == 0)
        printf("two groups of %d over %s\n", oar_group_size(second),
               oar_group_backend(second));
    oar_group_destroy(second);
    return status;
}
