/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what the comparison of operations costs.
 *
 *     build/release/tests/speed/fingerprint            a million operations
 *     build/release/tests/speed/fingerprint with       only with, or without:
 *     perf stat -e instructions:u ... without          to count instructions
 *
 * First the check alone, as it is in every operation: the fingerprint of a
 * call, its link to the calls before it, a store into a slot and a comparison
 * with another. Then one all_reduce of a float between two processes, in turns
 * of a thousand with and without the history behind the check (the fingerprint
 * itself is needed without it, too: it finds the plan). Prints medians, in
 * ns. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/launch.h>

#include "base/clock.h"
#include "link/shm/board.h"
#include "comm/group/group.h"

enum { TURN = 1000, TURNS = 500, TARGET_NS = 15 };

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double median(double *row, int n)
{
    qsort(row, (size_t)n, sizeof *row, compare);
    return row[n / 2];
}

/* ---- the check alone ----------------------------------------------------- */

static double check_alone(void)
{
    static oari_history_entry ring[OARI_HISTORY_SHM];
    static double row[TURNS];
    oari_history h = { .room = OARI_HISTORY_SHM, .ring = ring };
    volatile oari_line line[2] = { 0 };
    volatile size_t count = 17;
    int different = 0;

    for (int t = 0; t < TURNS; t++) {
        int64_t start = oari_now_ns();
        for (uint64_t i = 1; i <= TURN; i++) {
            oari_call call = { .kind = OAR_COLL_ALL_REDUCE,
                               .agreed = count,
                               .root = -1 };
            line[0].fingerprint = oari_history_add(
                &h, i, i, oari_call_form(&call), oari_call_fingerprint(&call));
            different += line[0].fingerprint != line[1].fingerprint;
        }
        row[t] = (double)(oari_now_ns() - start) / TURN;
    }
    if (different == 0)
        printf("nothing was compared\n");
    return median(row, TURNS);
}

/* ---- in place ------------------------------------------------------------ */

static oar_status run_turn(oar_group *g, int with, double *ns)
{
    oari_exec *x = &g->engine.lane->exec;
    float value = 1;
    oar_span s = oar_span_of(&value, 1, OAR_F32);
    int64_t start;

    x->history = with ? &g->engine.history : NULL;
    start = oari_now_ns();
    for (int i = 0; i < TURN; i++) {
        oar_status status = oar_all_reduce(g, s, OAR_MAX, NULL, NULL);
        if (status != OAR_OK)
            return status;
    }
    *ns = (double)(oari_now_ns() - start) / TURN;
    return OAR_OK;
}

static oar_status run(oar_group *g, void *arg)
{
    static double row[2][TURNS];
    const char *mode = arg;

    for (int t = 0; t < TURNS; t++)
        for (int with = 0; with < 2; with++) {
            if (mode != NULL && strcmp(mode, with ? "with" : "without") != 0)
                continue;
            if (run_turn(g, with, &row[with][t]) != OAR_OK)
                return oar_last_error()->status;
        }
    if (oar_group_rank(g) == 0) {
        double with = median(row[1], TURNS), without = median(row[0], TURNS);
        printf("all_reduce of a float: with %.1f ns, without %.1f ns, "
               "difference %.1f ns (at most %d)\n",
               with, without, with - without, TARGET_NS);
    }
    return OAR_OK;
}

int main(int argc, char **argv)
{
    oar_group_opts opts = oar_group_opts_init();

    if (argc < 2)
        printf("the check alone: %.1f ns\n", check_alone());
    fflush(stdout);
    opts.backend = "shm";
    if (oar_launch_fn(2, run, argc > 1 ? argv[1] : NULL, &opts, NULL, NULL) !=
        OAR_OK) {
        fprintf(stderr, "%s\n", oar_last_error_text());
        return 1;
    }
    return 0;
}
