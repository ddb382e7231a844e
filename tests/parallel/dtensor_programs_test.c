/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs of 5 to 20 operations on DTensors, of random placements on
 * random meshes, forward and backward, against the same on one rank. A program
 * follows from its seed, which is printed if it fails:
 *
 *     OARSONG_TEST_SEED=N dtensor_programs_test     the program N alone
 *     OARSONG_TEST_ALL=1 dtensor_programs_test      1500 of them; above 1:
 *                                                   so many, from the seed on
 */
#include "support/ranks.h"

#include <stdlib.h>

#include <oarsong/device.h>
#include <oarsong/log.h>

#include "support/dtensor_program.h"

enum { A_FEW = 200, MANY = 1500 };

/* ---- many ---------------------------------------------------------------- */

typedef struct programs {
    int dims, size[3];
    uint64_t first, end, every;
} programs;

/* A mesh keeps what it has decided, so a new one is made now and then. */
static oar_status run_programs(oar_group *world, void *arg)
{
    const programs *all = arg;
    oar_mesh *mesh = NULL;
    int ran = 0;

    for (uint64_t seed = all->first; seed < all->end; seed += all->every) {
        if (ran++ % 20 == 0) {
            oar_mesh_release(mesh);
            mesh = NULL;
            CHECK_OK(oar_mesh_create(world, all->dims, all->size, NULL, NULL,
                                     &mesh));
        }
        if (program_check(mesh, oar_device_of(OAR_CPU, 0), seed) != OAR_OK)
            return OAR_E_INTERNAL;
    }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void say_nothing(void *arg, oar_log_level level, const char *line)
{
}

static void random_programs_are_those_of_one_rank(void **state)
{
    static const struct {
        int dims, size[3];
    } mesh[] = {
        { 1, { 2 } }, { 2, { 2, 2 } },    { 1, { 3 } },    { 2, { 3, 2 } },
        { 1, { 1 } }, { 3, { 2, 2, 2 } }, { 1, { 5 } },    { 2, { 1, 4 } },
        { 1, { 8 } }, { 3, { 2, 1, 3 } }, { 2, { 2, 4 } }, { 1, { 7 } },
    };
    uint64_t meshes = sizeof mesh / sizeof *mesh;
    const char *seed = getenv("OARSONG_TEST_SEED");
    const char *all = getenv("OARSONG_TEST_ALL");
    uint64_t first = seed != NULL ? strtoull(seed, NULL, 10) : 0;
    uint64_t count = seed != NULL ? 1 : A_FEW;

    if (all != NULL)
        count = strtoull(all, NULL, 10) > 1 ? strtoull(all, NULL, 10) : MANY;
    oar_log_to(say_nothing, NULL, OAR_LOG_WARN);
    for (uint64_t i = 0; i < meshes; i++) {
        programs p = { .dims = mesh[i].dims };
        int ranks = 1;

        for (int m = 0; m < p.dims; m++) {
            p.size[m] = mesh[i].size[m];
            ranks *= p.size[m];
        }
        p.first = first + (i + meshes - first % meshes) % meshes;
        p.end = first + count;
        p.every = meshes;
        if (p.first < p.end)
            assert_int_equal(ranks_run("sim", ranks, NULL, run_programs, &p),
                             OAR_OK);
    }
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_are_those_of_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
