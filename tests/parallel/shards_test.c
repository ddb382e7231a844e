/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: arrays of a program's own, spread over the ranks, train as the same
 * arrays in one process do, however they are held. */
#include "support/test_job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/optim.h>
#include <oarsong/shards.h>

#include "support/last_error.h"
#include "parallel/shards/shards.h"
#include "support/leak_check.h"
#include "support/spread_gpt.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RANKS_STEP = 2 };
#else
enum { RANKS_STEP = 1 };
#endif

/* ---- a model of arrays --------------------------------------------------- */

enum { ARRAYS = 8, UNITS = 4, INTEGERS = 3, STEPS = 3 };

static const size_t counts[ARRAYS] = { 3, 5000, 17, 33, 0, 4096, 1290, 20011 };
static const int units[ARRAYS] = { 0, 0, 1, 1, 1, 2, 3, 3 };

static oar_dtype dtype_of(int array)
{
    return array == INTEGERS ? OAR_I32 : array == 6 ? OAR_F32 : OAR_F64;
}

typedef struct model_numbers {
    double *of[ARRAYS]; /* as f64, whatever the dtype */
} model_numbers;

static void numbers_create(model_numbers *n)
{
    for (int a = 0; a < ARRAYS; a++) {
        n->of[a] = malloc((counts[a] + 1) * sizeof(double));
        for (size_t i = 0; i < counts[a]; i++)
            n->of[a][i] =
                a == INTEGERS ? (double)(i + 7) : sin((double)i * 0.7 + a);
    }
}

static void numbers_destroy(model_numbers *n)
{
    for (int a = 0; a < ARRAYS; a++)
        free(n->of[a]);
}

static double read_element(oar_span from, size_t i)
{
    if (from.dtype == OAR_F32)
        return (double)((const float *)from.data)[i];
    if (from.dtype == OAR_I32)
        return (double)((const int32_t *)from.data)[i];
    return ((const double *)from.data)[i];
}

static void write_element(oar_span to, size_t i, double x)
{
    if (to.dtype == OAR_F32)
        ((float *)to.data)[i] = (float)x;
    else if (to.dtype == OAR_I32)
        ((int32_t *)to.data)[i] = (int32_t)x;
    else
        ((double *)to.data)[i] = x;
}

/* Rank r's gradient; the numbers of the array take part in it. */
static double gradient(int rank, int step, int array, size_t i, double x)
{
    return x * (0.1 + 0.01 * rank) + 0.3 * ((rank + step) % 3) +
           0.01 * (double)((i + (size_t)array) % 11);
}

/* How a training goes. */
typedef struct shards_case {
    oar_shards_opts opts;
    int uneven; /* rank r has no gradient for array (step + r) % ARRAYS */
} shards_case;

static int has_gradient(const shards_case *c, int rank, int step, int array)
{
    return array != INTEGERS && (!c->uneven || (step + rank) % ARRAYS != array);
}

/* One step of SGD in one process over all ranks' gradients. */
static void reference_step(const shards_case *c, model_numbers *n, int ranks,
                           int step)
{
    for (int a = 0; a < ARRAYS; a++)
        for (size_t i = 0; i < counts[a] && a != INTEGERS; i++) {
            double sum = 0, weights = 0;
            for (int r = 0; r < ranks; r++) {
                double weight = c->opts.weighted ? r + 0.5 : 1;
                weights += weight;
                if (has_gradient(c, r, step, a))
                    sum += weight * gradient(r, step, a, i, n->of[a][i]);
            }
            n->of[a][i] -= 0.25 * sum / weights;
        }
}

/* ---- a training over shards ---------------------------------------------- */

static oar_status make_shards(oar_group *g, const shards_case *c,
                              const model_numbers *n, oar_shards **s)
{
    oar_span array[ARRAYS];
    oar_status status;
    int gives = c->opts.no_scatter || oar_group_rank(g) == 0;

    for (int a = 0; a < ARRAYS; a++) {
        array[a] = oar_span_of(NULL, counts[a], dtype_of(a));
        if (!gives)
            continue;
        array[a].data = calloc(counts[a] + 1, 8);
        for (size_t i = 0; i < counts[a]; i++)
            write_element(array[a], i, n->of[a][i]);
    }
    status = oar_shards_create(g, ARRAYS, array, units, &c->opts, s);
    for (int a = 0; a < ARRAYS; a++)
        free(array[a].data);
    return status;
}

static oar_status are_numbers(oar_shards *s, const model_numbers *n)
{
    for (int u = 0; u < UNITS; u++) {
        CHECK_OK(oar_shards_unshard(s, u));
        for (int a = 0; a < ARRAYS; a++) {
            oar_span is = oar_shards_array(s, a);
            double near = dtype_of(a) == OAR_F32 ? 1e-5 : 1e-11;

            CHECK(units[a] != u || is.data != NULL);
            for (size_t i = 0; units[a] == u && i < counts[a]; i++)
                CHECK(fabs(read_element(is, i) - n->of[a][i]) < near);
        }
        CHECK_OK(oar_shards_reshard(s, u));
    }
    return OAR_OK;
}

static oar_status write_gradient(oar_shards *s, const shards_case *c, int rank,
                                 int step, int a)
{
    oar_span grad, is = oar_shards_array(s, a);

    if (!has_gradient(c, rank, step, a))
        return OAR_OK;
    grad = oar_shards_grad(s, a);
    CHECK(grad.data != NULL && grad.count == counts[a]);
    for (size_t i = 0; i < counts[a]; i++)
        write_element(grad, i, gradient(rank, step, a, i, read_element(is, i)));
    return oar_shards_ready(s, a);
}

static oar_status train_step(oar_shards *s, const shards_case *c,
                             oar_optim *sgd, int rank, int step)
{
    if (step == 1) /* ahead of what the order of the last pass says */
        CHECK_OK(oar_shards_prefetch(s, 1));
    for (int u = UNITS - 1; u >= 0; u--) {
        CHECK_OK(oar_shards_unshard(s, u));
        for (int a = ARRAYS - 1; a >= 0; a--)
            if (units[a] == u)
                CHECK_OK(write_gradient(s, c, rank, step, a));
        CHECK_OK(oar_shards_reshard(s, u));
    }
    CHECK_OK(oar_shards_wait(s));
    CHECK_OK(oar_optim_step(sgd));
    oar_shards_zero_grad(s);
    return oar_shards_publish(s);
}

static oar_status train(oar_group *g, void *arg)
{
    const shards_case *c = arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g), count;
    oar_shards *s;
    oar_optim *sgd;
    model_numbers n;

    numbers_create(&n);
    CHECK_OK(make_shards(g, c, &n, &s));
    CHECK(oar_shards_units(s) == UNITS);
    CHECK(c->opts.hold == OAR_HOLD_AUTO || oar_shards_hold(s) == c->opts.hold);
    if (c->opts.weighted)
        CHECK_OK(oar_shards_weigh(s, rank + 0.5));
    CHECK_OK(are_numbers(s, &n));
    oar_tensor *const *tensor = oar_shards_tensors(s, &count);
    CHECK_OK(oar_sgd_create_over(count, tensor,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.25), &sgd));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(train_step(s, c, sgd, rank, step));
        reference_step(c, &n, ranks, step);
        CHECK_OK(are_numbers(s, &n));
    }
    oar_optim_destroy(sgd);
    oar_shards_destroy(s);
    numbers_destroy(&n);
    return OAR_OK;
}

static void train_everywhere(shards_case *c, int ranks)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (hold_is_possible(*b, c->opts.hold, ranks))
            assert_int_equal(ranks_run(*b, ranks, NULL, train, c), OAR_OK);
}

static void shards_train_as_one_process_does(void **state)
{
    static const oar_hold holds[] = { OAR_HOLD_AUTO, OAR_HOLD_MAPPED,
                                      OAR_HOLD_HOST, OAR_HOLD_OWN };
    static const oar_zero_stage stages[] = { OAR_ZERO_STAGE_3, OAR_ZERO_STAGE_2,
                                             OAR_ZERO_STAGE_1 };

    for (int h = 0; h < 4; h++)
        for (int z = 0; z < 3; z++) {
            shards_case c = { .opts = oar_shards_opts_init() };

            c.opts.hold = holds[h];
            c.opts.stage = stages[z];
            c.opts.no_scatter = z == 1;
            for (int ranks = 1; ranks <= 4; ranks += RANKS_STEP)
                train_everywhere(&c, ranks);
        }
}

static void eight_ranks_train_as_one(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        shards_case c = { .opts = oar_shards_opts_init() };

        c.opts.hold = (oar_hold)h;
        train_everywhere(&c, 8);
    }
}

static void options_do_not_change_the_numbers(void **state)
{
    static const size_t rows[ARRAYS] = { 1, 100, 0, 3, 0, 64, 129, 1000 };
    static const char *const names[UNITS] = { "in", "norm", "block", "out" };

    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        shards_case c = { .opts = oar_shards_opts_init() };

        c.opts.hold = (oar_hold)h;
        c.opts.unit_names = names;
        c.opts.weighted = 1;
        train_everywhere(&c, 3);
        c.opts.canonical = 1;
        c.opts.rows = rows;
        train_everywhere(&c, 3);
        c.opts.prefetch = 3;
        train_everywhere(&c, 2);
        c.opts.prefetch = -1;
        train_everywhere(&c, 2);
    }
}

/* A rank without a gradient posts its unit later than the others, who meanwhile
 * need it to gather the next unit. */
static void ranks_may_have_different_gradients(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        shards_case c = { .opts = oar_shards_opts_init(), .uneven = 1 };

        c.opts.hold = (oar_hold)h;
        train_everywhere(&c, 3);
    }
}

/* ---- the same bits ------------------------------------------------------- */

/* Writes the numbers of a training, all ranks' together, to a page. */
typedef struct bits_case {
    shards_case c;
    double *page;
} bits_case;

static oar_status train_to_page(oar_group *g, void *arg)
{
    const bits_case *b = arg;
    int rank = oar_group_rank(g), count;
    double *at = b->page;
    oar_shards *s;
    oar_optim *sgd;
    model_numbers n;

    numbers_create(&n);
    CHECK_OK(make_shards(g, &b->c, &n, &s));
    oar_tensor *const *tensor = oar_shards_tensors(s, &count);
    CHECK_OK(oar_sgd_create_over(count, tensor,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.25), &sgd));
    for (int step = 0; step < STEPS; step++)
        CHECK_OK(train_step(s, &b->c, sgd, rank, step));
    for (int u = 0; u < UNITS; u++) {
        CHECK_OK(oar_shards_unshard(s, u));
        for (int a = 0; a < ARRAYS; a++)
            for (size_t i = 0; units[a] == u && i < counts[a]; i++)
                if (rank == 0)
                    *at++ = read_element(oar_shards_array(s, a), i);
        CHECK_OK(oar_shards_reshard(s, u));
    }
    oar_optim_destroy(sgd);
    oar_shards_destroy(s);
    numbers_destroy(&n);
    return OAR_OK;
}

static void canonical_sums_give_the_same_bits_however_held(void **state)
{
    size_t bytes = 0;
    double *first, *page;

    for (int a = 0; a < ARRAYS; a++)
        bytes += counts[a] * sizeof(double);
    first = shared_page(bytes);
    page = shared_page(bytes);
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (const char *const *b = ranks_backends(); *b != NULL; b++) {
            bits_case c = { .c = { .opts = oar_shards_opts_init() },
                            .page = *first == 0 ? first : page };

            c.c.opts.hold = (oar_hold)h;
            c.c.opts.canonical = 1;
            if (!hold_is_possible(*b, (oar_hold)h, 3))
                continue;
            assert_int_equal(ranks_run(*b, 3, NULL, train_to_page, &c), OAR_OK);
            if (c.page == page)
                assert_memory_equal(first, page, bytes);
        }
    shared_page_free(first, bytes);
    shared_page_free(page, bytes);
}

/* ---- several hosts ------------------------------------------------------- */

typedef struct hosts_case {
    shards_case c;
    int here;      /* ranks on the first host; -1: every second one */
    oar_hold hold; /* expected */
} hosts_case;

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    hosts_case *h = arg;
    int first = h->here < 0 ? rank % 2 == 0 : rank < h->here;
    oar_group_opts o = oar_group_opts_init();
    oar_shards *s;
    oar_group *g;
    model_numbers n;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", first ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(train(g, &h->c));
    numbers_create(&n);
    RANK_OK(make_shards(g, &h->c, &n, &s));
    RANK_CHECK(oar_shards_hold(s) == h->hold);
    oar_shards_destroy(s);
    numbers_destroy(&n);
    oar_group_destroy(g);
    return 0;
}

static void two_hosts_train_as_one_process(void **state)
{
    static const struct {
        int ranks, here;
        oar_hold hold;
    } layout[] = { { 4, 2, OAR_HOLD_HOST },
                   { 6, -1, OAR_HOLD_HOST },
                   { 3, 2, OAR_HOLD_OWN },
                   { 2, 1, OAR_HOLD_OWN } };

    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        for (int z = 0; z < 3; z++) {
            hosts_case h = { .c = { .opts = oar_shards_opts_init() },
                             .here = layout[i].here,
                             .hold = layout[i].hold };
            test_job job;

            h.c.opts.stage = (oar_zero_stage)z;
            h.c.opts.prefetch = z == 0 ? 2 : 0;
            test_job_start(&job, layout[i].ranks, train_on_hosts, &h,
                           "%d ranks, stage %d", layout[i].ranks, z);
            for (int r = 0; r < layout[i].ranks; r++)
                test_job_expect(&job, r, 0);
            test_job_end(&job);
        }
}

/* ---- gradients ----------------------------------------------------------- */

static oar_status write_ones(oar_shards *s, int array, double x)
{
    oar_span grad = oar_shards_grad(s, array);

    CHECK(grad.data != NULL);
    for (size_t i = 0; i < grad.count; i++)
        write_element(grad, i, x);
    return oar_shards_ready(s, array);
}

static oar_status gradients_are(oar_shards *s, int array, double x)
{
    oar_shard shard = oar_shard_init();

    for (int i = 0; i < oar_shards_count(s); i++) {
        CHECK_OK(oar_shards_shard(s, i, &shard));
        if (shard.array != array)
            continue;
        CHECK((oar_tensor_grad(shard.tensor) != NULL) == (x != 0));
        for (size_t k = 0; x != 0 && k < shard.count; k++)
            CHECK(fabs(read_element(shard.grad, k) - x) < 1e-6);
    }
    return OAR_OK;
}

static oar_status add_up(oar_group *g, void *arg)
{
    shards_case c = { .opts = oar_shards_opts_init() };
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    double mean = (ranks - 1) / 2.0 + 1;
    oar_shards *s;
    model_numbers n;

    c.opts.hold = *(oar_hold *)arg;
    numbers_create(&n);
    CHECK_OK(make_shards(g, &c, &n, &s));
    for (int pass = 1; pass <= 3; pass++) {
        CHECK_OK(write_ones(s, 7, rank + 1));
        CHECK_OK(write_ones(s, 1, rank + 1));
        if (pass == 2)
            CHECK_OK(write_ones(s, 5, rank + 1));
        CHECK_OK(oar_shards_wait(s));
        CHECK(oar_shards_used(s, 7) && !oar_shards_used(s, 2));
        CHECK(oar_shards_used(s, 5) == (pass == 2));
        CHECK_OK(gradients_are(s, 7, pass * mean));
        CHECK_OK(gradients_are(s, 1, pass * mean));
        CHECK_OK(gradients_are(s, 5, pass > 1 ? mean : 0));
        CHECK_OK(gradients_are(s, 2, 0));
    }
    oar_shards_zero_grad(s);
    CHECK_OK(gradients_are(s, 7, 0));
    CHECK_OK(write_ones(s, 7, 2 * rank));
    CHECK_OK(oar_shards_wait(s));
    CHECK_OK(gradients_are(s, 7, ranks - 1));
    oar_shards_destroy(s);
    numbers_destroy(&n);
    return OAR_OK;
}

static void passes_add_up_until_zero_grad(void **state)
{
    for (int h = OAR_HOLD_HOST; h <= OAR_HOLD_OWN; h++)
        for (const char *const *b = ranks_backends(); *b != NULL; b++)
            if (hold_is_possible(*b, (oar_hold)h, 3))
                assert_int_equal(ranks_run(*b, 3, NULL, add_up, &h), OAR_OK);
}

/* Two groups of two ranks, each with all arrays: the mean is over all four. */
static oar_status mean_over_replicas(oar_group *g, void *arg)
{
    shards_case c = { .opts = oar_shards_opts_init() };
    int rank = oar_group_rank(g), weighted = *(int *)arg;
    oar_group *row, *column;
    oar_shards *s;
    model_numbers n;

    CHECK_OK(oar_group_split(g, rank / 2, rank, &row));
    CHECK_OK(oar_group_split(g, rank % 2, rank, &column));
    c.opts.replicas = column;
    c.opts.weighted = weighted;
    c.opts.hold = OAR_HOLD_OWN;
    numbers_create(&n);
    CHECK_OK(make_shards(row, &c, &n, &s));
    if (weighted)
        CHECK_OK(oar_shards_weigh(s, rank));
    for (int pass = 1; pass <= 2; pass++) {
        CHECK_OK(write_ones(s, 7, rank));
        if (rank == 3)
            CHECK_OK(write_ones(s, 5, 4));
        CHECK_OK(oar_shards_wait(s));
        CHECK_OK(gradients_are(s, 7, pass * (weighted ? 14.0 / 6 : 1.5)));
        CHECK_OK(gradients_are(s, 5, pass * (weighted ? 2.0 : 1.0)));
    }
    oar_shards_destroy(s);
    oar_group_destroy(row);
    oar_group_destroy(column);
    numbers_destroy(&n);
    return OAR_OK;
}

static void replicas_take_part_in_the_mean(void **state)
{
    for (int weighted = 0; weighted < 2; weighted++)
        ranks_all(4, mean_over_replicas, &weighted);
}

/* ---- memory -------------------------------------------------------------- */

enum { LAYERS = 12, LAYER = 40000 }; /* f32 */

static oar_status hold_little(oar_group *g, void *arg)
{
    const oar_shards_opts *o = arg;
    oar_shards_stats stats = oar_shards_stats_init();
    size_t whole = LAYERS * LAYER * sizeof(float);
    int ahead = oar_group_overlaps(g);
    int buffers = o->hold == OAR_HOLD_MAPPED ? 1 + ahead : 2 + 2 * ahead;
    oar_span array[LAYERS];
    int unit[LAYERS];
    oar_shards *s;

    for (int i = 0; i < LAYERS; i++) {
        array[i] = oar_span_of(NULL, LAYER, OAR_F32);
        unit[i] = i;
    }
    CHECK_OK(oar_shards_create(g, LAYERS, array, unit, o, &s));
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < LAYERS; i++) {
            CHECK_OK(oar_shards_unshard(s, i));
            CHECK_OK(oar_shards_reshard(s, i));
        }
        for (int i = LAYERS - 1; i >= 0; i--) {
            CHECK_OK(oar_shards_unshard(s, i));
            CHECK_OK(write_ones(s, i, 1));
            CHECK_OK(oar_shards_reshard(s, i));
        }
        CHECK_OK(oar_shards_wait(s));
        CHECK_OK(oar_shards_read_stats(s, &stats));
        CHECK(stats.reductions == LAYERS && stats.passes == pass + 1);
        CHECK(stats.reduced_bytes >= whole);
        CHECK_OK(oar_shards_publish(s));
    }
    CHECK_OK(oar_shards_read_stats(s, &stats));
    CHECK(stats.shard_bytes <=
          2.2 * (double)whole / oar_group_size(g) + LAYERS * 4096);
    /* One unit is in use, unless it is mapped, and the gradient of one is open.
     * Another of each is gathered ahead and reduced behind where that hides the
     * time. */
    CHECK(stats.most_bytes <= buffers * (LAYER * sizeof(float) + 4096));
    oar_shards_destroy(s);
    return OAR_OK;
}

static void a_rank_holds_its_share_and_what_is_in_use(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        oar_shards_opts o = oar_shards_opts_init();

        o.hold = (oar_hold)h;
        assert_int_equal(ranks_run("native", 4, NULL, hold_little, &o), OAR_OK);
        assert_int_equal(ranks_run("sim", 3, NULL, hold_little, &o), OAR_OK);
    }
}

/* ---- ranges -------------------------------------------------------------- */

static oar_status ranges_cover(oar_group *g, void *arg)
{
    static const size_t rows[ARRAYS] = { 1, 100, 0, 3, 0, 64, 129, 1000 };
    shards_case c = { .opts = oar_shards_opts_init() };
    int ranks = oar_group_size(g), rank = oar_group_rank(g);
    oar_shard shard = oar_shard_init();
    oar_shards *s;
    model_numbers n;

    c.opts.rows = rows;
    numbers_create(&n);
    CHECK_OK(make_shards(g, &c, &n, &s));
    for (int a = 0; a < ARRAYS; a++) {
        size_t at = 0, first, count;
        for (int r = 0; r < ranks; r++) {
            CHECK_OK(oar_shards_range(s, a, r, &first, &count));
            CHECK(count == 0 || first == at);
            CHECK(count == 0 || rows[a] == 0 || first % rows[a] == 0);
            at += count;
        }
        CHECK(at == counts[a]);
    }
    for (int i = 0; i < oar_shards_count(s); i++) {
        size_t first, count;
        CHECK_OK(oar_shards_shard(s, i, &shard));
        CHECK_OK(oar_shards_range(s, shard.array, rank, &first, &count));
        CHECK(first == shard.first && count == shard.count);
        CHECK(read_element(shard.data, 0) == n.of[shard.array][first] ||
              dtype_of(shard.array) == OAR_F32);
        CHECK((shard.grad.data == NULL) == (shard.array == INTEGERS));
    }
    oar_shards_destroy(s);
    numbers_destroy(&n);
    return OAR_OK;
}

static void ranges_cover_every_element_once_and_keep_rows_whole(void **state)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        assert_int_equal(ranks_run("sim", ranks, NULL, ranges_cover, NULL),
                         OAR_OK);
}

/* ---- errors -------------------------------------------------------------- */

static oar_status different_units(oar_group *g, void *arg)
{
    static const char *const names[UNITS] = { "in", "norm", "block", "out" };
    shards_case c = { .opts = oar_shards_opts_init() };
    oar_shards *s;
    model_numbers n;

    c.opts.hold = OAR_HOLD_OWN;
    c.opts.unit_names = names;
    numbers_create(&n);
    CHECK_OK(make_shards(g, &c, &n, &s));
    CHECK(oar_shards_unshard(s, oar_group_rank(g) == 0 ? 0 : 2) ==
          OAR_E_MISMATCH);
    /* A backend of messages alone sees that sizes differ, and no labels. */
    CHECK(strstr(oar_last_error()->text, "calls something else") != NULL ||
          (strstr(oar_last_error()->text, "unit \"in\"") != NULL &&
           strstr(oar_last_error()->text, "unit \"block\"") != NULL));
    CHECK(oar_shards_publish(s) == OAR_E_MISMATCH); /* they are broken */
    CHECK_OK(oar_barrier(g, NULL, NULL));           /* the group is not */
    oar_shards_destroy(s);
    numbers_destroy(&n);
    return OAR_OK;
}

static void different_units_are_a_mismatch_that_names_both(void **state)
{
    ranks_all(2, different_units, NULL);
}

static oar_status different_arrays(oar_group *g, void *arg)
{
    size_t count = oar_group_rank(g) == 1 ? 8 : 7;
    oar_span array = oar_span_of(NULL, count, OAR_F32);
    oar_shards *s = NULL;
    int unit = 0;

    CHECK(oar_shards_create(g, 1, &array, &unit, NULL, &s) == OAR_E_MISMATCH);
    CHECK(s == NULL);
    return oar_barrier(g, NULL, NULL);
}

static void ranks_with_different_arrays_are_told(void **state)
{
    ranks_all(3, different_arrays, NULL);
}

static oar_status wrong_calls(oar_group *g, void *arg)
{
    oar_span array[2] = { oar_span_of(NULL, 7, OAR_F32),
                          oar_span_of(NULL, 5, OAR_I64) };
    int unit[2] = { 0, 0 }, wrong[2] = { 0, 3 };
    oar_shards_opts o = oar_shards_opts_init();
    size_t first, count;
    oar_shards *s = NULL;

    CHECK(oar_shards_create(NULL, 2, array, unit, NULL, &s) == OAR_E_ARG);
    CHECK(oar_shards_create(g, 2, array, NULL, NULL, &s) == OAR_E_ARG);
    CHECK(oar_shards_create(g, 2, array, wrong, NULL, &s) == OAR_E_ARG);
    o.hold = (oar_hold)9;
    CHECK(oar_shards_create(g, 2, array, unit, &o, &s) == OAR_E_ARG);
    CHECK_OK(oar_batch_begin(g));
    CHECK(oar_shards_create(g, 2, array, unit, NULL, &s) == OAR_E_STATE);
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK_OK(oar_shards_create(g, 0, NULL, NULL, NULL, &s));
    CHECK(oar_shards_units(s) == 0);
    CHECK_OK(oar_shards_wait(s));
    CHECK_OK(oar_shards_publish(s));
    oar_shards_destroy(s);
    o = oar_shards_opts_init();
    o.hold = OAR_HOLD_OWN;
    CHECK_OK(oar_shards_create(g, 2, array, unit, &o, &s));
    CHECK(oar_shards_unshard(s, 1) == OAR_E_ARG);
    CHECK(oar_shards_prefetch(s, 1) == OAR_E_ARG);
    CHECK_OK(oar_shards_prefetch(s, 0)); /* without an unshard: dropped */
    CHECK_OK(oar_shards_publish(s));
    CHECK(oar_shards_reshard(s, 0) == OAR_E_STATE);
    CHECK(oar_shards_array(s, 0).data == NULL);
    CHECK_OK(oar_shards_unshard(s, 0));
    CHECK(oar_shards_publish(s) == OAR_E_STATE);
    CHECK_OK(oar_shards_reshard(s, 0));
    CHECK(oar_shards_ready(s, 0) == OAR_E_STATE);
    CHECK(oar_shards_ready(s, 1) == OAR_E_ARG); /* integers have no mean */
    CHECK(oar_shards_grad(s, 1).data == NULL);
    CHECK(oar_shards_grad(s, 2).data == NULL);
    CHECK_OK(write_ones(s, 0, 1));
    CHECK(oar_shards_ready(s, 0) == OAR_E_STATE);
    CHECK_OK(oar_shards_wait(s));
    CHECK(oar_shards_weigh(s, 2) == OAR_E_ARG);
    CHECK(oar_shards_range(s, 2, 0, &first, &count) == OAR_E_ARG);
    CHECK(oar_shards_shard(s, 99, NULL) == OAR_E_ARG);
    oar_shards_destroy(s);
    oar_shards_destroy(NULL);
    return OAR_OK;
}

static void wrong_calls_are_refused(void **state)
{
    ranks_all(2, wrong_calls, NULL);
}

static oar_status train_alone(void *arg)
{
    shards_case c = { .opts = oar_shards_opts_init() };
    oar_shards *s = NULL;
    oar_status status;
    oar_group *g;
    model_numbers n;

    c.opts.hold = *(oar_hold *)arg;
    status = oar_group_create(NULL, 0, 1, NULL, &g);
    if (status != OAR_OK)
        return status;
    numbers_create(&n);
    status = make_shards(g, &c, &n, &s);
    if (status == OAR_OK)
        status = oar_shards_unshard(s, 3);
    if (status == OAR_OK)
        status = oar_shards_grad(s, 7).data != NULL ? oar_shards_ready(s, 7)
                                                    : oar_last_error()->status;
    if (status == OAR_OK)
        status = oar_shards_wait(s);
    oar_shards_destroy(s);
    oar_group_destroy(g);
    numbers_destroy(&n);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        assert_int_equal(train_alone(&h), OAR_OK); /* segments are kept */
        fail_each_allocation(train_alone, &h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_train_as_one_process_does),
        cmocka_unit_test(eight_ranks_train_as_one),
        cmocka_unit_test(options_do_not_change_the_numbers),
        cmocka_unit_test(ranks_may_have_different_gradients),
        cmocka_unit_test(canonical_sums_give_the_same_bits_however_held),
        cmocka_unit_test(two_hosts_train_as_one_process),
        cmocka_unit_test(passes_add_up_until_zero_grad),
        cmocka_unit_test(replicas_take_part_in_the_mean),
        cmocka_unit_test(a_rank_holds_its_share_and_what_is_in_use),
        cmocka_unit_test(ranges_cover_every_element_once_and_keep_rows_whole),
        cmocka_unit_test(different_units_are_a_mismatch_that_names_both),
        cmocka_unit_test(ranks_with_different_arrays_are_told),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
