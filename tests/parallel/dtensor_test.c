/* SPDX-License-Identifier: Apache-2.0 */
/* DTensors with data: what arrives is bitwise the cut of the whole, gradients
 * are those of one process, and wrong use is named on all ranks. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/checkpoint.h>
#include <oarsong/dtensor.h>
#include <oarsong/ops.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spec_elements.h"

enum { MOST = 64 };

typedef struct mesh_case {
    int dims, size[3];
    oar_shape shape;
    int every; /* one of so many pairs of specs */
    oar_dtype dtype;
} mesh_case;

/* ---- numbers of a part --------------------------------------------------- */

/* Writes a rank's numbers of a spec, in the order of elements: those of its
 * summand, or the sums. Returns how many. */
static int64_t write_part(const oar_spec *spec, const oar_spec *summands,
                          int rank, double *to)
{
    int64_t n = 0;

    for (int64_t e = 0; e < shape_count(oar_spec_shape(spec)); e++) {
        double number = 0;

        if (!spec_has_element(spec, rank, e))
            continue;
        if (summands == NULL)
            number = (double)spec_summand(e, spec_summand_of(spec, rank));
        for (int i = 0; summands != NULL && i < spec_summands(summands); i++)
            number += (double)spec_summand(e, i);
        to[n++] = number;
    }
    return n;
}

static oar_tensor *make_part(const oar_spec *spec, oar_dtype dtype, int rank)
{
    oar_tensor *t = oar_empty(NULL, dtype, oar_spec_local_shape(spec, rank));
    double number[MOST];

    if (t != NULL &&
        write_part(spec, NULL, rank, number) != oar_tensor_count(t))
        return NULL;
    return t != NULL && oar_tensor_write(t, OAR_F64, number) == OAR_OK ? t
                                                                       : NULL;
}

/* The tensor has the numbers of a rank's part, as `from` made them. */
static oar_status check_part(const oar_tensor *t, const oar_spec *spec,
                             const oar_spec *from, int rank)
{
    double number[MOST], wanted[MOST];
    oar_tensor *rounded;
    int64_t n = write_part(spec, from, rank, wanted);

    CHECK(t != NULL && oar_tensor_count(t) == n);
    CHECK_OK(oar_tensor_read(t, OAR_F64, number));
    rounded = oar_empty(NULL, oar_tensor_dtype(t), OAR_SHAPE(n));
    CHECK_OK(oar_tensor_write(rounded, OAR_F64, wanted));
    CHECK_OK(oar_tensor_read(rounded, OAR_F64, wanted));
    oar_tensor_release(rounded);
    CHECK(memcmp(number, wanted, (size_t)n * sizeof *number) == 0);
    return OAR_OK;
}

static const oar_spec *replicated(oar_mesh *mesh, oar_shape shape)
{
    oar_placement r[4] = { { OAR_REPLICATE, 0, OAR_REDUCE_OP_SUM, NULL } };

    return oar_spec_of(mesh, oar_mesh_dims(mesh), r, shape, NULL);
}

static int is_partial(const oar_spec *spec)
{
    for (int m = 0; m < oar_mesh_dims(oar_spec_mesh(spec)); m++)
        if (oar_spec_placement(spec, m).kind == OAR_PARTIAL)
            return 1;
    return 0;
}

/* Where the gradient lies: replicated instead of partial. */
static const oar_spec *grad_spec(const oar_spec *spec, spec_list *list)
{
    for (int i = 0; i < list->count; i++) {
        int same = 1;

        for (int m = 0; m < oar_mesh_dims(oar_spec_mesh(spec)); m++) {
            oar_placement a = oar_spec_placement(spec, m);
            oar_placement b = oar_spec_placement(list->spec[i], m);

            if (a.kind == OAR_PARTIAL)
                a = oar_placement_replicate();
            same &= a.kind == b.kind && a.dim == b.dim && a.sizes == b.sizes;
        }
        for (int r = 0; same && r < oar_mesh_size(oar_spec_mesh(spec), -1); r++)
            for (int64_t e = 0; e < shape_count(oar_spec_shape(spec)); e++)
                same &= spec_has_element(spec, r, e) ==
                        spec_has_element(list->spec[i], r, e);
        if (same)
            return list->spec[i];
    }
    return NULL;
}

/* ---- every move ---------------------------------------------------------- */

static oar_status check_move(const oar_spec *from, const oar_spec *to,
                             oar_dtype dtype)
{
    oar_mesh *mesh = oar_spec_mesh(from);
    int rank = oar_mesh_rank(mesh);
    oar_tensor *local = make_part(from, dtype, rank);
    oar_dtensor a = oar_dtensor_from_local(local, from), b, c;

    b = oar_redistribute(NULL, a, to, NULL);
    CHECK(b.local != NULL && b.spec == to);
    if (is_partial(to) && from != to) {
        const oar_spec *all = replicated(mesh, oar_spec_shape(to));

        c = oar_redistribute(NULL, b, all, NULL);
        CHECK_OK(check_part(c.local, all, from, rank));
        oar_tensor_release(c.local);
    } else if (from != to) {
        CHECK_OK(check_part(b.local, to, from, rank));
    } else {
        CHECK(b.local == local);
    }
    oar_tensor_release(b.local);
    oar_tensor_release(local);
    return OAR_OK;
}

/* The gradient of the result, which lies as it does, arrives as the gradient of
 * the operand, which lies as that does. */
static oar_status check_grad(const oar_spec *from, const oar_spec *to,
                             spec_list *list)
{
    int rank = oar_mesh_rank(oar_spec_mesh(from));
    const oar_spec *from_grad = grad_spec(from, list);
    const oar_spec *to_grad = grad_spec(to, list);
    oar_tensor *local = make_part(from, OAR_F64, rank), *seed;
    oar_dtensor y;
    oar_tape *tape;

    CHECK(from_grad != NULL && to_grad != NULL);
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_tensor_require_grad(local, 1));
    seed = make_part(to_grad, OAR_F64, rank);
    for (int pass = 1; pass <= 2; pass++) { /* the second adds */
        y = oar_redistribute(tape, oar_dtensor_from_local(local, from), to,
                             NULL);
        CHECK(y.local != NULL);
        if (y.local == local)
            break;
        CHECK_OK(oar_backward_from(tape, 1, &y.local, &seed));
        if (pass == 1)
            CHECK_OK(
                check_part(oar_tensor_grad(local), from_grad, from_grad, rank));
        oar_tape_reset(tape);
    }
    if (y.local != local && oar_tensor_count(local) > 0) {
        oar_tensor *half = oar_scale(NULL, oar_tensor_grad(local), 0.5);

        CHECK_OK(check_part(half, from_grad, from_grad, rank));
        oar_tensor_release(half);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(seed);
    oar_tensor_release(local);
    return OAR_OK;
}

static oar_status move_all(oar_group *world, void *arg)
{
    const mesh_case *c = arg;
    oar_mesh *mesh = NULL;
    spec_list list;

    CHECK_OK(oar_mesh_create(world, c->dims, c->size, NULL, NULL, &mesh));
    spec_list_make(mesh, c->shape, c->dims < 3, &list);
    for (int i = 0, n = 0; i < list.count; i++)
        for (int k = 0; k < list.count; k++) {
            const oar_spec *from = list.spec[i], *to = list.spec[k];

            if (n++ % c->every != 0)
                continue;
            if (oar_dtype_size(c->dtype) < 4 && is_partial(from))
                continue; /* sums are rounded, or too large */
            CHECK_OK(check_move(from, to, c->dtype));
            if (c->dtype == OAR_F64 && n % 3 == 0)
                CHECK_OK(check_grad(from, to, &list));
        }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void run_sim(int ranks, mesh_case c)
{
    assert_int_equal(ranks_run("sim", ranks, NULL, move_all, &c), OAR_OK);
}

static void every_move_gives_the_cut_of_the_whole(void **state)
{
    run_sim(1, (mesh_case){ 1, { 1 }, OAR_SHAPE(5, 3), 1, OAR_F64 });
    run_sim(2, (mesh_case){ 1, { 2 }, OAR_SHAPE(5, 3), 1, OAR_F64 });
    run_sim(3, (mesh_case){ 1, { 3 }, OAR_SHAPE(3, 1, 5), 1, OAR_F64 });
    run_sim(7, (mesh_case){ 1, { 7 }, OAR_SHAPE(5), 1, OAR_F64 });
    run_sim(4, (mesh_case){ 2, { 2, 2 }, OAR_SHAPE(5, 3), 4, OAR_F64 });
    run_sim(6, (mesh_case){ 2, { 3, 2 }, OAR_SHAPE(7, 2), 17, OAR_F64 });
    run_sim(4, (mesh_case){ 2, { 2, 2 }, OAR_SHAPE(0, 3), 17, OAR_F64 });
    run_sim(8, (mesh_case){ 3, { 2, 2, 2 }, OAR_SHAPE(5, 3), 701, OAR_F64 });
}

static void every_dtype_moves(void **state)
{
    static const oar_dtype dtype[] = { OAR_U8, OAR_BF16, OAR_I32, OAR_F32 };

    for (int i = 0; i < 4; i++)
        run_sim(4, (mesh_case){ 2, { 2, 2 }, OAR_SHAPE(5, 3), 41, dtype[i] });
}

static void moves_work_on_every_backend(void **state)
{
    static mesh_case c = { 2, { 2, 2 }, { 2, { 5, 3 } }, 151, OAR_F64 };

    ranks_all(4, move_all, &c);
}

/* ---- in and out ---------------------------------------------------------- */

static oar_status scatter_and_gather(oar_group *world, void *arg)
{
    oar_placement cut[2] = { oar_placement_shard(0),
                             oar_placement_partial(OAR_REDUCE_OP_SUM) };
    int rank = oar_group_rank(world);
    oar_shape shape = OAR_SHAPE(5, 3);
    oar_tensor *whole, *back;
    const oar_spec *spec;
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 2, (int[]){ 3, 2 }, NULL, NULL, &mesh));
    spec = oar_spec_of(mesh, 2, cut, shape, NULL);
    whole = make_part(replicated(mesh, shape), OAR_F32, rank);
    for (int root = -1; root < 6; root++) {
        oar_dtensor a = oar_dtensor_scatter(
            NULL, root < 0 || root == rank ? whole : NULL, OAR_F32, spec, root);

        CHECK(a.local != NULL && a.spec == spec);
        back = oar_dtensor_whole(NULL, a, OAR_GRADS_EQUAL);
        CHECK_OK(check_part(back, replicated(mesh, shape),
                            replicated(mesh, shape), rank));
        oar_tensor_release(back);
        oar_tensor_release(a.local);
    }
    oar_tensor_release(whole);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void a_whole_is_scattered_and_comes_back(void **state)
{
    assert_int_equal(ranks_run("sim", 6, NULL, scatter_and_gather, NULL),
                     OAR_OK);
}

/* Each rank multiplies by a number of its own: the gradient of a replicated
 * tensor is the sum of them where that is said, and else its own. */
static oar_status leave_with_grads(oar_group *world, void *arg)
{
    oar_placement cut[2] = { oar_placement_shard(0),
                             oar_placement_replicate() };
    int rank = oar_group_rank(world);
    oar_mesh *mesh = NULL;
    oar_tensor *leaf, *x;
    double number[4];
    const oar_spec *spec;
    oar_tape *tape;

    CHECK_OK(oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    spec = oar_spec_of(mesh, 2, cut, OAR_SHAPE(4), NULL);
    leaf = oar_ones(NULL, OAR_F64, OAR_SHAPE(2));
    CHECK_OK(oar_tensor_require_grad(leaf, 1));
    for (int add = 0; add < 2; add++) {
        x = oar_dtensor_to_local(tape, oar_dtensor_from_local(leaf, spec),
                                 add ? OAR_GRADS_ADD : OAR_GRADS_EQUAL);
        CHECK(x != NULL);
        CHECK_OK(
            oar_backward(tape, oar_sum(tape, oar_scale(tape, x, rank + 1))));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(leaf), OAR_F64, number));
        CHECK(number[1] == (add ? (rank < 2 ? 1 + 2 : 3 + 4) : rank + 1));
        oar_tensor_clear_grad(leaf);
        oar_tape_reset(tape);
    }
    x = oar_dtensor_whole(tape, oar_dtensor_from_local(leaf, spec),
                          OAR_GRADS_ADD); /* all four ranks have the whole */
    CHECK_OK(oar_backward(tape, oar_sum(tape, oar_scale(tape, x, rank + 1))));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(leaf), OAR_F64, number));
    CHECK(number[0] == 1 + 2 + 3 + 4);
    oar_tape_destroy(tape);
    oar_tensor_release(leaf);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void gradients_outside_are_added_where_that_is_said(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, leave_with_grads, NULL), OAR_OK);
}

/* What ferrotorch's redistribute only writes down: after it both ranks have
 * both halves. */
static oar_status both_halves(oar_group *world, void *arg)
{
    oar_placement s = oar_placement_shard(0), r = oar_placement_replicate();
    int rank = oar_group_rank(world);
    oar_mesh *mesh = NULL;
    oar_dtensor a, b;
    float number[8];
    char text[300];

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    a = oar_dtensor_from_local(
        oar_full(NULL, OAR_F32, OAR_SHAPE(2, 2), rank + 1),
        oar_spec_of(mesh, 1, &s, OAR_SHAPE(4, 2), NULL));
    CHECK(a.local != NULL);
    oar_dtensor_text(a, text, sizeof text);
    CHECK(strstr(text, rank == 0 ? "[4, 2] on 0=2: S(0)\nrank 0 has [0:2, 0:2]"
                                 : "rank 1 has [2:4, 0:2]") != NULL);
    b = oar_redistribute(NULL, a,
                         oar_spec_of(mesh, 1, &r, OAR_SHAPE(4, 2), NULL), NULL);
    CHECK(b.local != NULL && oar_tensor_count(b.local) == 8);
    CHECK_OK(oar_tensor_read(b.local, OAR_F32, number));
    for (int i = 0; i < 8; i++)
        CHECK(number[i] == (i < 4 ? 1 : 2));
    oar_tensor_release(a.local);
    oar_tensor_release(b.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void both_ranks_have_both_halves(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, both_halves, NULL), OAR_OK);
}

/* ---- checkpoints --------------------------------------------------------- */

static char folder[FOLDER_PATH];

typedef struct saved_case {
    int dims, size[2], load;
    oar_placement placement[2];
} saved_case;

/* Saves parts by the places that a spec gives, or loads into other parts. */
static oar_status save_or_load(oar_group *world, void *arg)
{
    const saved_case *c = arg;
    oar_checkpoint_opts o = { .size = sizeof o, .no_sync = 1 };
    int rank = oar_group_rank(world);
    oar_place place = oar_place_init();
    oar_checkpoint *runs = NULL;
    oar_mesh *mesh = NULL;
    oar_state *state;
    const oar_spec *spec;
    oar_tensor *part;
    oar_shape shape;

    CHECK_OK(oar_mesh_create(world, c->dims, c->size, NULL, NULL, &mesh));
    spec = oar_spec_of(mesh, c->dims, c->placement, OAR_SHAPE(5, 3), NULL);
    part = make_part(spec, OAR_F32, rank);
    CHECK_OK(oar_spec_place_of(spec, rank, &place, &shape));
    if (c->load)
        CHECK_OK(oar_tensor_fill(part, -1));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_tensor(state, "model", "w", part, &place));
    CHECK_OK(oar_checkpoint_open(world, folder, &o, &runs));
    if (c->load)
        CHECK_OK(oar_checkpoint_load(runs, state, 1, NULL));
    else
        CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    CHECK_OK(check_part(part, spec, spec, rank));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_tensor_release(part);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void what_four_ranks_saved_three_load(void **state)
{
    oar_placement rows = oar_placement_shard(0), flat = oar_placement_flat();
    oar_placement same = oar_placement_replicate();
    oar_placement columns = oar_placement_shard(1);
    saved_case save[] = { { 2, { 2, 2 }, 0, { rows, rows } },
                          { 2, { 2, 2 }, 0, { rows, flat } },
                          { 2, { 2, 2 }, 0, { same, columns } } };
    saved_case load[] = { { 1, { 3 }, 1, { rows } },
                          { 1, { 3 }, 1, { columns } },
                          { 1, { 3 }, 1, { flat } } };

    for (int i = 0; i < 3; i++) {
        folder_make(folder);
        assert_int_equal(ranks_run("sim", 4, NULL, save_or_load, &save[i]),
                         OAR_OK);
        for (int k = 0; k < 3; k++)
            assert_int_equal(ranks_run("sim", 3, NULL, save_or_load, &load[k]),
                             OAR_OK);
        assert_int_equal(folder_remove(folder), 0);
    }
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refusals(oar_group *world, void *arg)
{
    oar_placement s = oar_placement_shard(0), r = oar_placement_replicate();
    oar_placement sum = oar_placement_partial(OAR_REDUCE_OP_SUM);
    oar_redistribute_opts o = oar_redistribute_opts_init();
    oar_mesh *mesh = NULL, *other = NULL, *paper = NULL;
    oar_tensor *one = oar_ones(NULL, OAR_F32, OAR_SHAPE(2));
    oar_dtensor a, none = { NULL, NULL };
    const oar_spec *cut;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &other));
    CHECK_OK(oar_mesh_create(NULL, 1, (int[]){ 2 }, NULL, NULL, &paper));
    cut = oar_spec_of(mesh, 1, &s, OAR_SHAPE(4), NULL);
    a = oar_dtensor_from_local(one, cut);
#define REFUSED(call, why, says) \
    CHECK((call) == NULL && fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_from_local(
                one, oar_spec_of(mesh, 1, &s, OAR_SHAPE(5, 2), NULL))
                .local,
            OAR_E_SHAPE, "the local tensor is [2], but rank");
    REFUSED(oar_redistribute(
                NULL, a, oar_spec_of(other, 1, &s, OAR_SHAPE(4), NULL), NULL)
                .local,
            OAR_E_ARG, "two meshes");
    REFUSED(oar_dtensor_to_local(NULL, a, (oar_local_grads)0), OAR_E_ARG,
            "OAR_GRADS_EQUAL");
    REFUSED(oar_dtensor_to_local(
                NULL,
                oar_dtensor_from_local(
                    one, oar_spec_of(mesh, 1, &sum, OAR_SHAPE(2), NULL)),
                OAR_GRADS_EQUAL),
            OAR_E_STATE, "partial");
    REFUSED(oar_dtensor_whole(NULL, a, (oar_local_grads)3), OAR_E_ARG,
            "dtensor_whole: say whether");
    o.most_bytes = 7;
    REFUSED(oar_redistribute(NULL, a,
                             oar_spec_of(mesh, 1, &r, OAR_SHAPE(4), NULL), &o)
                .local,
            OAR_E_UNSUPPORTED, "8 bytes, and may bring 7: [4] on 0=2: S(0)");
    REFUSED(oar_redistribute(
                NULL,
                oar_dtensor_from_local(
                    one, oar_spec_of(paper, 1, &s, OAR_SHAPE(4), NULL)),
                oar_spec_of(paper, 1, &r, OAR_SHAPE(4), NULL), NULL)
                .local,
            OAR_E_STATE, "only plans");
    REFUSED(oar_dtensor_scatter(NULL, one, OAR_F32, cut, 2).local, OAR_E_RANK,
            "rank 2 of 2");
    REFUSED(oar_dtensor_scatter(NULL, one, OAR_F32, cut, 1).local, OAR_E_SHAPE,
            oar_group_rank(world) == 1 ? "root's tensor is [2]" : "rank 1");
    CHECK(oar_redistribute(NULL, none, cut, NULL).local == NULL);
    oar_tensor_release(one);
    oar_mesh_release(paper);
    oar_mesh_release(other);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void wrong_use_is_named(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refusals, NULL), OAR_OK);
}

/* Rank 1 goes to another spec than the others, along another row. */
static oar_status another_spec(oar_group *world, void *arg)
{
    oar_placement from[2] = { oar_placement_shard(0), oar_placement_shard(1) };
    oar_placement to[2] = { oar_placement_shard(0), oar_placement_shard(1) };
    int rank = oar_group_rank(world);
    oar_mesh *mesh = NULL;
    oar_tensor *local;
    const oar_spec *spec;
    oar_dtensor b;

    CHECK_OK(oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL, &mesh));
    to[rank == 1] = oar_placement_replicate();
    spec = oar_spec_of(mesh, 2, from, OAR_SHAPE(4, 4), NULL);
    local = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 2));
    b = oar_redistribute(NULL, oar_dtensor_from_local(local, spec),
                         oar_spec_of(mesh, 2, to, OAR_SHAPE(4, 4), NULL), NULL);
    CHECK(b.local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "redistribute [4, 4] S(0) S(1) to S(0) R"));
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "redistribute [4, 4] S(0) S(1) to R S(1)"));
    oar_tensor_release(local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void another_spec_on_a_rank_is_named_on_all(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, another_spec, NULL), OAR_OK);
}

/* The maximum of parts moves, but has no backward. */
static oar_status partial_max(oar_group *world, void *arg)
{
    oar_placement max = oar_placement_partial(OAR_REDUCE_OP_MAX);
    oar_placement r = oar_placement_replicate();
    int rank = oar_group_rank(world);
    oar_mesh *mesh = NULL;
    oar_tensor *local;
    oar_dtensor b;
    oar_tape *tape;
    double number[3];

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 3 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    local = oar_full(NULL, OAR_F64, OAR_SHAPE(3), rank == 1 ? 5 : -rank);
    CHECK_OK(oar_tensor_require_grad(local, 1));
    b = oar_redistribute(
        tape,
        oar_dtensor_from_local(local,
                               oar_spec_of(mesh, 1, &max, OAR_SHAPE(3), NULL)),
        oar_spec_of(mesh, 1, &r, OAR_SHAPE(3), NULL), NULL);
    CHECK(b.local != NULL);
    CHECK_OK(oar_tensor_read(b.local, OAR_F64, number));
    CHECK(number[0] == 5 && number[2] == 5);
    CHECK(fails_with(oar_backward(tape, oar_sum(tape, b.local)),
                     OAR_E_UNSUPPORTED, "partial sums only"));
    oar_tape_destroy(tape);
    oar_tensor_release(local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void a_partial_maximum_has_no_backward(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, partial_max, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_move_gives_the_cut_of_the_whole),
        cmocka_unit_test(every_dtype_moves),
        cmocka_unit_test(moves_work_on_every_backend),
        cmocka_unit_test(a_whole_is_scattered_and_comes_back),
        cmocka_unit_test(gradients_outside_are_added_where_that_is_said),
        cmocka_unit_test(both_ranks_have_both_halves),
        cmocka_unit_test(what_four_ranks_saved_three_load),
        cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(another_spec_on_a_rank_is_named_on_all),
        cmocka_unit_test(a_partial_maximum_has_no_backward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
