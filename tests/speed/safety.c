/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what each thing costs that makes an operation safe.
 *
 *     build/release/tests/speed/safety            a million operations
 *     build/release/tests/speed/safety with       all_reduces, only with the
 *     perf stat -e instructions:u ... without     history, or without: to count
 *                                                 instructions
 *
 * First each one alone, as it is in every operation: checking the arguments;
 * the fingerprint of a call, its link to the calls before it, a store into a
 * slot and a comparison with another; the record of the operation. Then one
 * all_reduce of a float between two processes, in turns of a thousand with and
 * without the history behind the check (the fingerprint itself is needed
 * without it, too: it finds the plan). Prints medians, in ns. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/launch.h>

#include "base/clock.h"
#include "link/shm/control_page.h"
#include "comm/api/check.h"
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

/* ---- each alone ---------------------------------------------------------- */

/* What oar_all_reduce looks at before it goes on. */
static double arguments_alone(const oar_group *g)
{
    static double row[TURNS];
    float value[2] = { 1, 1 };
    oar_span in = oar_span_of(value, 2, OAR_F32), out = in;
    int failed = 0;

    for (int t = 0; t < TURNS; t++) {
        int64_t start = oari_now_ns();
        for (int i = 0; i < TURN; i++) {
            oari_call call;

            failed += oari_call_begin(&call, OAR_COLL_ALL_REDUCE, __FILE__,
                                      __LINE__, g, NULL) != OAR_OK;
            failed += oari_check_span("all_reduce", &out) != OAR_OK;
            failed += oari_check_span("all_reduce", &in) != OAR_OK;
            failed += oari_check_same("all_reduce", &out, &in) != OAR_OK;
            failed += oari_check_apart("all_reduce", &out, 0, &in) != OAR_OK;
            call.in = in;
            call.op = OAR_SUM;
            failed += oari_check_op(&call, NULL) != OAR_OK;
        }
        row[t] = (double)(oari_now_ns() - start) / TURN;
    }
    if (failed != 0)
        printf("a check failed: %s\n", oar_last_error_text());
    return median(row, TURNS);
}

static double record_alone(const oar_group *g)
{
    static double row[TURNS];
    oari_operation op = { .kind = OAR_COLL_ALL_REDUCE,
                          .count = 2,
                          .dtype = OAR_F32,
                          .root = -1,
                          .file = __FILE__,
                          .line = __LINE__ };
    uint64_t sequence = 0;

    for (int t = 0; t < TURNS; t++) {
        int64_t start = oari_now_ns();
        for (int i = 0; i < TURN; i++) {
            oari_recorder_post(g->recorder, ++sequence, &op, OARI_AWAITED);
            oari_recorder_done(g->recorder, sequence, OAR_RECORD_DONE);
        }
        row[t] = (double)(oari_now_ns() - start) / TURN;
    }
    return median(row, TURNS);
}

static double fingerprint_alone(void)
{
    static oari_history_entry ring[OARI_HISTORY_SHM];
    static double row[TURNS];
    oari_history h = { .room = OARI_HISTORY_SHM, .ring = ring };
    volatile oari_sync_slot line[2] = { 0 };
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

    if (mode == NULL && oar_group_rank(g) == 0)
        printf("arguments: %.1f ns\nfingerprint: %.1f ns\nrecorder: %.1f ns\n",
               arguments_alone(g), fingerprint_alone(), record_alone(g));
    fflush(stdout);
    if (oar_barrier(g, NULL, NULL) != OAR_OK)
        return oar_last_error()->status;

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

    opts.backend = "shm";
    if (oar_launch_fn(2, run, argc > 1 ? argv[1] : NULL, &opts, NULL, NULL) !=
        OAR_OK) {
        fprintf(stderr, "%s\n", oar_last_error_text());
        return 1;
    }
    return 0;
}
