/* SPDX-License-Identifier: Apache-2.0 */
/* Steps with one all_reduce each, to which one rank comes late:
 * straggler RANK STEPS [MS]. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

int main(int argc, char **argv)
{
    int late = argc > 1 ? atoi(argv[1]) : -1;
    int steps = argc > 2 ? atoi(argv[2]) : 20;
    int late_ms = argc > 3 ? atoi(argv[3]) : 20;
    oar_group *g;

    if (oar_group_from_env(NULL, &g) != OAR_OK) {
        fprintf(stderr, "%s\n", oar_last_error_text());
        return 1;
    }
    for (int i = 0; i < steps; i++) {
        float x = 1;

        if (oar_group_rank(g) == late)
            usleep((useconds_t)late_ms * 1000);
        if (oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                           NULL) != OAR_OK)
            return 1;
        oar_metric("x", x);
        oar_step(i);
    }
    oar_group_destroy(g);
    return 0;
}
