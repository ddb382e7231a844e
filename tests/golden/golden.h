/* SPDX-License-Identifier: Apache-2.0 */
/* golden.h: reads the records that make_*.py wrote with records.py. For tests,
 * one file each: everything is static and some of it may be unused. */
#ifndef OARI_TESTS_GOLDEN_H
#define OARI_TESTS_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/last_error.h"

enum { GOLDEN_MOST = 2048 };

typedef struct golden {
    char name[64];
    oar_shape shape;
    size_t count;
    double *number;
} golden;

static golden golden_record[GOLDEN_MOST];
static int golden_records;

static inline int golden_read_one(FILE *file, golden *g)
{
    int ndim;

    if (fscanf(file, "%63s %d", g->name, &ndim) != 2)
        return 0;
    g->shape = oar_shape_of(0, NULL);
    g->shape.ndim = ndim;
    g->count = 1;
    for (int i = 0; i < ndim; i++) {
        assert_int_equal(fscanf(file, "%ld", &g->shape.dim[i]), 1);
        g->count *= (size_t)g->shape.dim[i];
    }
    assert_int_equal(fgetc(file), '\n');
    g->number = malloc(g->count * sizeof(double));
    assert_non_null(g->number);
    assert_int_equal(fread(g->number, sizeof(double), g->count, file),
                     g->count);
    return 1;
}

/* Reads tests/golden/NAME.golden in addition to what was read before. */
static inline int golden_load(const char *name)
{
    const char *root = getenv("OARSONG_SOURCE_DIR");
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/tests/golden/%s.golden",
             root != NULL ? root : ".", name);
    file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "cannot read %s: set OARSONG_SOURCE_DIR\n", path);
        return -1;
    }
    while (golden_records < GOLDEN_MOST &&
           golden_read_one(file, &golden_record[golden_records]))
        golden_records++;
    fclose(file);
    return 0;
}

/* A cmocka group set-up. */
static inline int golden_open(void **state)
{
    return golden_load("mlp");
}

/* A cmocka group tear-down. */
static inline int golden_close(void **state)
{
    while (golden_records > 0)
        free(golden_record[--golden_records].number);
    return 0;
}

/* NULL if there is no such record. */
static inline const golden *golden_find(const char *case_name, const char *part)
{
    char name[256];

    snprintf(name, sizeof name, "%s.%s", case_name, part);
    for (int i = 0; i < golden_records; i++)
        if (strcmp(golden_record[i].name, name) == 0)
            return &golden_record[i];
    return NULL;
}

static inline const golden *golden_get(const char *case_name, const char *part)
{
    const golden *g = golden_find(case_name, part);

    if (g == NULL)
        fail_msg("no golden record %s.%s", case_name, part);
    return g;
}

static inline double golden_tolerance(oar_dtype dtype)
{
    return dtype == OAR_F32 ? 1e-5 : 1e-10;
}

static inline void golden_compare(const golden *want, const oar_tensor *got)
{
    double tolerance = golden_tolerance(oar_tensor_dtype(got));
    double *number = malloc((want->count + 1) * sizeof(double));

    if (got == NULL)
        fail_msg("%s: %s", want->name, oar_last_error_text());
    assert_non_null(number);
    assert_int_equal(oar_tensor_count(got), want->count);
    assert_int_equal(oar_tensor_read(got, OAR_F64, number), OAR_OK);
    for (size_t i = 0; i < want->count; i++) {
        double scale = 1 + fabs(want->number[i]);

        if (!(fabs(number[i] - want->number[i]) <= tolerance * scale))
            fail_msg("%s[%zu] (%s): %.17g, PyTorch has %.17g", want->name, i,
                     oar_dtype_name(oar_tensor_dtype(got)), number[i],
                     want->number[i]);
    }
    free(number);
}

/* A tensor with the numbers of a record, converted; the caller owns it. */
static inline oar_tensor *golden_tensor(const golden *g, oar_dtype dtype)
{
    oar_tensor *t = oar_empty(NULL, dtype, g->shape);

    assert_non_null(t);
    assert_int_equal(oar_tensor_write(t, OAR_F64, g->number), OAR_OK);
    return t;
}

/* PART0, PART1, ... of a case; NULL if there is none. */
static inline const golden *golden_part(const char *name, const char *part,
                                        int i)
{
    char text[16];

    snprintf(text, sizeof text, "%s%d", part, i);
    return golden_find(name, text);
}

/* The dims in the opposite order. */
static inline oar_dims golden_turned(int dims)
{
    oar_dims order = { .count = dims };

    for (int i = 0; i < dims; i++)
        order.dim[i] = dims - 1 - i;
    return order;
}

/* A leaf whose numbers lie apart: the dims in the opposite order, and every
 * second place of one more. golden_view gives the view that reads them. */
static inline oar_tensor *golden_spread(const golden *g, oar_dtype dtype)
{
    oar_dims order = golden_turned(g->shape.ndim);
    oar_shape shape = g->shape;
    oar_tensor *leaf, *turned, *view;

    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = g->shape.dim[order.dim[i]];
    shape.dim[shape.ndim++] = 2;
    leaf = oar_full(NULL, dtype, shape, 77);
    view = oar_select(NULL, leaf, -1, 1);
    turned = oar_permute(NULL, view, order);
    OK(oar_tensor_write(turned, OAR_F64, g->number));
    oar_tensor_release(turned);
    oar_tensor_release(view);
    return leaf;
}

/* Of a tape's; NULL: the caller owns it. */
static inline oar_tensor *golden_view(oar_tape *tape, oar_tensor *leaf)
{
    oar_tensor *every = oar_select(tape, leaf, -1, 1), *view;

    view =
        oar_permute(tape, every, golden_turned(oar_tensor_shape(every).ndim));
    if (tape == NULL)
        oar_tensor_release(every);
    return view;
}

/* Input i of a case: a leaf if PyTorch has a gradient for it, else i64; NULL if
 * there is none. The caller owns it. */
static inline oar_tensor *golden_input(const char *name, int i, oar_dtype dtype,
                                       int spread)
{
    const golden *g = golden_part(name, "in", i);
    int differentiable = golden_part(name, "grad", i) != NULL;
    oar_tensor *made;

    if (g == NULL)
        return NULL;
    dtype = differentiable ? dtype : OAR_I64;
    made = spread ? golden_spread(g, dtype) : golden_tensor(g, dtype);
    if (differentiable)
        OK(oar_tensor_require_grad(made, 1));
    return made;
}

/* ---- whole cases --------------------------------------------------------- */

enum { GOLDEN_INPUTS = 4 };

typedef struct golden_case {
    const char *name;
    oar_tensor *(*fn)(oar_tape *tape, oar_tensor *const *in);
} golden_case;

/* Gradient i, against PyTorch's. */
static inline void golden_check_grad(const golden *want, const oar_tensor *leaf,
                                     int spread)
{
    oar_tensor *grad = oar_tensor_grad(leaf), *view;

    if (!spread) {
        golden_compare(want, grad);
        return;
    }
    view = golden_view(NULL, grad);
    golden_compare(want, view);
    oar_tensor_release(view);
}

/* The result and every gradient of a case. spread: of strided views. */
static inline void golden_check(const golden_case *c, oar_dtype dtype,
                                int spread)
{
    oar_tensor *seed = golden_tensor(golden_get(c->name, "seed"), dtype);
    oar_tensor *leaf[GOLDEN_INPUTS], *in[GOLDEN_INPUTS], *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < GOLDEN_INPUTS; i++) {
        leaf[i] = golden_input(c->name, i, dtype, spread);
        in[i] =
            leaf[i] != NULL && spread ? golden_view(tape, leaf[i]) : leaf[i];
    }
    out = c->fn(tape, in);
    golden_compare(golden_get(c->name, "out"), out);
    OK(oar_backward_from(tape, 1, &out, &seed));
    for (int i = 0; i < GOLDEN_INPUTS; i++) {
        const golden *grad = golden_part(c->name, "grad", i);

        if (grad != NULL)
            golden_check_grad(grad, leaf[i], spread);
        oar_tensor_release(leaf[i]);
    }
    oar_tensor_release(seed);
    oar_tape_destroy(tape);
}

/* All of them, in f32 and f64. */
static inline void golden_check_all(const golden_case *c, size_t count,
                                    int spread)
{
    for (size_t i = 0; i < count; i++) {
        golden_check(&c[i], OAR_F32, spread);
        golden_check(&c[i], OAR_F64, spread);
    }
}

#endif
