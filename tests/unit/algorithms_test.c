/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective with every algorithm that does it, over threads, with small
 * slots, bounce buffers and chunks, so that a few hundred elements take all
 * paths. Values are small whole numbers: sums are exact in any order. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/oarsong.h>

#include "base/dtype.h"
#include "comm/exec/exec.h"

enum { MOST = 20000 };

typedef struct algorithm_buffers {
    oar_group *group;
    int rank, ranks;
    oar_dtype dtype;
    unsigned char *in, *out;
} algorithm_buffers;

/* Element i of rank r's input: differs by rank and place, and sums of it stay
 * small. */
static double value(int r, size_t i)
{
    return (double)((r * 3 + (int)(i % 7) * 5 + 1) % 11);
}

static void set(oar_dtype dtype, void *at, size_t i, double x)
{
    oari_convert((char *)at + i * oar_dtype_size(dtype), dtype, &x, OAR_F64, 1);
}

static double read_one(oar_dtype dtype, const void *at, size_t i)
{
    double x;

    oari_convert(&x, OAR_F64, (const char *)at + i * oar_dtype_size(dtype),
                 dtype, 1);
    return x;
}

static oar_span span_in(const algorithm_buffers *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        set(b->dtype, b->in, i, value(b->rank, i));
    return oar_span_of(b->in, count, b->dtype);
}

static oar_span span_out(const algorithm_buffers *b, size_t count)
{
    memset(b->out, 0x5a, count * oar_dtype_size(b->dtype));
    return oar_span_of(b->out, count, b->dtype);
}

static oar_status expect(const algorithm_buffers *b, const char *what, size_t i,
                         double wanted)
{
    double got = read_one(b->dtype, b->out, i);

    if (got == wanted)
        return OAR_OK;
    return oar_backend_fail(
        OAR_E_DATA, "%s: rank %d of %d, %s[%zu]: %g, not %g", what, b->rank,
        b->ranks, oar_dtype_name(b->dtype), i, got, wanted);
}

#define EXPECT(b, what, i, wanted)                       \
    do {                                                 \
        oar_status status_ = expect(b, what, i, wanted); \
        if (status_ != OAR_OK)                           \
            return status_;                              \
    } while (0)
#define TRY(call)                    \
    do {                             \
        oar_status status_ = (call); \
        if (status_ != OAR_OK)       \
            return status_;          \
    } while (0)

static double sum_at(const algorithm_buffers *b, size_t i)
{
    double sum = 0;

    for (int r = 0; r < b->ranks; r++)
        sum += value(r, i);
    return sum;
}

/* Ragged sizes: some empty. */
static size_t part(int from, int to, size_t count)
{
    return (size_t)(from * 5 + to * 3) % 4 == 1
               ? 0
               : count * (size_t)(1 + (from + to) % 3) / 2;
}

static size_t parts(size_t *sizes, int n, int ragged, size_t count)
{
    size_t total = 0;

    for (int r = 0; r < n; r++)
        total += sizes[r] = ragged ? part(r, 1, count) : count;
    return total;
}

/* ---- one of each --------------------------------------------------------- */

static oar_status vectors(const algorithm_buffers *b, size_t count, int root)
{
    oar_span none = oar_span_of(NULL, 0, b->dtype), in, out;
    oar_call_opts weighted = oar_call_opts_init();

    in = span_in(b, count);
    out = span_out(b, count);
    TRY(oar_all_reduce_into(b->group, in, out, OAR_SUM, NULL, NULL));
    for (size_t i = 0; i < count; i++)
        EXPECT(b, "all_reduce", i, sum_at(b, i));
    out = span_out(b, count);
    TRY(oar_reduce(b->group, in, b->rank == root ? out : none, OAR_MAX, root,
                   NULL, NULL));
    for (size_t i = 0; i < count && b->rank == root; i++) {
        double most = 0;
        for (int r = 0; r < b->ranks; r++)
            most = value(r, i) > most ? value(r, i) : most;
        EXPECT(b, "reduce", i, most);
    }
    out = span_out(b, count);
    memcpy(b->out, b->in, count * oar_dtype_size(b->dtype));
    TRY(oar_broadcast(b->group, out, root, NULL, NULL));
    for (size_t i = 0; i < count; i++)
        EXPECT(b, "broadcast", i, value(root, i));
    /* Weights 1, 2, 4, ...: the mean of rank r's value is whole if all are. */
    for (size_t i = 0; i < count; i++)
        set(b->dtype, b->in, i, (double)(i % 5 + 2));
    weighted.weight = 1 << b->rank % 3;
    TRY(oar_all_reduce_into(b->group, in, out, OAR_WEIGHTED_MEAN, &weighted,
                            NULL));
    for (size_t i = 0; i < count; i++)
        EXPECT(b, "weighted mean", i, (double)(i % 5 + 2));
    return oar_barrier(b->group, NULL, NULL);
}

static oar_status rows(const algorithm_buffers *b, size_t count, int root,
                       int ragged)
{
    size_t sizes[64], total = parts(sizes, b->ranks, ragged, count), at = 0;
    oar_span none = oar_span_of(NULL, 0, b->dtype), in, out;
    size_t mine = sizes[b->rank], before = 0;

    for (int r = 0; r < b->rank; r++)
        before += sizes[r];
    in = span_in(b, mine);
    out = span_out(b, total);
    TRY(oar_all_gather_v(b->group, in, out, ragged ? sizes : NULL, NULL, NULL));
    for (int r = 0; r < b->ranks; at += sizes[r++])
        for (size_t i = 0; i < sizes[r]; i++)
            EXPECT(b, "all_gather", at + i, value(r, i));
    out = span_out(b, total);
    if (ragged)
        TRY(oar_gather_v(b->group, in, b->rank == root ? out : none,
                         b->rank == root ? sizes : NULL, root, NULL, NULL));
    else
        TRY(oar_gather(b->group, in, b->rank == root ? out : none, root, NULL,
                       NULL));
    at = 0;
    for (int r = 0; r < b->ranks && b->rank == root; at += sizes[r++])
        for (size_t i = 0; i < sizes[r]; i++)
            EXPECT(b, "gather", at + i, value(r, i));
    in = span_in(b, total);
    out = span_out(b, mine);
    if (ragged)
        TRY(oar_scatter_v(b->group, b->rank == root ? in : none,
                          b->rank == root ? sizes : NULL, out, root, NULL,
                          NULL));
    else
        TRY(oar_scatter(b->group, b->rank == root ? in : none, out, root, NULL,
                        NULL));
    for (size_t i = 0; i < mine; i++)
        EXPECT(b, "scatter", i, value(root, before + i));
    out = span_out(b, mine);
    TRY(oar_reduce_scatter_v(b->group, in, ragged ? sizes : NULL, out, OAR_SUM,
                             NULL, NULL));
    for (size_t i = 0; i < mine; i++)
        EXPECT(b, "reduce_scatter", i, sum_at(b, before + i));
    return OAR_OK;
}

static size_t pair(int from, int to, int ragged, size_t count)
{
    return ragged ? part(from, to, count) : count;
}

static oar_status columns(const algorithm_buffers *b, size_t count, int ragged)
{
    size_t give[64], take[64], given = 0, taken = 0, at = 0;

    for (int r = 0; r < b->ranks; r++) {
        given += give[r] = pair(b->rank, r, ragged, count);
        taken += take[r] = pair(r, b->rank, ragged, count);
    }
    TRY(oar_all_to_all_v(b->group, span_in(b, given), ragged ? give : NULL,
                         span_out(b, taken), ragged ? take : NULL, NULL, NULL));
    for (int r = 0; r < b->ranks; at += take[r++]) {
        size_t skipped = 0;
        for (int q = 0; q < b->rank; q++)
            skipped += pair(r, q, ragged, count);
        for (size_t i = 0; i < take[r]; i++)
            EXPECT(b, "all_to_all", at + i, value(r, skipped + i));
    }
    return OAR_OK;
}

/* ---- byte objects -------------------------------------------------------- */

static size_t object_size(int rank, size_t count)
{
    return rank % 3 == 1 ? 0 : count + (size_t)rank;
}

static oar_status check_bytes(const char *what, const unsigned char *got,
                              size_t bytes, int rank)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != (unsigned char)(i * 3 + (size_t)rank))
            return oar_backend_fail(OAR_E_DATA, "%s: byte %zu of rank %d", what,
                                    i, rank);
    return OAR_OK;
}

static oar_status check_all(const char *what, unsigned char *all,
                            const size_t *sizes, int n, size_t count)
{
    size_t at = 0;

    for (int r = 0; r < n; at += sizes[r++]) {
        if (sizes[r] != object_size(r, count))
            return oar_backend_fail(OAR_E_DATA, "%s: size of rank %d", what, r);
        TRY(check_bytes(what, all + at, sizes[r], r));
    }
    oar_free(all);
    return OAR_OK;
}

static oar_status objects(const algorithm_buffers *b, size_t count, int root)
{
    size_t sizes[64] = { 0 }, bytes = object_size(b->rank, count), at = 0;
    void *got = NULL;

    for (size_t i = 0; i < bytes; i++)
        b->in[i] = (unsigned char)(i * 3 + (size_t)b->rank);
    TRY(oar_all_gather_bytes(b->group, b->in, bytes, &got, sizes, NULL, NULL));
    TRY(check_all("all_gather_bytes", got, sizes, b->ranks, count));
    TRY(oar_gather_bytes(b->group, b->in, bytes, root,
                         b->rank == root ? &got : NULL,
                         b->rank == root ? sizes : NULL, NULL, NULL));
    if (b->rank == root)
        TRY(check_all("gather_bytes", got, sizes, b->ranks, count));
    got = b->in;
    bytes = object_size(root, count);
    TRY(oar_broadcast_bytes(b->group, &got, &bytes, root, NULL, NULL));
    if (b->rank != root) {
        TRY(check_bytes("broadcast_bytes", got, bytes, root));
        oar_free(got);
    }
    for (int r = 0; r < b->ranks; at += sizes[r++]) {
        sizes[r] = object_size(r, count);
        for (size_t i = 0; i < sizes[r]; i++)
            b->out[at + i] = (unsigned char)(i * 3 + (size_t)r);
    }
    TRY(oar_scatter_bytes(b->group, b->rank == root ? b->out : NULL,
                          b->rank == root ? sizes : NULL, root, &got, &bytes,
                          NULL, NULL));
    if (bytes != object_size(b->rank, count))
        return oar_backend_fail(OAR_E_DATA, "scatter_bytes: %zu", bytes);
    TRY(check_bytes("scatter_bytes", got, bytes, b->rank));
    oar_free(got);
    return OAR_OK;
}

/* ---- all of them --------------------------------------------------------- */

static oar_status use_buffers(algorithm_buffers *b)
{
    static const size_t counts[] = { 0, 1, 3, 65, 1000 };
    static const oar_dtype dtypes[] = { OAR_F32, OAR_BF16, OAR_I64, OAR_F16 };

    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int root = (int)c % b->ranks;
        b->dtype = dtypes[c % 4];
        TRY(vectors(b, counts[c], root));
        for (int ragged = 0; ragged < 2; ragged++) {
            TRY(rows(b, counts[c], root, ragged));
            TRY(columns(b, counts[c], ragged));
        }
        b->dtype = OAR_U8;
        TRY(objects(b, counts[c], root));
    }
    return OAR_OK;
}

/* Even ranks in shared memory, or all, or none. */
static oar_status run_rank(oar_group *group, void *arg)
{
    algorithm_buffers b = { .group = group,
                            .rank = oar_group_rank(group),
                            .ranks = oar_group_size(group) };
    oar_status status;

    b.in = malloc((size_t)MOST * 8);
    b.out = malloc((size_t)MOST * 8);
    status = use_buffers(&b);
    free(b.in);
    free(b.out);
    return status;
}

static const char *const names[] = {
    NULL,
    "direct",
    "staged",
    "exchange",
    "ring",
    "doubling",
    "halving",
    "bruck",
    "binomial",
    "chain",
    "dissemination",
    "pairwise",
    "linear",
    "barrier:line,broadcast:chain,all_reduce:ring,reduce:chain,gather:linear,"
    "scatter:linear,all_gather:ring,reduce_scatter:ring,all_to_all:pairwise"
};

static void every_algorithm_gives_the_right_values(void **state)
{
    static const int ranks[] = { 1, 2, 3, 5 };

    for (size_t a = 0; a < sizeof names / sizeof *names; a++)
        for (size_t n = 0; n < sizeof ranks / sizeof *ranks; n++) {
            oar_group_opts opts = oar_group_opts_init();
            opts.algorithm = names[a];
            opts.small_bytes = 64;
            opts.stage_bytes = 1024;
            opts.chunk_bytes = 512;
            opts.timeout_ms = 20000;
            if (oar_sim_run_with(ranks[n], &opts, run_rank, NULL) != OAR_OK)
                fail_msg("%s, %d ranks: %s", names[a], ranks[n],
                         oar_last_error_text());
        }
}

/* ---- what does not fit --------------------------------------------------- */

static oar_status send_too_much(oar_group *group, void *arg)
{
    const char *kind = arg;
    int rank = oar_group_rank(group);
    size_t counts[3] = { 4, 4, 4 }, four[3] = { 4, 4, 4 };
    float in[16] = { 0 }, out[16];
    size_t mine = rank == 1 ? 5 : 4;

    if (strcmp(kind, "gather") == 0)
        return oar_gather_v(group, oar_span_of(in, mine, OAR_F32),
                            oar_span_of(out, rank == 0 ? 12 : 0, OAR_F32),
                            rank == 0 ? counts : NULL, 0, NULL, NULL);
    if (strcmp(kind, "scatter") == 0)
        return oar_scatter_v(group,
                             oar_span_of(in, rank == 0 ? 12 : 0, OAR_F32),
                             rank == 0 ? counts : NULL,
                             oar_span_of(out, mine, OAR_F32), 0, NULL, NULL);
    counts[2] = mine;
    return oar_all_to_all_v(group, oar_span_of(in, 8 + mine, OAR_F32), counts,
                            oar_span_of(out, 12, OAR_F32), four, NULL, NULL);
}

static void sizes_that_do_not_fit_are_named(void **state)
{
    static const char *const kinds[] = { "gather", "scatter", "all_to_all" };
    static const char *const algorithms[] = { NULL, "linear,pairwise" };

    for (int k = 0; k < 3; k++)
        for (int a = 0; a < 2; a++) {
            oar_group_opts opts = oar_group_opts_init();
            char kind[16];
            snprintf(kind, sizeof kind, "%s", kinds[k]);
            opts.algorithm = algorithms[a];
            opts.timeout_ms = 5000;
            assert_int_equal(oar_sim_run_with(3, &opts, send_too_much, kind),
                             OAR_E_MISMATCH);
            if (strstr(oar_last_error_text(), "rank 1") == NULL)
                fail_msg("%s %d: %s", kind, a, oar_last_error_text());
            assert_non_null(strstr(oar_last_error_text(), a == 0 ? "5" : ""));
            assert_non_null(strstr(oar_last_error_text(), a == 0 ? "4" : "1"));
        }
}

/* ---- what cannot be taken back ------------------------------------------- */

static oar_status cannot_detach(void *self, void *memory, size_t bytes)
{
    *(size_t *)self = bytes;
    return oar_backend_fail(OAR_E_NOMEM, "no pages left");
}

static void keep_line(void *arg, oar_log_level level, const char *line)
{
    if (level == OAR_LOG_ERROR)
        snprintf(arg, 300, "%s", line);
}

static void a_buffer_that_stays_in_reach_is_reported(void **state)
{
    static const oari_board_ops ops = { .detach = cannot_detach };
    size_t asked = 0;
    oari_board board = { .ops = &ops, .self = &asked };
    float data[5];
    oari_call call = { .kind = OAR_COLL_ALL_REDUCE };
    oari_exec exec = { .rank = 3, .board = &board, .call = &call };
    char line[300] = "";

    call.out = oar_span_of(data, 5, OAR_F32);
    exec.sequence = 77;
    exec.exposed = OARI_SHOWS_IN | OARI_SHOWS_OUT;
    oar_log_to(keep_line, line, OAR_LOG_ERROR);
    assert_int_equal(oari_exec_withdraw(&exec), OAR_E_NOMEM);
    assert_int_equal(asked, sizeof data);
    assert_non_null(strstr(line, "rank 3: the output of operation #77"));
    assert_non_null(strstr(line, "no pages left"));
    line[0] = 0;
    assert_int_equal(oari_exec_withdraw(&exec), OAR_OK); /* once */
    assert_string_equal(line, "");
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_gives_the_right_values),
        cmocka_unit_test(sizes_that_do_not_fit_are_named),
        cmocka_unit_test(a_buffer_that_stays_in_reach_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
