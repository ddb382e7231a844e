/* SPDX-License-Identifier: Apache-2.0 */
/* A batch norm over ranks that have a GPU each, and batches of other sizes: the
 * results, the gradients and the running statistics of one batch on the cpu. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"

enum { RANKS = 3, CHANNELS = 5, IMAGE = CHANNELS * 4, IMAGES = 6, ALL = 256 };

typedef struct norm_outcome {
    double y[ALL], dx[ALL], mean[CHANNELS], var[CHANNELS];
} norm_outcome;

/* Images first .. first + count - 1 of the batch through a batch norm. */
static oar_status run(oar_module *norm, oar_device device, int64_t first,
                      int64_t count, norm_outcome *o)
{
    oar_tensor *all[2], *part[2], *y;
    oar_tape *tape;

    if (oar_tape_create(&tape) != OAR_OK)
        return oar_last_error()->status;
    for (int i = 0; i < 2; i++) {
        all[i] = oar_normal(tape, OAR_F32, OAR_SHAPE(IMAGES, CHANNELS, 2, 2),
                            11 + (uint64_t)i, 1, 2);
        all[i] =
            oar_contiguous(tape, oar_narrow(tape, all[i], 0, first, count));
        part[i] = oar_to(NULL, all[i], device);
    }
    if (oar_tensor_require_grad(part[0], 1) != OAR_OK ||
        (y = oar_forward(tape, norm, part[0])) == NULL ||
        oar_backward_from(tape, 1, &y, &part[1]) != OAR_OK ||
        oar_tensor_read(y, OAR_F64, o->y) != OAR_OK ||
        oar_tensor_read(oar_tensor_grad(part[0]), OAR_F64, o->dx) != OAR_OK ||
        oar_tensor_read(oar_module_buffer(norm, 0), OAR_F64, o->mean) !=
            OAR_OK ||
        oar_tensor_read(oar_module_buffer(norm, 1), OAR_F64, o->var) != OAR_OK)
        return oar_last_error()->status;
    oar_tape_destroy(tape);
    oar_tensor_release(part[0]);
    oar_tensor_release(part[1]);
    return OAR_OK;
}

static int are_near(const char *what, const double *a, const double *b,
                    int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-5 * (1 + fabs(b[i])))) {
            fprintf(stderr, "%s %ld: %.9g, on the cpu %.9g\n", what, (long)i,
                    a[i], b[i]);
            return 0;
        }
    return 1;
}

/* Rank r has r + 1 images. */
static int normalises(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    int64_t first = rank * (rank + 1) / 2, count = rank + 1;
    static norm_outcome here, there;
    oar_module *one, *sync;
    oar_group *group;

    o.backend = arg;
    RANK_OK(gpu_ranks_join(c, rank, &o, &group));
    RANK_OK(oar_batch_norm_create(2, CHANNELS, NULL, &one));
    RANK_OK(oar_sync_batch_norm_create(2, CHANNELS, group, NULL, &sync));
    RANK_OK(oar_module_to(sync, gpu_of_rank(rank)));
    RANK_OK(run(one, oar_device_of(OAR_CPU, 0), 0, IMAGES, &here));
    RANK_OK(run(sync, gpu_of_rank(rank), first, count, &there));
    RANK_CHECK(
        are_near("result", there.y, here.y + first * IMAGE, count * IMAGE));
    RANK_CHECK(
        are_near("gradient", there.dx, here.dx + first * IMAGE, count * IMAGE));
    RANK_CHECK(are_near("mean", there.mean, here.mean, CHANNELS));
    RANK_CHECK(are_near("variance", there.var, here.var, CHANNELS));
    oar_module_release(one);
    oar_module_release(sync);
    oar_group_destroy(group);
    return 0;
}

static void run_ranks(const char *backend)
{
    char name[16];
    test_job c;

    gpu_ranks_need(RANKS);
    snprintf(name, sizeof name, "%s", backend);
    test_job_start(&c, RANKS, normalises, name, "syncbn %s", backend);
    for (int rank = 0; rank < RANKS; rank++)
        test_job_expect(&c, rank, 0);
    test_job_end(&c);
}

static void statistics_are_those_of_all_ranks_over_nccl(void **state)
{
    run_ranks("nccl");
}

static void statistics_are_those_of_all_ranks_over_ipc(void **state)
{
    run_ranks("ipc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_those_of_all_ranks_over_nccl),
        cmocka_unit_test(statistics_are_those_of_all_ranks_over_ipc),
    };

    setenv("STANDIN_DELAY_US", "20", 0);
    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
