/* SPDX-License-Identifier: Apache-2.0 */
/* Measures oar_redistribute beside the plain collective of the same bytes, in
 * turns: what the second costs is all that the first may.
 *
 *     speed/dtensor_move [RANKS [ELEMENTS [ROUNDS]]]     (2, 262144, 200)
 *
 * Prints the medians of both in us, and the median of their ratios. */
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/collective.h>
#include <oarsong/dtensor.h>
#include <oarsong/launch.h>
#include <oarsong/ops.h>

#include "base/clock.h"

enum { WARM_UP = 10 };

typedef struct move_bench {
    oar_group *group;
    oar_mesh *mesh;
    int64_t elements;
    int rounds;
} move_bench;

typedef oar_status plain_fn(oar_group *group, oar_span in, oar_span out);

static oar_status gather(oar_group *group, oar_span in, oar_span out)
{
    return oar_all_gather(group, in, out, NULL, NULL);
}

static oar_status reduce(oar_group *group, oar_span in, oar_span out)
{
    return oar_all_reduce_into(group, in, out, OAR_SUM, NULL, NULL);
}

static oar_status reduce_scatter(oar_group *group, oar_span in, oar_span out)
{
    return oar_reduce_scatter(group, in, out, OAR_SUM, NULL, NULL);
}

static oar_status exchange(oar_group *group, oar_span in, oar_span out)
{
    return oar_all_to_all(group, in, out, NULL, NULL);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *of, int count)
{
    qsort(of, (size_t)count, sizeof *of, by_size);
    return of[count / 2];
}

/* One round: the collective into a tensor that is made for it, as a move makes
 * one, or the move. */
static oar_status go(oar_group *group, oar_tensor *in, const oar_spec *from,
                     const oar_spec *to, plain_fn *plain, double *us)
{
    int64_t start = oari_now_ns();
    oar_status status = OAR_OK;
    oar_span a, b;
    oar_tensor *out;

    if (plain != NULL) {
        out = oar_empty(NULL, OAR_F32,
                        oar_spec_local_shape(to, oar_group_rank(group)));
        if (out == NULL || oar_tensor_const_span(in, &a) != OAR_OK ||
            oar_tensor_span(out, &b) != OAR_OK)
            return OAR_E_NOMEM;
        status = plain(group, a, b);
    } else {
        out = oar_redistribute(NULL, oar_dtensor_from_local(in, from), to, NULL)
                  .local;
    }
    *us = (double)(oari_now_ns() - start) / 1000;
    if (out == NULL)
        return oar_last_error()->status;
    oar_tensor_release(out);
    return status;
}

static oar_status measure(const move_bench *b, const char *name,
                          oar_placement from, oar_placement to, plain_fn *plain)
{
    int n = oar_group_size(b->group), rank = oar_group_rank(b->group);
    oar_shape shape = OAR_SHAPE(b->elements / (n * n), n * n);
    const oar_spec *a = oar_spec_of(b->mesh, 1, &from, shape, NULL);
    const oar_spec *z = oar_spec_of(b->mesh, 1, &to, shape, NULL);
    double *times = malloc((size_t)b->rounds * 3 * sizeof *times);
    double *took[2] = { times, times + b->rounds };
    double *ratio = times + 2 * b->rounds;
    oar_tensor *in = oar_ones(NULL, OAR_F32, oar_spec_local_shape(a, rank));
    oar_status status = OAR_OK;

    for (int i = -WARM_UP; i < b->rounds && status == OAR_OK; i++) {
        int at = i < 0 ? 0 : i;

        for (int k = 0; k < 2 && status == OAR_OK; k++) {
            int moved = (i & 1) ^ k; /* each is first every other round */

            status =
                go(b->group, in, a, z, moved ? NULL : plain, &took[moved][at]);
        }
        ratio[at] = took[1][at] / took[0][at];
    }
    if (rank == 0 && status == OAR_OK)
        printf("%-16s plain %9.2f  redistribute %9.2f us  ratio %.3f\n", name,
               median(took[0], b->rounds), median(took[1], b->rounds),
               median(ratio, b->rounds));
    oar_tensor_release(in);
    free(times);
    return status;
}

static oar_status rank(oar_group *group, void *arg)
{
    oar_placement s = oar_placement_shard(0), s1 = oar_placement_shard(1);
    oar_placement r = oar_placement_replicate();
    oar_placement p = oar_placement_partial(OAR_REDUCE_OP_SUM);
    move_bench b = *(move_bench *)arg;
    int n = oar_group_size(group);
    oar_status status = oar_mesh_create(group, 1, &n, NULL, NULL, &b.mesh);

    b.group = group;
    b.elements -= b.elements % ((int64_t)n * n * n);
    if (status == OAR_OK &&
        (status = measure(&b, "S(0) to R", s, r, gather)) == OAR_OK &&
        (status = measure(&b, "P to R", p, r, reduce)) == OAR_OK &&
        (status = measure(&b, "P to S(0)", p, s, reduce_scatter)) == OAR_OK)
        status = measure(&b, "S(0) to S(1)", s, s1, exchange);
    fflush(stdout);
    oar_mesh_release(b.mesh);
    return status;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2;
    move_bench b = { .elements = argc > 2 ? atoll(argv[2]) : 262144,
                     .rounds = argc > 3 ? atoi(argv[3]) : 200 };

    if (ranks < 2 || b.rounds < 1 ||
        oar_launch_fn(ranks, rank, &b, NULL, NULL, NULL) != OAR_OK) {
        fprintf(stderr, "dtensor_move: %s\n", oar_last_error_text());
        return 1;
    }
    return 0;
}
