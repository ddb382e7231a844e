/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what an operation on DTensors costs over the plain one, where
 * nothing moves: add and linear of small tensors, with and without a tape. The
 * two take turns, and the quickest round of each counts.
 *
 *     speed/dtensor_op [ROUNDS [CALLS]]     (200 rounds of 500 calls) */
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/dtensor_ops.h>

#include "base/clock.h"

typedef struct operands {
    oar_tape *tape; /* NULL: none */
    oar_dtensor a, b;
    int calls;
} operands;

typedef int (*call_fn)(const operands *o);

static int finish(const operands *o, oar_tensor *result)
{
    if (result == NULL)
        return 0;
    if (o->tape == NULL)
        oar_tensor_release(result);
    return 1;
}

static int plain_add(const operands *o)
{
    return finish(o, oar_add(o->tape, o->a.local, o->b.local));
}

static int spread_add(const operands *o)
{
    return finish(o, oar_dtensor_add(o->tape, o->a, o->b).local);
}

static int plain_linear(const operands *o)
{
    return finish(o, oar_linear(o->tape, o->a.local, o->b.local, NULL));
}

static int spread_linear(const operands *o)
{
    return finish(o, oar_dtensor_linear(o->tape, o->a, o->b, NULL).local);
}

static double round_us(const operands *o, call_fn call)
{
    int64_t start = oari_now_ns();

    for (int i = 0; i < o->calls; i++)
        if (!call(o)) {
            fprintf(stderr, "%s\n", oar_last_error_text());
            exit(1);
        }
    start = oari_now_ns() - start;
    if (o->tape != NULL)
        oar_tape_reset(o->tape);
    return (double)start / 1000 / o->calls;
}

static void measure(const char *name, const operands *o, int rounds,
                    call_fn plain, call_fn spread)
{
    double least[2] = { 1e30, 1e30 };

    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < 2; k++) {
            double us = round_us(o, k == 0 ? plain : spread);
            least[k] = us < least[k] ? us : least[k];
        }
    printf("%-7s %-8s plain %7.3f us, DTensor %7.3f us, more %7.3f us\n", name,
           o->tape != NULL ? "on tape" : "no tape", least[0], least[1],
           least[1] - least[0]);
}

/* A mesh without a group plans and computes, as long as nothing moves. */
static oar_dtensor make_part(oar_mesh *mesh, oar_shape shape, oar_placement p)
{
    const oar_spec *spec =
        oar_spec_of(mesh, 2, (oar_placement[2]){ p }, shape, NULL);
    oar_tensor *part = oar_ones(NULL, OAR_F32, oar_spec_local_shape(spec, 0));

    return oar_dtensor_from_local(part, spec);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200;
    operands o = { .calls = argc > 2 ? atoi(argv[2]) : 500 };
    oar_dtensor x, y, weight;
    oar_mesh *mesh = NULL;
    oar_tape *tape = NULL;

    if (oar_mesh_create(NULL, 2, (int[]){ 2, 2 }, NULL, NULL, &mesh) !=
            OAR_OK ||
        oar_tape_create(&tape) != OAR_OK)
        return 1;
    x = make_part(mesh, OAR_SHAPE(128, 64), oar_placement_shard(0));
    y = make_part(mesh, OAR_SHAPE(128, 64), oar_placement_shard(0));
    weight = make_part(mesh, OAR_SHAPE(64, 64), oar_placement_replicate());
    for (int taped = 0; taped < 2; taped++) {
        o.tape = taped ? tape : NULL;
        oar_tensor_require_grad(x.local, taped);
        o.a = x;
        o.b = y;
        measure("add", &o, rounds, plain_add, spread_add);
        o.b = weight;
        measure("linear", &o, rounds, plain_linear, spread_linear);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x.local);
    oar_tensor_release(y.local);
    oar_tensor_release(weight.local);
    oar_mesh_release(mesh);
    return 0;
}
