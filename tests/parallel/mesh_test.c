/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes with groups: a collective along a dim is one over that row, on every
 * backend; a mesh is made on all ranks or on none. */
#include "support/test_job.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/mesh.h>

#include "support/last_error.h"
#include "support/leak_check.h"

/* ---- rows ---------------------------------------------------------------- */

/* What a rank adds to a sum; no two sets of ranks have the same. */
static int64_t number_of(int rank)
{
    return (int64_t)1 << rank;
}

static oar_status sum_over(oar_group *g, int64_t number, int64_t *sum)
{
    *sum = number;
    return oar_all_reduce(g, oar_span_of(sum, 1, OAR_I64), OAR_SUM, NULL, NULL);
}

/* The group along dim has the ranks of this rank's row, in order. */
static oar_status check_group(const oar_mesh *mesh, int dim)
{
    oar_group *g = oar_mesh_group(mesh, dim);
    int64_t wanted = 0, sum, number;
    int row[8], me = oar_mesh_rank(mesh);

    CHECK(g != NULL && oar_group_size(g) == oar_mesh_size(mesh, dim));
    CHECK_OK(oar_mesh_along(mesh, dim, me, row));
    CHECK(row[oar_group_rank(g)] == me);
    for (int i = 0; i < oar_group_size(g); i++)
        wanted += number_of(row[i]);
    CHECK_OK(sum_over(g, number_of(me), &sum));
    CHECK(sum == wanted);
    for (int root = 0; root < oar_group_size(g); root++) {
        number = me;
        CHECK_OK(oar_broadcast(g, oar_span_of(&number, 1, OAR_I64), root, NULL,
                               NULL));
        CHECK(number == row[root]);
    }
    return OAR_OK;
}

static oar_status check_groups(const oar_mesh *mesh)
{
    for (int d = -1; d < oar_mesh_dims(mesh); d++)
        CHECK_OK(check_group(mesh, d));
    CHECK(oar_mesh_group(mesh, oar_mesh_dims(mesh)) == NULL);
    return OAR_OK;
}

typedef struct mesh_sizes {
    int dims, size[OAR_MESH_DIMS];
} mesh_sizes;

static oar_status check_mesh(oar_group *world, void *arg)
{
    const mesh_sizes *s = arg;
    oar_mesh *mesh = NULL;
    int64_t sum;
    int row[8];

    CHECK_OK(oar_mesh_create(world, s->dims, s->size, NULL, NULL, &mesh));
    CHECK(oar_mesh_rank(mesh) == oar_group_rank(world));
    CHECK(oar_mesh_size(mesh, -1) == oar_group_size(world));
    CHECK_OK(check_groups(mesh));
    for (int d = 0; d < s->dims; d++) {
        CHECK_OK(oar_mesh_along(mesh, d, oar_mesh_rank(mesh), row));
        for (int i = 0; i < oar_mesh_size(mesh, d); i++)
            CHECK(oar_group_translate(oar_mesh_group(mesh, d), i, world) ==
                  row[i]);
    }
    oar_mesh_release(mesh);
    CHECK_OK(sum_over(world, 1, &sum)); /* the group is still the caller's */
    CHECK(sum == oar_group_size(world));
    return OAR_OK;
}

static void check_meshes(int ranks, mesh_sizes *sizes, int count)
{
    for (int i = 0; i < count; i++)
        ranks_all(ranks, check_mesh, &sizes[i]);
}

static void collectives_along_a_dim_are_over_its_row(void **state)
{
    static mesh_sizes six[] = { { 2, { 2, 3 } }, { 2, { -1, 2 } } };
    static mesh_sizes eight[] = { { 3, { 2, 2, 2 } }, { 2, { 4, -1 } } };

    check_meshes(6, six, 2);
    check_meshes(8, eight, 2);
    assert_int_equal(ranks_run("native", 6, NULL, check_mesh, six), OAR_OK);
}

/* Every second rank is on the other host: each row of 2 x 3 has both. */
static int on_two_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *world;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank % 2 == 0 ? "one" : "two", 1);
    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_CHECK(oar_group_host(world, 1) != oar_group_host(world, 0));
    RANK_OK(check_mesh(world, arg));
    oar_group_destroy(world);
    return 0;
}

static void rows_may_be_spread_over_hosts(void **state)
{
    static mesh_sizes six = { 2, { 2, 3 } };
    test_job job;

    test_job_start(&job, 6, on_two_hosts, &six, "2 x 3 ranks on two hosts");
    for (int r = 0; r < 6; r++)
        test_job_expect(&job, r, 0);
    test_job_end(&job);
}

/* The hosts of a job's ranks, a letter for each. */
static oar_status check_hosts(oar_group *world, const char *host)
{
    int rank = oar_group_rank(world), lower = 0;
    oar_mesh *mesh = NULL;

    if (oar_group_size(world) % 2 != 0) {
        oar_status status = oar_mesh_create_by_host(world, NULL, &mesh);
        return status == OAR_E_WORLD && mesh == NULL &&
                       strstr(oar_last_error()->text, "the host of rank") !=
                           NULL
                   ? OAR_OK
                   : OAR_E_DATA;
    }
    if (oar_mesh_create_by_host(world, NULL, &mesh) != OAR_OK)
        return oar_last_error()->status;
    for (int r = 0; r < rank; r++)
        lower += host[r] == host[rank];
    if (oar_mesh_size(mesh, 0) != 2 || oar_mesh_dim(mesh, "local") != 1 ||
        oar_mesh_rank(mesh) !=
            (host[rank] == host[0] ? 0 : 1) * oar_mesh_size(mesh, 1) + lower)
        return OAR_E_DATA;
    for (int r = 0; r < oar_mesh_size(mesh, 1); r++)
        if (oar_group_host(oar_mesh_group(mesh, 1), r) != 0)
            return OAR_E_DATA;
    for (int r = 0; r < 2; r++)
        if (oar_group_host(oar_mesh_group(mesh, 0), r) != r)
            return OAR_E_DATA;
    oar_mesh_release(mesh);
    return OAR_OK;
}

static int arranged_by_host(test_job *c, int rank, void *arg)
{
    const char *host = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_group *world;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", host[rank] == 'a' ? "one" : "two", 1);
    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_OK(check_hosts(world, host));
    oar_group_destroy(world);
    return 0;
}

static void a_mesh_by_host_has_a_row_for_each_host(void **state)
{
    static char *hosts[] = { "aabb", "ababab", "baab", "aab" };

    for (int i = 0; i < 4; i++) {
        test_job job;

        test_job_start(&job, (int)strlen(hosts[i]), arranged_by_host, hosts[i],
                       hosts[i]);
        for (int r = 0; r < (int)strlen(hosts[i]); r++)
            test_job_expect(&job, r, 0);
        test_job_end(&job);
    }
}

static void rows_of_one_and_of_all_are_groups_like_others(void **state)
{
    static mesh_sizes one[] = { { 1, { 1 } }, { 4, { 1, 1, 1, -1 } } };
    static mesh_sizes three[] = { { 1, { -1 } }, { 4, { 1, 3, 1, 1 } } };
    static mesh_sizes four[] = { { 4, { 2, 1, 2, 1 } } };

    check_meshes(1, one, 2);
    check_meshes(3, three, 2);
    check_meshes(4, four, 1);
}

static oar_status share_rows(oar_group *world, void *arg)
{
    oar_mesh *mesh;

    CHECK_OK(oar_mesh_create(world, 3, (int[]){ 1, 3, 1 }, NULL, NULL, &mesh));
    CHECK(oar_mesh_group(mesh, 1) == oar_mesh_group(mesh, -1));
    CHECK(oar_mesh_group(mesh, 0) == oar_mesh_group(mesh, 2));
    CHECK(oar_mesh_group(mesh, 0) != oar_mesh_group(mesh, 1));
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void dims_with_the_same_rows_have_one_group(void **state)
{
    ranks_all(3, share_rows, NULL);
}

/* ---- slices -------------------------------------------------------------- */

static const char *const three_names[3] = { "pp", "dp", "tp" };

/* The sum over a slice is that over the ranks of the mesh whose coordinates
 * along the other dims are this rank's. */
static oar_status check_sum(const oar_mesh *mesh, const oar_mesh *slice,
                            const int *dim, int dims)
{
    int me[OAR_MESH_DIMS], at[OAR_MESH_DIMS];
    int64_t wanted = 0, sum;

    CHECK_OK(oar_mesh_coordinates(mesh, oar_mesh_rank(mesh), me));
    for (int r = 0; r < oar_mesh_size(mesh, -1); r++) {
        CHECK_OK(oar_mesh_coordinates(mesh, r, at));
        for (int i = 0; i < dims; i++)
            at[dim[i]] = me[dim[i]];
        if (memcmp(at, me, (size_t)oar_mesh_dims(mesh) * sizeof *at) == 0)
            wanted += number_of(r);
    }
    CHECK_OK(sum_over(oar_mesh_group(slice, -1), number_of(oar_mesh_rank(mesh)),
                      &sum));
    CHECK(sum == wanted);
    return OAR_OK;
}

static oar_status check_slices(oar_group *world, void *arg)
{
    oar_mesh *mesh, *pair, *turned, *one, *flat, *all;

    CHECK_OK(oar_mesh_create(world, 3, (int[]){ 2, 2, 2 }, three_names, NULL,
                             &mesh));
    CHECK_OK(oar_mesh_slice(mesh, "pp,tp", &pair));
    CHECK_OK(oar_mesh_slice(mesh, "tp,pp", &turned));
    CHECK_OK(oar_mesh_slice(mesh, "dp", &one));
    CHECK_OK(oar_mesh_flatten(mesh, "dp,tp", "both", &flat));
    CHECK_OK(oar_mesh_flatten(mesh, "pp,dp,tp", "all", &all));
    CHECK_OK(check_groups(pair));
    CHECK_OK(check_groups(turned));
    CHECK_OK(check_groups(one));
    CHECK_OK(check_groups(flat));
    CHECK_OK(check_sum(mesh, pair, (int[]){ 0, 2 }, 2));
    CHECK_OK(check_sum(mesh, turned, (int[]){ 0, 2 }, 2));
    CHECK_OK(check_sum(mesh, one, (int[]){ 1 }, 1));
    CHECK_OK(check_sum(mesh, flat, (int[]){ 1, 2 }, 2));
    /* what there is, is shared */
    CHECK(oar_mesh_group(pair, 0) == oar_mesh_group(mesh, 0));
    CHECK(oar_mesh_group(turned, 0) == oar_mesh_group(mesh, 2));
    CHECK(oar_mesh_group(one, 0) == oar_mesh_group(mesh, 1));
    CHECK(oar_mesh_group(one, -1) == oar_mesh_group(mesh, 1));
    CHECK(oar_mesh_group(flat, 0) == oar_mesh_group(flat, -1));
    CHECK(oar_mesh_group(all, 0) == oar_mesh_group(mesh, -1));
    /* and lives as long as one of them does */
    oar_mesh_release(mesh);
    CHECK_OK(check_groups(all));
    CHECK_OK(check_groups(one));
    oar_mesh_release(all);
    oar_mesh_release(turned);
    CHECK_OK(check_groups(pair));
    oar_mesh_release(pair);
    oar_mesh_release(one);
    CHECK_OK(check_groups(flat));
    oar_mesh_release(flat);
    return OAR_OK;
}

static void slices_share_groups_and_outlive_their_mesh(void **state)
{
    ranks_all(8, check_slices, NULL);
}

static oar_status slice_twice(oar_group *world, void *arg)
{
    oar_mesh *mesh, *pair, *tp;

    CHECK_OK(oar_mesh_create(world, 3, (int[]){ 1, 2, 3 }, three_names, NULL,
                             &mesh));
    CHECK_OK(oar_mesh_slice(mesh, "tp,dp", &pair));
    CHECK_OK(oar_mesh_slice(pair, "tp", &tp));
    CHECK(oar_mesh_group(tp, 0) == oar_mesh_group(mesh, 2));
    CHECK_OK(check_groups(pair));
    oar_mesh_release(tp);
    CHECK_OK(oar_mesh_flatten(mesh, "pp,tp", "x", &tp)); /* pp has size 1 */
    CHECK(oar_mesh_group(tp, 0) == oar_mesh_group(mesh, 2));
    oar_mesh_release(tp);
    CHECK_OK(oar_mesh_slice(mesh, "pp", &tp));
    CHECK(oar_mesh_group(tp, 0) == oar_mesh_group(mesh, 0));
    CHECK_OK(check_groups(tp));
    oar_mesh_release(tp);
    oar_mesh_release(pair);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void a_slice_is_a_mesh_that_can_be_sliced(void **state)
{
    ranks_all(6, slice_twice, NULL);
}

/* ---- ranks that differ --------------------------------------------------- */

static oar_status differ(oar_group *world, void *arg)
{
    static const char *const names[2] = { "dp", "tp" };
    static const char *const other[2] = { "dp", "cp" };
    int last = oar_group_rank(world) == 5, straight[2] = { 2, 3 },
        turned[2] = { 3, 2 }, wrong[2] = { 2, 2 };
    oar_mesh *mesh = NULL, *slice = NULL;
    oar_mesh_opts o = oar_mesh_opts_init();

    o.gb_per_s = (double[]){ 8, last ? 4 : 5 };
    CHECK(fails_with(oar_mesh_create(world, 2, straight, names, &o, &mesh),
                     OAR_E_MISMATCH, "with GB/s 8, 4 on rank 5"));
    CHECK(fails_with(
        oar_mesh_create(world, 2, last ? turned : straight, names, NULL, &mesh),
        OAR_E_MISMATCH,
        "2 dims of 2 x 3 named dp, tp on rank 0 and 2 dims of 3 x "
        "2 named dp, tp on rank 5"));
    CHECK(fails_with(
        oar_mesh_create(world, 2, straight, last ? other : names, NULL, &mesh),
        OAR_E_MISMATCH, "named dp, cp on rank 5"));
    CHECK(fails_with(
        oar_mesh_create(world, 2, straight, last ? NULL : names, NULL, &mesh),
        OAR_E_MISMATCH, "rank 5"));
    /* sizes that only one rank has wrong */
    CHECK(fails_with(
        oar_mesh_create(world, 2, last ? wrong : straight, names, NULL, &mesh),
        OAR_E_MISMATCH, "2 x 2"));
    CHECK(fails_with(oar_mesh_create(world, last ? 7 : 2, last ? NULL : turned,
                                     NULL, NULL, &mesh),
                     OAR_E_MISMATCH, "7 dims without sizes on rank 5"));
    CHECK(mesh == NULL);
    CHECK_OK(oar_mesh_create(world, 2, straight, names, NULL, &mesh));
    CHECK(fails_with(oar_mesh_slice(mesh, last ? "tp" : "dp", &slice),
                     OAR_E_MISMATCH,
                     "dims dp on rank 0 and dims tp on rank 5"));
    CHECK(fails_with(oar_mesh_flatten(mesh, "dp,tp", last ? "a" : "b", &slice),
                     OAR_E_MISMATCH, "as a on rank 5"));
    CHECK(fails_with(oar_mesh_slice(mesh, last ? "none" : "dp", &slice),
                     OAR_E_MISMATCH, "none"));
    CHECK(slice == NULL);
    CHECK_OK(check_groups(mesh)); /* nothing is broken */
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void ranks_that_differ_are_told(void **state)
{
    ranks_all(6, differ, NULL);
}

static oar_status refuse(oar_group *world, void *arg)
{
    oar_mesh *mesh = NULL, *slice = NULL;

    CHECK(fails_with(
        oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL, &mesh),
        OAR_E_WORLD, "2 x 2 ranks cannot be made of 3"));
    CHECK(oar_mesh_create(world, 0, NULL, NULL, NULL, &mesh) == OAR_E_WORLD);
    CHECK(oar_mesh_create(world, 1, NULL, NULL, NULL, &mesh) == OAR_E_ARG);
    CHECK(oar_mesh_create(world, 1, (int[]){ 3 }, (const char *[]){ NULL },
                          NULL, &mesh) == OAR_E_ARG);
    CHECK_OK(oar_batch_begin(world));
    CHECK(fails_with(oar_mesh_create(world, 1, (int[]){ 3 }, NULL, NULL, &mesh),
                     OAR_E_STATE, "inside a batch"));
    CHECK_OK(oar_batch_end(world, NULL));
    CHECK(mesh == NULL);
    CHECK_OK(oar_mesh_create(world, 2, (int[]){ 3, 1 }, NULL, NULL, &mesh));
    CHECK(oar_mesh_slice(mesh, "dp", &slice) == OAR_E_NOT_FOUND);
    CHECK(oar_mesh_flatten(mesh, "0,1", "a,b", &slice) == OAR_E_ARG);
    CHECK_OK(oar_batch_begin(oar_mesh_group(mesh, -1)));
    CHECK(fails_with(oar_mesh_slice(mesh, "0", &slice), OAR_E_STATE,
                     "inside a batch"));
    CHECK_OK(oar_batch_end(oar_mesh_group(mesh, -1), NULL));
    CHECK(slice == NULL);
    CHECK_OK(check_groups(mesh));
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void wrong_calls_are_refused_on_all_ranks(void **state)
{
    ranks_all(3, refuse, NULL);
}

/* ---- without memory ------------------------------------------------------ */

static oar_status make_alone(void *arg)
{
    oar_mesh *mesh = NULL, *slice = NULL, *flat = NULL;
    oar_status status;

    status =
        oar_mesh_create(arg, 3, (int[]){ 1, 1, 1 }, three_names, NULL, &mesh);
    if (status == OAR_OK)
        status = oar_mesh_slice(mesh, "tp,pp", &slice);
    if (status == OAR_OK)
        status = oar_mesh_flatten(mesh, "dp,tp", "x", &flat);
    oar_mesh_release(mesh);
    oar_mesh_release(slice);
    oar_mesh_release(flat);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    oar_group *g;

    OK(oar_group_create(NULL, 0, 1, NULL, &g));
    OK(make_alone(g)); /* the plans are made */
    fail_each_allocation(make_alone, g);
    oar_group_destroy(g);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

typedef struct lacking {
    uint64_t allocation; /* which one fails on rank 1 */
    int slices;          /* while a slice is made, not the mesh */
    shared_flag without; /* ranks that have got no mesh */
} lacking;

static oar_status lack_memory(oar_group *world, void *arg)
{
    lacking *l = arg;
    int lacks = oar_group_rank(world) == 1;
    oar_mesh *mesh = NULL, *slice = NULL;
    oar_status status;
    int64_t sum;

    CHECK_OK(sum_over(world, 1, &sum)); /* the plan is made */
    if (l->slices)
        CHECK_OK(oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL, &mesh));
    if (lacks)
        oar_memory_fail_after(l->allocation);
    status = l->slices ? oar_mesh_slice(mesh, "1,0", &slice)
                       : oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL,
                                         &mesh);
    oar_memory_fail_after(0);
    CHECK((status == OAR_OK) == ((l->slices ? slice : mesh) != NULL));
    if (status != OAR_OK) {
        CHECK(oar_last_error()->status == status);
        CHECK(!lacks || status == OAR_E_NOMEM);
        shared_flag_raise(&l->without);
    }
    oar_mesh_release(slice);
    oar_mesh_release(mesh);
    return OAR_OK;
}

/* A rank's peers may wait for it in the rendezvous of a group that it could not
 * open; hence the timeout. */
static void lack_on_one_rank(int slices, int nth, int may_succeed)
{
    lacking *l = shared_page(sizeof *l);
    oar_group_opts o = oar_group_opts_init();
    uint32_t without;

    o.timeout_ms = 3000 * SLOWLY;
    l->allocation = (uint64_t)nth;
    l->slices = slices;
    OK(ranks_run("shm", 4, &o, lack_memory, l));
    without = atomic_load(&l->without);
    assert_true(without == 4 || (without == 0 && may_succeed));
    shared_page_free(l, sizeof *l);
}

static void without_memory_on_one_rank_none_gets_a_mesh(void **state)
{
    for (int nth = 1; nth <= 8; nth++)
        lack_on_one_rank(0, nth, 0);
    lack_on_one_rank(0, 20, 1);
    lack_on_one_rank(0, 60, 1);
    lack_on_one_rank(0, 130, 1);
}

static void without_memory_on_one_rank_none_gets_a_slice(void **state)
{
    for (int nth = 1; nth <= 4; nth++)
        lack_on_one_rank(1, nth, 0);
    lack_on_one_rank(1, 40, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_along_a_dim_are_over_its_row),
        cmocka_unit_test(rows_may_be_spread_over_hosts),
        cmocka_unit_test(a_mesh_by_host_has_a_row_for_each_host),
        cmocka_unit_test(rows_of_one_and_of_all_are_groups_like_others),
        cmocka_unit_test(dims_with_the_same_rows_have_one_group),
        cmocka_unit_test(slices_share_groups_and_outlive_their_mesh),
        cmocka_unit_test(a_slice_is_a_mesh_that_can_be_sliced),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(wrong_calls_are_refused_on_all_ranks),
        cmocka_unit_test(every_failing_allocation_is_reported),
        cmocka_unit_test(without_memory_on_one_rank_none_gets_a_mesh),
        cmocka_unit_test(without_memory_on_one_rank_none_gets_a_slice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
