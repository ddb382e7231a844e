/* SPDX-License-Identifier: Apache-2.0 */
/* golden.h: reads the records that make_mlp.py and its like wrote. For tests,
 * one file each: everything is static and some of it may go unused. */
#ifndef OARI_TESTS_GOLDEN_H
#define OARI_TESTS_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/tensor.h>

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

#endif
