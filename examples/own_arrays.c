/* SPDX-License-Identifier: Apache-2.0 */
/* own_arrays: a trainer with arrays of its own and no tensor of ours.
 *     oarsong run -n 4 own_arrays [steps]
 *
 * A network of two layers learns sin(3 x) from points, written out by hand. Its
 * gradients are arrays that live in a reducer's buckets: each is averaged over
 * all ranks while the next one is computed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { HIDDEN = 32, BATCH = 64, W1 = 0, B1, W2, B2, ARRAYS };

static const size_t counts[ARRAYS] = { HIDDEN, HIDDEN, HIDDEN, 1 };

/* y = w2 . tanh(w1 x + b1) + b2 */
typedef struct network {
    float w1[HIDDEN], b1[HIDDEN], w2[HIDDEN], b2[1];
    float hidden[BATCH][HIDDEN], error[BATCH];
} network;

static float *param(network *n, int array)
{
    float *all[ARRAYS] = { n->w1, n->b1, n->w2, n->b2 };

    return all[array];
}

/* The same numbers on every rank: nothing has to be sent for that. */
static void begin(network *n)
{
    for (int h = 0; h < HIDDEN; h++) {
        n->w1[h] = 4 * sinf((float)(h * 7 + 1));
        n->b1[h] = 3 * sinf((float)(h * 5 + 2));
        n->w2[h] = 0.1f * sinf((float)(h * 3 + 3));
    }
    n->b2[0] = 0;
}

static float point(const oar_group *world, long step, int i)
{
    long row =
        (step * BATCH + i) * oar_group_size(world) + oar_group_rank(world);

    return (float)(2 * fmod((double)row * 0.6180339887, 1) - 1);
}

static double forward(network *n, const oar_group *world, long step)
{
    double loss = 0;

    for (int i = 0; i < BATCH; i++) {
        float x = point(world, step, i), y = n->b2[0];
        for (int h = 0; h < HIDDEN; h++) {
            n->hidden[i][h] = tanhf(n->w1[h] * x + n->b1[h]);
            y += n->w2[h] * n->hidden[i][h];
        }
        n->error[i] = y - sinf(3 * x);
        loss += n->error[i] * n->error[i] / BATCH;
    }
    return loss;
}

/* The gradient of one array, straight into its bucket. */
static void gradient(const network *n, const oar_group *world, long step,
                     int array, float *to)
{
    for (size_t h = 0; h < counts[array]; h++) {
        to[h] = 0;
        for (int i = 0; i < BATCH; i++) {
            float up = 2 * n->error[i] / BATCH, v = n->hidden[i][h];
            float down = up * n->w2[h] * (1 - v * v);
            to[h] += array == B2   ? up
                     : array == W2 ? up * v
                     : array == B1 ? down
                                   : down * point(world, step, i);
        }
    }
}

static oar_status train_step(network *n, oar_group *world, oar_reducer *r,
                             long step, double *loss)
{
    *loss = forward(n, world, step);
    for (int a = ARRAYS - 1; a >= 0; a--) {
        gradient(n, world, step, a, oar_reducer_span(r, a).data);
        TRY(oar_reducer_ready(r, a)); /* on its way from here on */
    }
    TRY(oar_reducer_wait(r)); /* now they are means over all ranks */
    for (int a = 0; a < ARRAYS; a++) {
        const float *mean = oar_reducer_span(r, a).data;
        for (size_t i = 0; i < counts[a]; i++)
            param(n, a)[i] -= 0.05f * mean[i];
    }
    return OAR_OK;
}

static oar_status train(oar_group *world, long steps)
{
    static network n;
    oar_span array[ARRAYS];
    oar_reducer *r;
    double loss = 0;

    for (int a = 0; a < ARRAYS; a++)
        array[a] = oar_span_of(NULL, counts[a], OAR_F32);
    TRY(oar_reducer_create(world, ARRAYS, array, NULL, &r));
    begin(&n);
    for (long step = 0; step < steps; step++) {
        TRY(train_step(&n, world, r, step, &loss));
        if (oar_group_rank(world) == 0 && (step + 1) % (steps / 5) == 0)
            printf("step %5ld  loss %.5f\n", step + 1, loss);
    }
    oar_reducer_destroy(r);
    if (steps < 500 || loss < 0.02)
        return OAR_OK;
    fprintf(stderr, "own_arrays: it did not learn\n");
    return OAR_E_INTERNAL;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 2000;
    oar_group *world;
    oar_status status = oar_group_from_env(NULL, &world);

    if (status == OAR_OK) {
        status = train(world, steps >= 5 ? steps : 5);
        oar_group_destroy(world);
    }
    if (status != OAR_OK)
        fprintf(stderr, "own_arrays: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
