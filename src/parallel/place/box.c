/* SPDX-License-Identifier: Apache-2.0 */
/* box: arithmetic with boxes of elements. */
#include "parallel/place/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int oari_box_shape_fits(oar_shape whole, size_t element)
{
    int64_t bytes = (int64_t)element;

    if (whole.ndim < 0 || whole.ndim > OAR_MAX_DIMS || element == 0)
        return 0;
    for (int d = 0; d < whole.ndim; d++) {
        int64_t dim = whole.dim[d] != 0 ? whole.dim[d] : 1;
        if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes))
            return 0;
    }
    return 1;
}

int oari_box_fits(const oari_box *box, oar_shape whole)
{
    if (box->ndim != whole.ndim)
        return 0;
    for (int d = 0; d < box->ndim; d++)
        if (box->offset[d] < 0 || box->extent[d] < 0 ||
            box->offset[d] > whole.dim[d] ||
            box->extent[d] > whole.dim[d] - box->offset[d])
            return 0;
    return 1;
}

oari_box oari_box_whole(oar_shape whole)
{
    oari_box box = { .ndim = whole.ndim };

    for (int d = 0; d < whole.ndim; d++)
        box.extent[d] = whole.dim[d];
    return box;
}

int64_t oari_box_count(const oari_box *box)
{
    int64_t count = 1;

    for (int d = 0; d < box->ndim; d++)
        count *= box->extent[d];
    return count;
}

int oari_box_compare(const oari_box *a, const oari_box *b)
{
    if (a->ndim != b->ndim)
        return a->ndim < b->ndim ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d])
            return a->offset[d] < b->offset[d] ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->extent[d] != b->extent[d])
            return a->extent[d] < b->extent[d] ? -1 : 1;
    return 0;
}

int oari_box_meet(const oari_box *a, const oari_box *b, oari_box *common)
{
    oari_box both = { .ndim = a->ndim };

    for (int d = 0; d < a->ndim; d++) {
        int64_t a_end = a->offset[d] + a->extent[d];
        int64_t b_end = b->offset[d] + b->extent[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        both.offset[d] =
            a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        both.extent[d] = end - both.offset[d];
        if (both.extent[d] <= 0)
            return 0;
    }
    *common = both;
    return 1;
}

/* ---- flat ranges --------------------------------------------------------- */

/* A range that is being cut. */
typedef struct flat {
    oar_shape whole;
    oari_box *box;
    int boxes;
} flat;

/* Cuts elements [first, end) of those below `at`, which is one index in each
 * dim before `dim`: a part of a row, then whole rows, then a part of a row. */
static void cut_range(flat *f, int dim, oari_box at, int64_t first, int64_t end)
{
    int64_t row = 1, low, high;

    if (first >= end)
        return;
    for (int d = dim + 1; d < f->whole.ndim; d++)
        row *= f->whole.dim[d];
    low = first / row;
    high = end / row;
    at.offset[dim] = low;
    at.extent[dim] = 1;
    if (low == high) {
        cut_range(f, dim + 1, at, first - low * row, end - low * row);
        return;
    }
    if (first % row != 0) {
        cut_range(f, dim + 1, at, first - low * row, row);
        at.offset[dim] = ++low;
    }
    if (low < high) {
        oari_box rows = at;
        rows.extent[dim] = high - low;
        for (int d = dim + 1; d < f->whole.ndim; d++)
            rows.extent[d] = f->whole.dim[d];
        f->box[f->boxes++] = rows;
    }
    at.offset[dim] = high;
    cut_range(f, dim + 1, at, 0, end - high * row);
}

int oari_flat_boxes(oar_shape whole, int64_t first, int64_t count,
                    oari_box box[OARI_FLAT_BOXES])
{
    oari_box all = oari_box_whole(whole);
    int64_t most = oari_box_count(&all);
    flat f = { .whole = whole, .box = box };

    if (first < 0 || count < 0 || first > most || count > most - first)
        return -1;
    if (count == most) {
        box[0] = all;
        return 1;
    }
    cut_range(&f, 0, (oari_box){ .ndim = whole.ndim }, first, first + count);
    return f.boxes;
}

/* ---- runs ---------------------------------------------------------------- */

int64_t oari_box_runs_start(oari_box_runs *runs, const oari_box *what,
                            const oari_box *from, const oari_box *to,
                            size_t element)
{
    uint64_t from_stride = element, to_stride = element, bytes = element;
    int joined = 1; /* the dims so far lie in one run */

    memset(runs, 0, sizeof *runs);
    runs->left = 1;
    for (int d = what->ndim - 1; d >= 0; d--) {
        runs->extent[d] = what->extent[d];
        runs->from_stride[d] = from_stride;
        runs->to_stride[d] = to_stride;
        runs->next.from +=
            (uint64_t)(what->offset[d] - from->offset[d]) * from_stride;
        runs->next.to +=
            (uint64_t)(what->offset[d] - to->offset[d]) * to_stride;
        if (joined) {
            bytes *= (uint64_t)what->extent[d];
            runs->outer = d;
        } else {
            runs->left *= what->extent[d];
        }
        joined = joined && what->extent[d] == from->extent[d] &&
                 what->extent[d] == to->extent[d];
        from_stride *= (uint64_t)from->extent[d];
        to_stride *= (uint64_t)to->extent[d];
    }
    runs->next.bytes = bytes;
    if (bytes == 0)
        runs->left = 0;
    return runs->left;
}

int oari_box_runs_next(oari_box_runs *runs, oari_box_run *run)
{
    oari_box_run *next = &runs->next;

    if (runs->left == 0)
        return 0;
    *run = *next;
    runs->left--;
    for (int d = runs->outer - 1; d >= 0; d--) {
        next->from += runs->from_stride[d];
        next->to += runs->to_stride[d];
        if (++runs->index[d] < runs->extent[d])
            break;
        next->from -= (uint64_t)runs->extent[d] * runs->from_stride[d];
        next->to -= (uint64_t)runs->extent[d] * runs->to_stride[d];
        runs->index[d] = 0;
    }
    return 1;
}

static inline __attribute__((always_inline)) void
copy_rows_of(char *to, const char *from, int64_t rows, uint64_t to_stride,
             uint64_t from_stride, uint64_t bytes)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (uint64_t)i * to_stride, from + (uint64_t)i * from_stride,
               bytes);
}

/* Short rows are common (columns of a narrow tensor): the compiler makes one or
 * two instructions of a copy whose length it knows. */
static void copy_rows(char *to, const char *from, int64_t rows,
                      uint64_t to_stride, uint64_t from_stride, uint64_t bytes)
{
    switch (bytes) {
    case 4: copy_rows_of(to, from, rows, to_stride, from_stride, 4); break;
    case 8: copy_rows_of(to, from, rows, to_stride, from_stride, 8); break;
    case 16: copy_rows_of(to, from, rows, to_stride, from_stride, 16); break;
    case 32: copy_rows_of(to, from, rows, to_stride, from_stride, 32); break;
    default: copy_rows_of(to, from, rows, to_stride, from_stride, bytes);
    }
}

void oari_box_copy(const oari_box *what, const oari_box *from,
                   const oari_box *to, size_t element, const void *from_data,
                   void *to_data)
{
    oari_box_runs runs;
    oari_box_run run;
    int64_t rows = 1;

    if (oari_box_runs_start(&runs, what, from, to, element) > 1) {
        rows = runs.extent[--runs.outer]; /* the rest is walked through */
        runs.left /= rows;
    }
    while (oari_box_runs_next(&runs, &run))
        copy_rows((char *)to_data + run.to, (const char *)from_data + run.from,
                  rows, runs.to_stride[runs.outer],
                  runs.from_stride[runs.outer], run.bytes);
}

/* ---- texts --------------------------------------------------------------- */

oari_box_string oari_box_text(const oari_box *box)
{
    oari_box_string s = { "[" };
    size_t at = 1;

    for (int d = 0; d < box->ndim; d++) {
        uint64_t end = (uint64_t)box->offset[d] + (uint64_t)box->extent[d];

        at += (size_t)snprintf(s.text + at, sizeof s.text - at,
                               "%s%" PRId64 ":%" PRId64, d > 0 ? ", " : "",
                               box->offset[d], (int64_t)end);
    }
    snprintf(s.text + at, sizeof s.text - at, "]");
    return s;
}

oari_box_string oari_box_shape_text(oar_shape shape)
{
    oari_box_string s = { "[" };
    size_t at = 1;

    for (int d = 0; d < shape.ndim; d++)
        at += (size_t)snprintf(s.text + at, sizeof s.text - at, "%s%lld",
                               d > 0 ? ", " : "", (long long)shape.dim[d]);
    snprintf(s.text + at, sizeof s.text - at, "]");
    return s;
}
