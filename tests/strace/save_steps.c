/* SPDX-License-Identifier: Apache-2.0 */
/* The program that tests/strace/run lets system calls fail in.
 *   save_steps save FOLDER STEP   saves a step, and removes older ones but one
 *   save_steps check FOLDER       prints the newest step, if it is whole
 * Returns 0, or 1 with a line. It uses the installed library's calls only. */
#include <oarsong/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 50000 }; /* several blocks */

static float weight[NUMBERS], moment[7];
static int64_t step;

static void fill(void)
{
    for (int i = 0; i < NUMBERS; i++)
        weight[i] = (float)(step * 1000 + i % 777);
    for (int i = 0; i < 7; i++)
        moment[i] = (float)(step * 10 + i);
}

/* Returns whether the numbers are those of the step. */
static int is_whole(void)
{
    for (int i = 0; i < NUMBERS; i++)
        if (weight[i] != (float)(step * 1000 + i % 777))
            return 0;
    for (int i = 0; i < 7; i++)
        if (moment[i] != (float)(step * 10 + i))
            return 0;
    return 1;
}

static int give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, oar_last_error_text());
    return 1;
}

int main(int argc, char **argv)
{
    oar_checkpoint_opts o = {
        .size = sizeof o, .keep = 2, .threads = 1, .block_bytes = 64 << 10
    };
    oar_checkpoint *runs;
    oar_state *state;
    int failed;

    if (argc < 3 || oar_state_create(&state) != OAR_OK ||
        oar_state_add_span(state, "model", "weight",
                           oar_span_of(weight, NUMBERS, OAR_F32),
                           OAR_SHAPE(NUMBERS), NULL) != OAR_OK ||
        oar_state_add_span(state, "optim", "moment",
                           oar_span_of(moment, 7, OAR_F32), OAR_SHAPE(7),
                           NULL) != OAR_OK ||
        oar_state_add_i64(state, "step", &step) != OAR_OK)
        return give_up("state");
    if (oar_checkpoint_open(NULL, argv[2], &o, &runs) != OAR_OK)
        return give_up("open");
    if (strcmp(argv[1], "save") == 0 && argc > 3) {
        step = atoll(argv[3]);
        fill();
        failed = oar_checkpoint_save(runs, state, step, NULL) != OAR_OK &&
                 give_up("save");
    } else if (oar_checkpoint_load(runs, state, OAR_NEWEST, NULL) != OAR_OK) {
        failed = give_up("load");
    } else {
        failed = !is_whole();
        printf("%lld%s\n", (long long)step, failed ? " is not whole" : "");
    }
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return failed;
}
