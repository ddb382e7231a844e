/* SPDX-License-Identifier: Apache-2.0 */
/* own_shards: ZeRO for arrays of one's own, without tensors or modules of ours.
 *     oarsong run -n 4 own_shards
 *
 * Four layers x = x + w * x learn to halve a row of numbers. Each rank keeps
 * and steps its part of every w; a layer's w is whole only while it is used.
 * Shards that are broken stay so: the last call of a step tells of any failure.
 */
#include <stdio.h>

#include <oarsong/oarsong.h>

enum { LAYERS = 4, WIDTH = 20000, STEPS = 100 };

static float x[LAYERS + 1][WIDTH], up[WIDTH];

static oar_status train_step(oar_shards *s, double *loss)
{
    for (int l = 0; l < LAYERS; l++) {
        oar_shards_unshard(s, l);
        const float *w = oar_shards_array(s, l).data;
        for (int i = 0; w != NULL && i < WIDTH; i++)
            x[l + 1][i] = x[l][i] + w[i] * x[l][i];
        oar_shards_reshard(s, l);
    }
    *loss = 0;
    for (int i = 0; i < WIDTH; i++) {
        up[i] = x[LAYERS][i] - x[0][i] / 2;
        *loss += up[i] * up[i] / WIDTH;
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        oar_shards_unshard(s, l);
        const float *w = oar_shards_array(s, l).data;
        float *grad = oar_shards_grad(s, l).data;
        for (int i = 0; w != NULL && grad != NULL && i < WIDTH; i++) {
            grad[i] = up[i] * x[l][i];
            up[i] += w[i] * up[i];
        }
        oar_shards_ready(s, l); /* on its way from here on */
        oar_shards_reshard(s, l);
    }
    oar_shards_wait(s); /* the mean over all ranks is in this rank's shards */
    for (int k = 0; k < oar_shards_count(s); k++) {
        oar_shard mine = oar_shard_init();
        oar_shards_shard(s, k, &mine);
        for (size_t i = 0; i < mine.count; i++)
            ((float *)mine.data.data)[i] -= 0.2f * ((float *)mine.grad.data)[i];
    }
    oar_shards_zero_grad(s);
    return oar_shards_publish(s); /* the next unshard has the new numbers */
}

int main(void)
{
    /* An array without data begins with zeros. Each layer is a unit. */
    oar_span w = oar_span_of(NULL, WIDTH, OAR_F32), array[] = { w, w, w, w };
    const int unit[] = { 0, 1, 2, 3 };
    oar_shards *s = NULL;
    oar_group *world = NULL;
    oar_status status = oar_group_from_env(NULL, &world);
    double loss = 1;

    if (status == OAR_OK)
        status = oar_shards_create(world, LAYERS, array, unit, NULL, &s);
    for (int i = 0; i < WIDTH; i++) /* each rank has its own sample */
        x[0][i] = (float)((i + 7 * oar_group_rank(world)) % 11) / 10;
    for (int step = 0; step < STEPS && status == OAR_OK; step++)
        status = train_step(s, &loss);
    if (status != OAR_OK)
        fprintf(stderr, "own_shards: %s\n", oar_last_error_text());
    printf("loss %.5f\n", loss);
    oar_shards_destroy(s);
    oar_group_destroy(world);
    return status != OAR_OK || loss > 0.01;
}
