/* SPDX-License-Identifier: Apache-2.0 */
/* own_shards: ZeRO for arrays of one's own, without tensors or modules of ours.
 *     oarsong run -n 4 own_shards [steps]
 * Eight layers x = w * x learn to halve a row of numbers. Each rank keeps and
 * steps its part of every w; a layer's w is whole only while it is computed.
 * Shards that are broken stay so: the last call of a step tells of any failure.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

enum { LAYERS = 8, WIDTH = 20000 };

static float x[LAYERS + 1][WIDTH], up[WIDTH], one[WIDTH];

static double train_step(oar_shards *s, int rank)
{
    double loss = 0;

    for (int l = 0; l < LAYERS; l++) {
        oar_shards_unshard(s, l);
        const float *w = oar_shards_array(s, l).data;
        for (int i = 0; w != NULL && i < WIDTH; i++) {
            if (l == 0) /* each rank has its own sample */
                x[0][i] = cosf((float)(i + 7 * rank));
            x[l + 1][i] = w[i] * x[l][i];
        }
        oar_shards_reshard(s, l);
    }
    for (int i = 0; i < WIDTH; i++) {
        up[i] = x[LAYERS][i] - x[0][i] / 2;
        loss += up[i] * up[i] / WIDTH;
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        oar_shards_unshard(s, l);
        const float *w = oar_shards_array(s, l).data;
        float *grad = oar_shards_grad(s, l).data;
        for (int i = 0; w != NULL && grad != NULL && i < WIDTH; i++) {
            grad[i] = up[i] * x[l][i];
            up[i] *= w[i];
        }
        oar_shards_ready(s, l); /* on its way from here on */
        oar_shards_reshard(s, l);
    }
    oar_shards_wait(s); /* the mean over all ranks is in this rank's shards */
    for (int k = 0; k < oar_shards_count(s); k++) {
        oar_shard mine = oar_shard_init();
        oar_shards_shard(s, k, &mine);
        for (size_t i = 0; i < mine.count; i++)
            ((float *)mine.data.data)[i] -= 0.1f * ((float *)mine.grad.data)[i];
    }
    oar_shards_zero_grad(s);
    return loss;
}

int main(int argc, char **argv)
{
    oar_span array[LAYERS]; /* rank 0's numbers are taken */
    int unit[LAYERS], steps = argc > 1 ? atoi(argv[1]) : 100;
    double loss = 0;
    oar_shards *s = NULL;
    oar_group *world = NULL;
    oar_status status = oar_group_from_env(NULL, &world);

    for (int i = 0; i < WIDTH; i++)
        one[i] = 1;
    for (int l = 0; l < LAYERS; l++)
        array[l] = oar_span_of(one, WIDTH, OAR_F32), unit[l] = l;
    if (status == OAR_OK)
        status = oar_shards_create(world, LAYERS, array, unit, NULL, &s);
    for (int step = 1; step <= steps && status == OAR_OK; step++) {
        loss = train_step(s, oar_group_rank(world));
        status = oar_shards_publish(s);
        if (oar_group_rank(world) == 0 && step % (steps / 5 + 1) == 0)
            printf("step %3d  loss %.5f\n", step, loss);
    }
    if (status != OAR_OK || loss > 0.01)
        fprintf(stderr, "own_shards: it did not learn: %s\n",
                oar_last_error_text());
    oar_shards_destroy(s);
    oar_group_destroy(world);
    return status != OAR_OK || loss > 0.01;
}
