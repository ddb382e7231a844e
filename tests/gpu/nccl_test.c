/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective, dtype and operator on GPUs by NCCL, with 1 to 4 ranks:
 * values are compared with what the host computes; what NCCL cannot do is
 * refused with a sentence, and the group goes on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>

#include "base/dtype.h"
#include "base/reduce/reduce.h"
#include "support/gpu_ranks.h"

/* For functions whose parameter t has the job and the rank. */
#define CELL_CHECK(condition) JOB_CHECK(t->c, t->rank, condition)
#define CELL_OK(call)         JOB_CHECK(t->c, t->rank, (call) == OAR_OK)

typedef struct nccl_rank {
    test_job *c;
    oar_group *g;
    int rank, ranks;
} nccl_rank;

static const size_t counts[] = { 0, 1, 7, 1001 };
enum { COUNTS = sizeof counts / sizeof *counts, MOST = 1001 * GPU_RANKS_MAX };

/* ---- values -------------------------------------------------------------- */

/* Element i of rank r's contribution: small, and of both signs. */
static void fill(void *to, oar_dtype dtype, int rank, size_t from, size_t count)
{
    static double value[MOST];

    for (size_t i = 0; i < count; i++) {
        double v = 1 + (double)(((from + i) * 7 + (size_t)rank * 3) % 5);
        int is_signed = dtype == OAR_I8 || dtype == OAR_I16 ||
                        dtype == OAR_I32 || dtype == OAR_I64 ||
                        oari_dtype_is_float(dtype);

        value[i] =
            dtype == OAR_BOOL ? (double)((int)v & 1) : v - (is_signed ? 3 : 0);
    }
    oari_convert(to, dtype, value, OAR_F64, count);
}

static double factor_of(int rank)
{
    return 0.5 * (rank + 1);
}

/* What elements from .. from + count of op over all ranks are. */
static void expect(void *to, oar_dtype dtype, oar_reduce_op_kind op, int ranks,
                   size_t from, size_t count)
{
    size_t each = oar_dtype_size(dtype);
    unsigned char *all = malloc((size_t)ranks * count * each + 1);
    const void *source[GPU_RANKS_MAX];
    double factor[GPU_RANKS_MAX];
    oari_reduction r = { .kind = op,
                         .dtype = dtype,
                         .sources = ranks,
                         .source = source,
                         .destinations = 1,
                         .destination = (void *const[]){ to } };

    for (int i = 0; i < ranks; i++) {
        source[i] = all + (size_t)i * count * each;
        factor[i] = factor_of(i);
        fill(all + (size_t)i * count * each, dtype, i, from, count);
    }
    if (op == OAR_REDUCE_OP_AVG || op == OAR_REDUCE_OP_PREMUL_SUM)
        r.kind = OAR_REDUCE_OP_SUM;
    if (op == OAR_REDUCE_OP_AVG)
        r.divisor = ranks;
    if (op == OAR_REDUCE_OP_PREMUL_SUM)
        r.factor = factor;
    oari_reduce(&r, count);
    free(all);
}

/* NCCL rounds halves at every step, and averages by a factor. */
static double slack(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F64: return 1e-14;
    case OAR_F32: return 1e-6;
    case OAR_F16: return 4e-3;
    case OAR_BF16: return 3e-2;
    default: return 0;
    }
}

static int same(const void *got, const void *want, oar_dtype dtype,
                size_t count)
{
    static double a[MOST], b[MOST];

    if (!oari_dtype_is_float(dtype))
        return memcmp(got, want, count * oar_dtype_size(dtype)) == 0;
    oari_convert(a, OAR_F64, got, dtype, count);
    oari_convert(b, OAR_F64, want, dtype, count);
    for (size_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= slack(dtype) * (fabs(b[i]) + 4)))
            return 0;
    return 1;
}

/* ---- reductions ---------------------------------------------------------- */

static int is_taken(oar_reduce_op_kind op, oar_dtype dtype)
{
    int is_float = oari_dtype_is_float(dtype);

    if (dtype == OAR_I16 || dtype == OAR_U16)
        return 0;
    switch (op) {
    case OAR_REDUCE_OP_SUM:
    case OAR_REDUCE_OP_PROD:
    case OAR_REDUCE_OP_MIN:
    case OAR_REDUCE_OP_MAX: return 1;
    case OAR_REDUCE_OP_AVG:
        return is_float || dtype == OAR_U8 || dtype == OAR_U32 ||
               dtype == OAR_U64;
    case OAR_REDUCE_OP_PREMUL_SUM: return is_float;
    case OAR_REDUCE_OP_BAND:
    case OAR_REDUCE_OP_BOR: return dtype == OAR_BOOL;
    default: return 0;
    }
}

static oar_reduce_op op_of(const nccl_rank *t, oar_reduce_op_kind kind)
{
    return OAR_REDUCE_OP(
        kind, kind == OAR_REDUCE_OP_PREMUL_SUM ? factor_of(t->rank) : 0);
}

static int refuses(nccl_rank *t, oar_reduce_op_kind kind, oar_dtype dtype)
{
    void *memory = gpu_put(t->rank, NULL, 64);
    oar_span span = gpu_span(t->rank, memory, 8, dtype);
    oar_call_opts opts = oar_call_opts_init();

    opts.weight = 1;
    CELL_CHECK(oar_all_reduce(t->g, span, op_of(t, kind), &opts, NULL) ==
               OAR_E_UNSUPPORTED);
    CELL_CHECK(strlen(oar_last_error_text()) > 20);
    gpu_free(t->rank, memory);
    return 0;
}

static int all_reduce(nccl_rank *t, oar_reduce_op_kind kind, oar_dtype dtype,
                      size_t count, int in_place)
{
    size_t bytes = count * oar_dtype_size(dtype);
    char *mine = malloc(bytes + 1), *want = malloc(bytes + 1);
    void *in, *out;

    fill(mine, dtype, t->rank, 0, count);
    expect(want, dtype, kind, t->ranks, 0, count);
    in = gpu_put(t->rank, mine, bytes);
    out = in_place ? in : gpu_put(t->rank, NULL, bytes);
    CELL_OK(oar_all_reduce_into(t->g, gpu_span(t->rank, in, count, dtype),
                                gpu_span(t->rank, out, count, dtype),
                                op_of(t, kind), NULL, NULL));
    gpu_get(t->rank, mine, out, bytes);
    CELL_CHECK(same(mine, want, dtype, count));
    gpu_free(t->rank, in);
    if (!in_place)
        gpu_free(t->rank, out);
    free(mine);
    free(want);
    return 0;
}

static int reduce(nccl_rank *t, oar_reduce_op_kind kind, oar_dtype dtype,
                  size_t count, int root)
{
    size_t bytes = count * oar_dtype_size(dtype);
    char *mine = malloc(bytes + 1), *want = malloc(bytes + 1);
    int is_root = t->rank == root;
    void *in, *out = NULL;

    fill(mine, dtype, t->rank, 0, count);
    expect(want, dtype, kind, t->ranks, 0, count);
    in = gpu_put(t->rank, mine, bytes);
    if (is_root)
        out = gpu_put(t->rank, NULL, bytes);
    CELL_OK(oar_reduce(t->g, gpu_span(t->rank, in, count, dtype),
                       is_root ? gpu_span(t->rank, out, count, dtype)
                               : (oar_span){ 0 },
                       op_of(t, kind), root, NULL, NULL));
    if (is_root) {
        gpu_get(t->rank, mine, out, bytes);
        CELL_CHECK(same(mine, want, dtype, count));
    }
    gpu_free(t->rank, in);
    gpu_free(t->rank, out);
    free(mine);
    free(want);
    return 0;
}

/* Parts of one size, or part r of r * step elements and one more for the last.
 */
static size_t cut(const nccl_rank *t, size_t step, int ragged, size_t *parts)
{
    size_t total = 0;

    for (int r = 0; r < t->ranks; r++) {
        parts[r] = ragged ? (size_t)r * step / 2 : step;
        total += parts[r];
    }
    return total;
}

static size_t before(const size_t *parts, int rank)
{
    size_t at = 0;

    for (int r = 0; r < rank; r++)
        at += parts[r];
    return at;
}

static int reduce_scatter(nccl_rank *t, oar_reduce_op_kind kind,
                          oar_dtype dtype, size_t step, int ragged,
                          int in_place)
{
    size_t parts[GPU_RANKS_MAX], total = cut(t, step, ragged, parts);
    size_t each = oar_dtype_size(dtype), mine = parts[t->rank];
    size_t at = before(parts, t->rank);
    char *host = malloc(total * each + 1), *want = malloc(mine * each + 1);
    char *row, *out;

    fill(host, dtype, t->rank, 0, total);
    expect(want, dtype, kind, t->ranks, at, mine);
    row = gpu_put(t->rank, host, total * each);
    out = in_place ? row + at * each : gpu_put(t->rank, NULL, mine * each);
    CELL_OK(oar_reduce_scatter_v(
        t->g, gpu_span(t->rank, row, total, dtype), ragged ? parts : NULL,
        gpu_span(t->rank, out, mine, dtype), op_of(t, kind), NULL, NULL));
    gpu_get(t->rank, host, out, mine * each);
    CELL_CHECK(same(host, want, dtype, mine));
    gpu_free(t->rank, row);
    if (!in_place)
        gpu_free(t->rank, out);
    free(host);
    free(want);
    return 0;
}

/* One dtype and operator: each form of each kind once, the sizes in turn. */
static int reduce_cell(nccl_rank *t, oar_reduce_op_kind kind, oar_dtype dtype)
{
    size_t n = counts[(unsigned)(dtype + kind) % COUNTS];
    int failed = 0;

    if (!is_taken(kind, dtype))
        return refuses(t, kind, dtype);
    failed |= all_reduce(t, kind, dtype, n, 0);
    failed |= all_reduce(t, kind, dtype, 13, 1);
    failed |= reduce(t, kind, dtype, 5, (int)(dtype + kind) % t->ranks);
    failed |= reduce_scatter(t, kind, dtype, n, 0, 0);
    failed |= reduce_scatter(t, kind, dtype, 11, 0, 1);
    failed |= reduce_scatter(t, kind, dtype, 9, 1, (int)kind & 1);
    return failed;
}

static int reduces_everything(test_job *c, int rank, void *arg)
{
    nccl_rank one = { c, NULL, rank, c->ranks }, *t = &one;
    int failed = 0;

    CELL_OK(gpu_ranks_join(c, rank, NULL, &t->g));
    for (int dtype = 0; dtype < OAR_DTYPE_COUNT; dtype++)
        for (int op = 0; op < OAR_REDUCE_OP_COUNT && !failed; op++)
            if (oar_reduce_op_check(OAR_REDUCE_OP((oar_reduce_op_kind)op, 1),
                                    (oar_dtype)dtype) == OAR_OK)
                failed |=
                    reduce_cell(t, (oar_reduce_op_kind)op, (oar_dtype)dtype);
    oar_group_destroy(t->g);
    return failed;
}

static int every_size_of_f32(test_job *c, int rank, void *arg)
{
    nccl_rank one = { c, NULL, rank, c->ranks }, *t = &one;
    int failed = 0;

    CELL_OK(gpu_ranks_join(c, rank, NULL, &t->g));
    for (int i = 0; i < COUNTS && !failed; i++) {
        failed |= all_reduce(t, OAR_REDUCE_OP_SUM, OAR_F32, counts[i], 0);
        failed |= all_reduce(t, OAR_REDUCE_OP_SUM, OAR_F32, counts[i], 1);
        for (int root = 0; root < t->ranks; root++)
            failed |= reduce(t, OAR_REDUCE_OP_MAX, OAR_F32, counts[i], root);
        for (int form = 0; form < 4; form++)
            failed |= reduce_scatter(t, OAR_REDUCE_OP_SUM, OAR_F32, counts[i],
                                     form & 1, form >> 1);
    }
    oar_group_destroy(t->g);
    return failed;
}

/* ---- moving -------------------------------------------------------------- */

static int broadcast(nccl_rank *t, oar_dtype dtype, size_t count, int root)
{
    size_t bytes = count * oar_dtype_size(dtype);
    char *mine = malloc(bytes + 1), *want = malloc(bytes + 1);
    void *memory;

    fill(want, dtype, root, 0, count);
    memory = gpu_put(t->rank, t->rank == root ? want : NULL, bytes);
    CELL_OK(oar_broadcast(t->g, gpu_span(t->rank, memory, count, dtype), root,
                          NULL, NULL));
    gpu_get(t->rank, mine, memory, bytes);
    CELL_CHECK(memcmp(mine, want, bytes) == 0);
    gpu_free(t->rank, memory);
    free(mine);
    free(want);
    return 0;
}

/* The row of every rank's part, as all_gather and gather leave it. */
static void fill_row(const nccl_rank *t, char *row, oar_dtype dtype,
                     const size_t *parts)
{
    size_t each = oar_dtype_size(dtype);

    for (int r = 0; r < t->ranks; r++)
        fill(row + before(parts, r) * each, dtype, r, before(parts, r),
             parts[r]);
}

/* root < 0: to all. */
static int gather(nccl_rank *t, oar_dtype dtype, size_t step, int ragged,
                  int in_place, int root)
{
    size_t parts[GPU_RANKS_MAX], total = cut(t, step, ragged, parts);
    size_t each = oar_dtype_size(dtype), mine = parts[t->rank];
    size_t at = before(parts, t->rank);
    int has_row = root < 0 || root == t->rank;
    char *got = malloc(total * each + 1), *want = malloc(total * each + 1);
    char *row = has_row ? gpu_put(t->rank, NULL, total * each) : NULL;
    char *part;
    oar_span in, out = { 0 };

    fill_row(t, want, dtype, parts);
    part = gpu_put(t->rank, want + at * each, mine * each);
    in = gpu_span(t->rank, part, mine, dtype);
    if (has_row)
        out = gpu_span(t->rank, row, total, dtype);
    if (has_row && in_place && mine > 0) {
        in.data = row + at * each;
        CELL_OK(oar_device_copy(in.data, in.device, part, in.device,
                                mine * each, NULL));
    }
    if (root < 0)
        CELL_OK(
            oar_all_gather_v(t->g, in, out, ragged ? parts : NULL, NULL, NULL));
    else if (ragged)
        CELL_OK(oar_gather_v(t->g, in, out, has_row ? parts : NULL, root, NULL,
                             NULL));
    else
        CELL_OK(oar_gather(t->g, in, out, root, NULL, NULL));
    if (has_row) {
        gpu_get(t->rank, got, row, total * each);
        CELL_CHECK(memcmp(got, want, total * each) == 0);
    }
    gpu_free(t->rank, row);
    gpu_free(t->rank, part);
    free(got);
    free(want);
    return 0;
}

static int scatter(nccl_rank *t, oar_dtype dtype, size_t step, int ragged,
                   int in_place, int root)
{
    size_t parts[GPU_RANKS_MAX], total = cut(t, step, ragged, parts);
    size_t each = oar_dtype_size(dtype), mine = parts[t->rank];
    size_t at = before(parts, t->rank);
    int is_root = root == t->rank;
    char *got = malloc(mine * each + 1), *want = malloc(total * each + 1);
    char *row, *part = gpu_put(t->rank, NULL, mine * each);
    oar_span in = { 0 }, out = gpu_span(t->rank, part, mine, dtype);

    fill_row(t, want, dtype, parts);
    row = gpu_put(t->rank, want, total * each);
    if (is_root)
        in = gpu_span(t->rank, row, total, dtype);
    if (is_root && in_place)
        out.data = row + at * each;
    if (ragged)
        CELL_OK(oar_scatter_v(t->g, in, is_root ? parts : NULL, out, root, NULL,
                              NULL));
    else
        CELL_OK(oar_scatter(t->g, in, out, root, NULL, NULL));
    gpu_get(t->rank, got, out.data, mine * each);
    CELL_CHECK(memcmp(got, want + at * each, mine * each) == 0);
    gpu_free(t->rank, row);
    gpu_free(t->rank, part);
    free(got);
    free(want);
    return 0;
}

/* From rank a to rank b go (a + 2b) * step / 2 elements, or step. */
static size_t load(int from, int to, size_t step, int ragged)
{
    return ragged ? (size_t)(from + 2 * to) * step / 2 : step;
}

static int all_to_all(nccl_rank *t, oar_dtype dtype, size_t step, int ragged)
{
    size_t out_parts[GPU_RANKS_MAX], in_parts[GPU_RANKS_MAX];
    size_t each = oar_dtype_size(dtype), give = 0, take = 0, at = 0;
    char *got, *want, *host;
    void *from, *to;

    for (int r = 0; r < t->ranks; r++) {
        give += in_parts[r] = load(t->rank, r, step, ragged);
        take += out_parts[r] = load(r, t->rank, step, ragged);
    }
    host = malloc(give * each + 1);
    got = malloc(take * each + 1);
    want = malloc(take * each + 1);
    for (int r = 0; r < t->ranks; r++) { /* what goes to r begins at 10 * r */
        fill(host + before(in_parts, r) * each, dtype, t->rank, (size_t)r * 10,
             in_parts[r]);
        fill(want + at * each, dtype, r, (size_t)t->rank * 10, out_parts[r]);
        at += out_parts[r];
    }
    from = gpu_put(t->rank, host, give * each);
    to = gpu_put(t->rank, NULL, take * each);
    CELL_OK(oar_all_to_all_v(t->g, gpu_span(t->rank, from, give, dtype),
                             ragged ? in_parts : NULL,
                             gpu_span(t->rank, to, take, dtype),
                             ragged ? out_parts : NULL, NULL, NULL));
    gpu_get(t->rank, got, to, take * each);
    CELL_CHECK(memcmp(got, want, take * each) == 0);
    gpu_free(t->rank, from);
    gpu_free(t->rank, to);
    free(host);
    free(got);
    free(want);
    return 0;
}

static int move_cell(nccl_rank *t, oar_dtype dtype, size_t n)
{
    int root = (int)((size_t)dtype + n) % t->ranks, failed = 0;

    failed |= broadcast(t, dtype, n, root);
    for (int form = 0; form < 4; form++) {
        int ragged = form & 1, in_place = form >> 1;

        failed |= gather(t, dtype, n, ragged, in_place, -1);
        failed |= gather(t, dtype, n, ragged, in_place, root);
        failed |= scatter(t, dtype, n, ragged, in_place, root);
    }
    failed |= all_to_all(t, dtype, n / 4, 0);
    failed |= all_to_all(t, dtype, n / 8, 1);
    return failed;
}

static int moves_everything(test_job *c, int rank, void *arg)
{
    nccl_rank one = { c, NULL, rank, c->ranks }, *t = &one;
    int failed = 0;

    CELL_OK(gpu_ranks_join(c, rank, NULL, &t->g));
    for (int dtype = 0; dtype < OAR_DTYPE_COUNT && !failed; dtype++)
        failed |= move_cell(t, (oar_dtype)dtype, dtype % 2 ? 17 : 1);
    for (int i = 0; i < COUNTS && !failed; i++)
        failed |= move_cell(t, OAR_F32, counts[i]);
    oar_group_destroy(t->g);
    return failed;
}

/* ---- more than an int can count ------------------------------------------ */

static int is_large(test_job *c, int rank, void *arg)
{
    nccl_rank one = { c, NULL, rank, c->ranks }, *t = &one;
    size_t count = ((size_t)1 << 31) + 11;
    unsigned char tail[16], *memory;
    oar_span span;

    CELL_OK(gpu_ranks_join(c, rank, NULL, &t->g));
    CELL_OK(oar_device_alloc(gpu_of_rank(rank), count, (void **)&memory));
    span = gpu_span(rank, memory, count, OAR_U8);
    CELL_OK(oar_device_fill(span, 3, NULL));
    CELL_OK(oar_all_reduce(t->g, span, OAR_SUM, NULL, NULL));
    CELL_OK(oar_broadcast(t->g, span, 0, NULL, NULL));
    gpu_get(rank, tail, memory + count - sizeof tail, sizeof tail);
    for (size_t i = 0; i < sizeof tail; i++)
        CELL_CHECK(tail[i] == 3 * c->ranks);
    gpu_free(rank, memory);
    oar_group_destroy(t->g);
    return 0;
}

/* ---- the tests ----------------------------------------------------------- */

static void at_every_size(test_job_fn fn, const char *what)
{
    for (int ranks = 1; ranks <= gpu_ranks_max(); ranks++) {
        test_job c;

        test_job_start(&c, ranks, fn, NULL, "%s, %d ranks", what, ranks);
        for (int r = 0; r < ranks; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
    }
}

static void
every_operator_on_every_dtype_gives_what_the_host_computes(void **state)
{
    at_every_size(reduces_everything, "reductions");
}

static void reductions_of_every_size_from_nothing_on(void **state)
{
    at_every_size(every_size_of_f32, "sizes");
}

static void every_dtype_arrives_where_it_belongs(void **state)
{
    at_every_size(moves_everything, "moves");
}

static void more_elements_than_an_int_can_count(void **state)
{
    test_job c;

    if (!gpu_ranks_are_real()) {
        printf("skipped: two gigabytes are for a real GPU\n");
        skip();
    }
    test_job_start(&c, gpu_ranks_max(), is_large, NULL, "2^31 and more");
    for (int r = 0; r < c.ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_operator_on_every_dtype_gives_what_the_host_computes),
        cmocka_unit_test(reductions_of_every_size_from_nothing_on),
        cmocka_unit_test(every_dtype_arrives_where_it_belongs),
        cmocka_unit_test(more_elements_than_an_int_can_count),
    };

    setenv("STANDIN_DELAY_US", "20", 0); /* order is another test's */
    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
