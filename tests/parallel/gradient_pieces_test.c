/* SPDX-License-Identifier: Apache-2.0 */
/* A large array is reduced in pieces; the first pieces start before the last
 * are written. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "parallel/ddp/ddp.h"
#include "support/force_overlap.h"

/* Three arrays: the large one is in the middle. */
enum { SMALL = 5, LARGE = 4001, HALF = 2000, ARRAYS = 3, BUCKET = 1024 };

static const size_t counts[ARRAYS] = { SMALL, LARGE, SMALL };

static float number(int rank, int pass, int array, size_t i)
{
    return (float)((rank + 1) * 3 + pass * 5 + array * 7) + (float)(i % 13);
}

static void fill(oar_reducer *r, int rank, int pass, int array)
{
    oar_span to = oar_reducer_span(r, array);

    for (size_t i = 0; i < to.count; i++)
        ((float *)to.data)[i] = number(rank, pass, array, i);
}

/* Whether the first `count` elements are the mean. */
static int is_mean(const oar_reducer *r, int pass, int array, size_t count)
{
    const float *is = oar_reducer_span(r, array).data;
    int ranks = oar_group_size(r->group);

    for (size_t i = 0; i < count; i++) {
        double want = 0;
        for (int k = 0; k < ranks; k++)
            want += (double)number(k, pass, array, i);
        if (fabs((double)is[i] - want / ranks) > 1e-4)
            return 0;
    }
    return 1;
}

static oar_status make(oar_group *g, float *own, oar_reducer **r)
{
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_span array[ARRAYS];

    force_overlap(g);
    for (int i = 0; i < ARRAYS; i++)
        array[i] = oar_span_of(i == 1 ? own : NULL, counts[i], OAR_F32);
    o.bucket_bytes = BUCKET;
    return oar_reducer_create(g, ARRAYS, array, &o, r);
}

static oari_bucket *large_bucket(const oar_reducer *r)
{
    return &r->bucket[r->slot[1].bucket];
}

/* ---- how they are cut ---------------------------------------------------- */

static oar_status cover_the_bucket(oar_group *g, void *arg)
{
    const oari_bucket *b;
    oar_reducer *r;

    CHECK_OK(make(g, NULL, &r));
    b = large_bucket(r);
    CHECK(b->is.arrays == 1 && b->pieces == OARI_MAX_PIECES);
    CHECK(b->piece[0].first == 0 &&
          b->piece[b->pieces - 1].end == b->is.data.count);
    for (int i = 1; i < b->pieces; i++) {
        CHECK(b->piece[i].first == b->piece[i - 1].end);
        CHECK(b->piece[i].first * sizeof(float) % 64 == 0);
        CHECK(b->piece[i].end > b->piece[i].first);
    }
    CHECK(oari_pieces_next(r, 1, 0) == b->piece[0].end);
    CHECK(oari_pieces_next(r, 1, b->piece[0].end) == b->piece[1].end);
    CHECK(oari_pieces_next(r, 1, LARGE - 1) == LARGE);
    CHECK(r->bucket[0].pieces == 1);
    CHECK(oari_pieces_next(r, 2, 0) == SMALL);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void pieces_cover_a_large_bucket_on_lines(void **state)
{
    ranks_all(2, cover_the_bucket, NULL);
}

static oar_status whole_buckets(oar_group *g, void *arg)
{
    oar_span array = oar_span_of(NULL, LARGE, OAR_F32);
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer *r;

    force_overlap(g);
    o.bucket_bytes = BUCKET;
    o.canonical = 1;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    CHECK(r->buckets == 1 && r->bucket[0].pieces == 1);
    oar_reducer_destroy(r);
    CHECK_OK(oar_hook_half(OAR_F16, &hook));
    o.canonical = 0;
    o.hook = &hook;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    CHECK(r->buckets == 1 && r->bucket[0].pieces == 1);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void hooks_and_canonical_bits_want_whole_buckets(void **state)
{
    ranks_all(2, whole_buckets, NULL);
}

/* ---- a pass -------------------------------------------------------------- */

/* Half of the large one is written, and its first pieces become the mean while
 * the other half is not there yet. */
static oar_status mean_of_half(oar_group *g, oar_reducer *r, int pass)
{
    oari_bucket *b = large_bucket(r);
    float *data = oar_reducer_span(r, 1).data;
    int rank = oar_group_rank(g);

    fill(r, rank, pass, 1);
    memset(data + HALF, 0, (LARGE - HALF) * sizeof *data);
    CHECK_OK(oari_reducer_part_ready(r, 1, HALF));
    CHECK(b->begun == 3 && b->piece[2].end <= HALF && b->piece[3].end > HALF);
    for (int i = 0; i < b->begun; i++)
        CHECK_OK(oar_work_wait(b->piece[i].work));
    CHECK(is_mean(r, pass, 1, b->piece[2].end));
    for (size_t i = HALF; i < LARGE; i++)
        data[i] = number(rank, pass, 1, i);
    return OAR_OK;
}

static oar_status first_half_first(oar_group *g, void *arg)
{
    oar_reducer_stats stats = oar_reducer_stats_init();
    int rank = oar_group_rank(g);
    oar_reducer *r;

    CHECK_OK(make(g, NULL, &r));
    for (int pass = 0; pass < 3; pass++) {
        fill(r, rank, pass, 2);
        CHECK_OK(oar_reducer_ready(r, 2));
        CHECK_OK(mean_of_half(g, r, pass));
        CHECK_OK(oari_reducer_part_ready(r, 1, LARGE));
        CHECK(large_bucket(r)->begun == large_bucket(r)->pieces);
        CHECK_OK(oar_reducer_ready(r, 1));
        fill(r, rank, pass, 0);
        CHECK_OK(oar_reducer_ready(r, 0));
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < ARRAYS; i++) {
            CHECK(is_mean(r, pass, i, counts[i]));
            CHECK(oar_reducer_used(r, i));
        }
        CHECK_OK(oar_reducer_read_stats(r, &stats));
        CHECK(stats.buckets == 3 && stats.copied_bytes == 0);
        CHECK(stats.reduced_bytes >= (LARGE + 2 * SMALL) * sizeof(float));
        CHECK(stats.exposed_s <= stats.communication_s);
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void a_half_is_reduced_before_the_other_is_written(void **state)
{
    ranks_all(1, first_half_first, NULL);
    ranks_all(3, first_half_first, NULL);
}

/* Rank 0 tells of parts, rank 1 does not, and rank 2 has nothing in pass 1.
 * The large one comes before the bucket in front of it. */
static oar_status some_tell(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_reducer *r;

    CHECK_OK(make(g, NULL, &r));
    for (int pass = 0; pass < 3; pass++) {
        fill(r, rank, pass, 1);
        if (rank == 0)
            CHECK_OK(oari_reducer_part_ready(r, 1, HALF));
        CHECK(large_bucket(r)->begun == 0); /* it is not its turn */
        if (pass != 1 || rank != 2)
            CHECK_OK(oar_reducer_ready(r, 1));
        if (pass == 2)
            fill(r, rank, pass, 2);
        if (pass == 2)
            CHECK_OK(oar_reducer_ready(r, 2));
        CHECK_OK(oar_reducer_wait(r));
        CHECK(pass == 1 || is_mean(r, pass, 1, LARGE));
        CHECK(oar_reducer_used(r, 1));
        CHECK(!oar_reducer_used(r, 0) && oar_reducer_used(r, 2) == (pass == 2));
    }
    CHECK_OK(oar_reducer_wait(r));
    CHECK(!oar_reducer_used(r, 1));
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void ranks_that_announce_parts_match_ranks_that_do_not(void **state)
{
    ranks_all(3, some_tell, NULL);
}

/* Also with an owner whose pass ends with the last array. */
static oar_status large_one_is_last(oar_group *g, void *arg)
{
    oar_span array = oar_span_of(NULL, LARGE, OAR_F32);
    oar_reducer_opts o = oar_reducer_opts_init();
    int rank = oar_group_rank(g), ends_there = *(int *)arg;
    oar_reducer *r;

    force_overlap(g);
    o.bucket_bytes = BUCKET;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    r->owner.ends_there = ends_there;
    for (int pass = 0; pass < 2; pass++) {
        fill(r, rank, pass, 0);
        CHECK_OK(oari_reducer_part_ready(r, 0, LARGE));
        CHECK(r->bucket[0].begun == r->bucket[0].pieces - 1); /* flags */
        CHECK_OK(oar_reducer_ready(r, 0));
        CHECK(r->begun == !ends_there);
        CHECK_OK(oar_reducer_wait(r));
        CHECK(is_mean(r, pass, 0, LARGE) && oar_reducer_used(r, 0));
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void the_last_piece_waits_for_the_flags(void **state)
{
    for (int ends_there = 0; ends_there < 2; ends_there++)
        ranks_all(2, large_one_is_last, &ends_there);
}

/* Its first pieces are on their way as soon as it is their turn. */
static oar_status new_in_a_static_graph(oar_group *g, void *arg)
{
    oar_span array[2] = { oar_span_of(NULL, LARGE, OAR_F32),
                          oar_span_of(NULL, SMALL, OAR_F32) };
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer *r;

    force_overlap(g);
    o.bucket_bytes = BUCKET;
    o.static_graph = 1;
    CHECK_OK(oar_reducer_create(g, 2, array, &o, &r));
    r->owner.ends_there = 1;
    for (int pass = 0; pass < 2; pass++) {
        CHECK_OK(oar_reducer_ready(r, 1));
        CHECK(r->bucket[1].begun == pass * (r->bucket[1].pieces - 1));
        CHECK_OK(oari_reducer_part_ready(r, 0, pass * HALF));
        CHECK(pass == 0 || oar_reducer_ready(r, 0) == OAR_E_STATE);
        CHECK_OK(oar_reducer_wait(r));
        CHECK(!oar_reducer_used(r, 0) && oar_reducer_used(r, 1));
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void a_large_array_that_a_static_graph_had_not_is_refused(void **state)
{
    ranks_all(2, new_in_a_static_graph, NULL);
}

static oar_status given_up(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_reducer *r;

    CHECK_OK(make(g, NULL, &r));
    for (int pass = 0; pass < 3; pass++) {
        fill(r, rank, pass, 2);
        CHECK_OK(oar_reducer_ready(r, 2));
        CHECK_OK(mean_of_half(g, r, pass));
        if (pass == 1) {
            oari_reducer_reset(r);
            CHECK(large_bucket(r)->begun == 0 && large_bucket(r)->told == 0);
            continue;
        }
        CHECK_OK(oar_reducer_ready(r, 1));
        CHECK_OK(oar_reducer_wait(r));
        CHECK(is_mean(r, pass, 1, LARGE) && !oar_reducer_used(r, 0));
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void a_pass_that_is_given_up_leaves_the_next_alone(void **state)
{
    ranks_all(2, given_up, NULL);
}

/* Parts of it mean nothing: it is copied when it is ready. */
static oar_status own_memory(oar_group *g, void *arg)
{
    float own[LARGE];
    oar_reducer *r;

    CHECK_OK(make(g, own, &r));
    CHECK(large_bucket(r)->pieces == OARI_MAX_PIECES);
    CHECK_OK(oar_reducer_ready(r, 2));
    fill(r, oar_group_rank(g), 0, 1);
    CHECK_OK(oari_reducer_part_ready(r, 1, HALF));
    CHECK(large_bucket(r)->begun == 0);
    CHECK_OK(oar_reducer_ready(r, 1));
    CHECK_OK(oar_reducer_wait(r));
    CHECK(is_mean(r, 0, 1, LARGE));
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void arrays_of_the_callers_go_in_pieces_too(void **state)
{
    ranks_all(3, own_memory, NULL);
}

/* ---- backward ------------------------------------------------------------ */

enum { WIDE = 40, ROWS = 6 };

/* What the reducer knew of the weight when its gradient was complete. */
typedef struct gradient_watcher {
    oari_ddp *ddp;
    size_t reported;
    int begun;
} gradient_watcher;

static oar_status look(oar_tensor *leaf, void *arg)
{
    gradient_watcher *w = arg;
    const oar_reducer *r = w->ddp != NULL ? w->ddp->reducer : NULL;
    const oari_bucket *b = r != NULL ? &r->bucket[r->slot[0].bucket] : NULL;

    w->reported = b != NULL ? b->told : 0;
    w->begun = b != NULL ? b->begun : 0;
    return OAR_OK;
}

static oar_status make_net(oar_group *g, oar_module **net)
{
    oar_module *layer[2] = { 0 };

    force_overlap(g);
    for (uint64_t i = 0; i < 2; i++)
        CHECK_OK(oar_linear_create(WIDE, WIDE, 5 + i, NULL, &layer[i]));
    return oar_sequential_create(2, layer, net);
}

static oar_status wrap(oar_group *g, oar_module **net, gradient_watcher *w)
{
    CHECK_OK(oar_ddp_wrap(
        *net, g,
        OAR_OPTS(oar_ddp_opts, .bucket_bytes = BUCKET, .accumulate = 2), net));
    w->ddp = oar_module_self(*net);
    return OAR_OK;
}

static oar_status backward(oar_group *g, oar_module *net)
{
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F32, OAR_SHAPE(ROWS, WIDE), oar_group_rank(g) + 1);
    CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* Two passes are added up, of which only the second reduces. The gradient of
 * the last bias is a sum over rows. */
static oar_status two_passes(oar_group *g, oar_module *net, gradient_watcher *w)
{
    float grad[WIDE];

    CHECK_OK(backward(g, net));
    CHECK(w->reported == 0 && w->begun == 0);
    CHECK_OK(backward(g, net));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(net, 3)), OAR_F32,
                             grad));
    CHECK(grad[0] == 2 * ROWS);
    for (int i = 0; i < 4; i++)
        oar_tensor_clear_grad(oar_module_param(net, i));
    return OAR_OK;
}

static oar_status backward_tells(oar_group *g, void *arg)
{
    gradient_watcher w = { 0 };
    oar_module *net;
    oar_hook *hook;

    CHECK_OK(make_net(g, &net));
    CHECK_OK(wrap(g, &net, &w));
    CHECK_OK(oar_tensor_on_grad(oar_module_param(net, 0), look, &w, &hook));
    for (int step = 0; step < 3; step++) {
        w.reported = 0;
        w.begun = 0;
        CHECK_OK(two_passes(g, net, &w));
        CHECK(w.reported >= WIDE * WIDE);
        CHECK(step == 0 || w.begun > 1); /* the bias was expected first */
    }
    oar_hook_remove(hook);
    oar_module_release(net);
    return OAR_OK;
}

static void backward_announces_parts_in_passes_that_reduce(void **state)
{
    ranks_all(2, backward_tells, NULL);
}

/* It may still change the gradient: none of it may be on its way. */
static oar_status hook_in_front(oar_group *g, void *arg)
{
    gradient_watcher w = { 0 };
    oar_module *net;
    oar_hook *hook;

    CHECK_OK(make_net(g, &net));
    CHECK_OK(oar_tensor_on_grad(oar_module_param(net, 0), look, &w, &hook));
    CHECK_OK(wrap(g, &net, &w));
    CHECK_OK(two_passes(g, net, &w));
    CHECK(w.reported == 0 && w.begun == 0);
    CHECK(w.ddp->reducer->bucket[0].pieces > 1);
    oar_hook_remove(hook);
    oar_module_release(net);
    return OAR_OK;
}

static void a_hook_in_front_of_it_sees_the_gradient_whole(void **state)
{
    ranks_all(2, hook_in_front, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_a_large_bucket_on_lines),
        cmocka_unit_test(hooks_and_canonical_bits_want_whole_buckets),
        cmocka_unit_test(a_half_is_reduced_before_the_other_is_written),
        cmocka_unit_test(ranks_that_announce_parts_match_ranks_that_do_not),
        cmocka_unit_test(the_last_piece_waits_for_the_flags),
        cmocka_unit_test(a_large_array_that_a_static_graph_had_not_is_refused),
        cmocka_unit_test(a_pass_that_is_given_up_leaves_the_next_alone),
        cmocka_unit_test(arrays_of_the_callers_go_in_pieces_too),
        cmocka_unit_test(backward_announces_parts_in_passes_that_reduce),
        cmocka_unit_test(a_hook_in_front_of_it_sees_the_gradient_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
