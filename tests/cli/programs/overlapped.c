/* SPDX-License-Identifier: Apache-2.0 */
/* Trains with gradients that are averaged during backward, and prints what
 * oar_ddp_stats say of it:
 *     overlapped STEPS
 * prints "rank R: communication S exposed S". */
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

enum { WIDTH = 1024, LAYERS = 6, ROWS = 64 };

#define TRY(call)                                           \
    do {                                                    \
        if ((call) != OAR_OK) {                             \
            fprintf(stderr, "%s\n", oar_last_error_text()); \
            return 1;                                       \
        }                                                   \
    } while (0)

static int make_net(oar_group *world, oar_module **net)
{
    oar_module *layer[LAYERS] = { 0 };

    for (int i = 0; i < LAYERS; i++)
        TRY(oar_linear_create(WIDTH, WIDTH, (uint64_t)i + 1, NULL, &layer[i]));
    TRY(oar_sequential_create(LAYERS, layer, net));
    TRY(oar_ddp_wrap(*net, world,
                     OAR_OPTS(oar_ddp_opts, .bucket_bytes = 4 << 20), net));
    return 0;
}

int main(int argc, char **argv)
{
    static float x[ROWS * WIDTH];
    int steps = argc > 1 ? atoi(argv[1]) : 10;
    double communication = 0, exposed = 0;
    oar_group *world;
    oar_module *net;
    oar_tape *tape;

    TRY(oar_group_from_env(NULL, &world));
    if (make_net(world, &net) != 0)
        return 1;
    TRY(oar_tape_create(&tape));
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(i % 13) / 13;
    for (int step = 0; step < steps; step++) {
        oar_ddp_stats stats = oar_ddp_stats_init();
        oar_tensor *in =
            oar_from_data(tape, OAR_F32, OAR_SHAPE(ROWS, WIDTH), x);

        TRY(oar_backward(tape, oar_mean(tape, oar_forward(tape, net, in))));
        oar_tape_reset(tape);
        TRY(oar_ddp_read_stats(net, &stats));
        if (step > 0) { /* a step begins where another has ended */
            communication += stats.communication_s;
            exposed += stats.exposed_s;
        }
        oar_step(step);
    }
    printf("rank %d: communication %.9f exposed %.9f\n", oar_group_rank(world),
           communication, exposed);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_group_destroy(world);
    return 0;
}
