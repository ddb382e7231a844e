/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the planner of moves: every pair of specs, planned a few times, of
 * which the quickest counts, since the machine may do other things.
 *
 *     speed/dtensor_plan [TIMES [CASE]]     (5, all of 0 to 5)
 *
 * Prints for each mesh and tensor the mean, the slowest pair and what it is,
 * and the time of a plan that the mesh keeps. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "parallel/dtensor/move_plan.h"

enum { MOST_SPECS = 4000, MOST_PAIRS = 3000 };

typedef struct plan_case {
    int dims, size[OAR_MESH_DIMS];
    oar_shape shape;
} plan_case;

/* Lists every spec with parts that are nearly equal, in the order 0, 1, ... */
static int list_specs(oar_mesh *mesh, oar_shape shape, const oar_spec **spec)
{
    int dims = oar_mesh_dims(mesh), kinds = 3 + shape.ndim;
    int total = 1, count = 0;

    for (int m = 0; m < dims; m++)
        total *= kinds;
    for (int n = 0; n < total && count < MOST_SPECS; n++) {
        oar_placement p[OAR_MESH_DIMS];

        for (int m = 0, rest = n; m < dims; m++, rest /= kinds) {
            int kind = rest % kinds;

            p[m] = kind == 0   ? oar_placement_replicate()
                   : kind == 1 ? oar_placement_partial(OAR_REDUCE_OP_SUM)
                   : kind == 2 ? oar_placement_flat()
                               : oar_placement_shard(kind - 3);
        }
        spec[count] = oar_spec_of(mesh, dims, p, shape, NULL);
        count += spec[count] != NULL;
    }
    return count;
}

static double plan_us(const oar_spec *from, const oar_spec *to, int times)
{
    oari_mover mover = { &from->mesh->grid, from->shape, 4 };
    oari_move_step step[OAR_MOVES];
    double least = 1e30;
    int steps;

    for (int i = 0; i < times; i++) {
        int64_t start = oari_now_ns();
        double us;

        if (oari_plan_move(&mover, &from->layout, &to->layout, step, &steps) !=
            OAR_OK)
            exit(1);
        us = (double)(oari_now_ns() - start) / 1000;
        least = us < least ? us : least;
    }
    return least;
}

static double kept_us(const oar_spec *from, const oar_spec *to)
{
    int64_t start;

    oari_move_path_of(from, to, 4);
    start = oari_now_ns();
    for (int i = 0; i < 10000; i++)
        oari_move_path_of(from, to, 4);
    return (double)(oari_now_ns() - start) / 1e7;
}

static void measure(plan_case c, int times)
{
    static const oar_spec *spec[MOST_SPECS];
    const oar_spec *from = NULL, *to = NULL;
    double most = 0, sum = 0;
    oar_mesh *mesh = NULL;
    int count, every, pairs = 0;
    char text[300];

    if (oar_mesh_create(NULL, c.dims, c.size, NULL, NULL, &mesh) != OAR_OK)
        exit(1);
    count = list_specs(mesh, c.shape, spec);
    every = count * (count / MOST_PAIRS + 1) / MOST_PAIRS | 1;
    for (int i = 0; i < count * count && pairs < MOST_PAIRS; i += every) {
        double us = plan_us(spec[i / count], spec[i % count], times);

        pairs++;
        sum += us;
        if (us > most) {
            most = us;
            from = spec[i / count];
            to = spec[i % count];
        }
    }
    oar_explain_text(from, to, OAR_F32, text, sizeof text);
    printf("%d mesh dims, %d tensor dims, %d pairs: mean %.1f us, most %.1f "
           "us, kept %.3f us\n  %.100s\n",
           c.dims, c.shape.ndim, pairs, sum / pairs, most, kept_us(from, to),
           text);
    oar_mesh_release(mesh);
}

int main(int argc, char **argv)
{
    static const plan_case all[] = {
        { 1, { 8 }, { 2, { 501, 301 } } },
        { 2, { 2, 4 }, { 2, { 501, 301 } } },
        { 2, { 2, 4 }, { 4, { 8, 12, 65, 64 } } },
        { 2, { 16, 64 }, { 4, { 64, 500, 999, 100 } } },
        { 3, { 2, 4, 8 }, { 3, { 501, 301, 65 } } },
        { 4, { 2, 4, 8, 8 }, { 8, { 8, 12, 9, 64, 4, 8, 2, 30 } } },
    };
    int times = argc > 1 ? atoi(argv[1]) : 5;

    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        if (argc < 3 || atoi(argv[2]) == i)
            measure(all[i], times);
    return 0;
}
