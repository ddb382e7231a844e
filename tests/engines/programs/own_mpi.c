/* SPDX-License-Identifier: Apache-2.0 */
/* A program that initialises and finalises MPI itself, with the thread level
 * given as its argument, and in between uses groups from two threads; with
 * "late" it finalises MPI before it destroys its groups. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { COUNT = 1003, ROUNDS = 50 };

typedef struct group_thread {
    oar_group *group;
    int failures;
} group_thread;

static void *work(void *arg)
{
    group_thread *w = arg;
    float data[COUNT];
    int ranks = oar_group_size(w->group);

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            data[i] = (float)(oar_group_rank(w->group) + i % 7 + round);
        if (oar_all_reduce(w->group, oar_span_of(data, COUNT, OAR_F32), OAR_SUM,
                           NULL, NULL) != OAR_OK)
            w->failures++;
        for (int i = 0; i < COUNT; i++)
            w->failures += data[i] != (float)(ranks * (ranks - 1) / 2 +
                                              ranks * (i % 7 + round));
    }
    return NULL;
}

static int use_groups(void)
{
    oar_group *world = NULL, *other = NULL;
    group_thread w[2] = { { 0 } };
    pthread_t thread;

    if (oar_group_from_env(NULL, &world) != OAR_OK ||
        oar_group_dup(world, &other) != OAR_OK) {
        fprintf(stderr, "%s\n", oar_last_error_text());
        return 1;
    }
    w[0].group = world;
    w[1].group = other;
    pthread_create(&thread, NULL, work, &w[1]);
    work(&w[0]);
    pthread_join(thread, NULL);
    oar_group_destroy(other);
    oar_group_destroy(world);
    return w[0].failures + w[1].failures;
}

/* Finalised too early: a call is told so, and destroying does no harm. */
static int finalise_first(void)
{
    oar_group *world = NULL, *other = NULL;
    float x = 1;
    int failures = 0;

    if (oar_group_from_env(NULL, &world) != OAR_OK ||
        oar_group_dup(world, &other) != OAR_OK ||
        oar_all_reduce(world, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                       NULL) != OAR_OK) {
        fprintf(stderr, "%s\n", oar_last_error_text());
        return 1;
    }
    MPI_Finalize();
    if (oar_all_reduce(world, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                       NULL) != OAR_E_STATE ||
        strstr(oar_last_error_text(), "MPI_Finalize") == NULL) {
        fprintf(stderr, "all_reduce: %s\n", oar_last_error_text());
        failures++;
    }
    oar_group_destroy(world);
    oar_group_destroy(other);
    printf("own_mpi: finalised first, %d failures\n", failures);
    return failures;
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "single", "funneled", "serialized",
                                         "multiple" };
    static const int levels[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED,
                                  MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE };
    int wanted = MPI_THREAD_MULTIPLE, got, failures, one = 1, ranks, sum;

    for (int i = 0; argc > 1 && i < 4; i++)
        if (strcmp(argv[1], names[i]) == 0)
            wanted = levels[i];
    MPI_Init_thread(&argc, &argv, wanted, &got);
    if (argc > 1 && strcmp(argv[1], "late") == 0)
        return finalise_first();
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    failures = use_groups();
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* still */
    MPI_Finalize();
    printf("own_mpi: %d failures, asked for level %d, got %d\n", failures,
           wanted, got);
    return failures != 0 || sum != ranks;
}
