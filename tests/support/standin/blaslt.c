/* SPDX-License-Identifier: Apache-2.0 */
/* standin/blaslt.c: a cuBLASLt without a GPU, for tests: plain loops, put
 * on the streams of the stand-in's driver, with the epilogues that the library
 * uses, and operands rounded where TF32 is asked for. It is as strict as the
 * real one: an algorithm is for the alignment and the workspace that it was
 * asked for with, matrices have to lie in device memory, and what does not fit
 * is refused with the status of the real one. Matrices are in columns. GELU is
 * the one by tanh. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "standin/driver.h"

#define LT_API __attribute__((visibility("default")))

/* cublasStatus_t */
enum { OK = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
/* cudaDataType, cublasComputeType_t */
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_TF32 = 77 };
/* The bits of cublasLtEpilogue_t */
enum {
    RELU = 2,
    BIAS = 4,
    BGRAD = 16,
    GELU = 32,
    DGELU = 64,
    AUX = 128,
    BGRADA = 256,
    BGRADB = 512,
    KNOWN = RELU | BIAS | BGRAD | GELU | DGELU | AUX | BGRADA | BGRADB
};
enum { ALGORITHMS = 3, ALGO_MAGIC = 0x0a12, DEFAULT_ALIGNMENT = 256 };

typedef struct lt_desc {
    int compute, scale, trans[2], epilogue;
    uint64_t bias, aux;
    int64_t aux_lead;
    int bias_type; /* -1: that of D */
} lt_desc;

typedef struct lt_layout {
    int type;
    uint64_t rows, columns;
    int64_t lead, stride;
    int batches;
} lt_layout;

typedef struct lt_pref {
    uint64_t workspace;
    uint32_t alignment[4]; /* of A, B, C, D */
} lt_pref;

typedef struct lt_algo {
    uint64_t data[8]; /* magic, number, workspace, alignment of A to D */
} lt_algo;

typedef struct lt_result {
    lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} lt_result;

/* ---- what describes a product -------------------------------------------- */

LT_API size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    return 130100;
}

LT_API int cublasLtCreate(void **handle);
int cublasLtCreate(void **handle)
{
    context *c;
    if (standin_enter(&c))
        return 1; /* CUBLAS_STATUS_NOT_INITIALIZED */
    *handle = malloc(1);
    return OK;
}

LT_API int cublasLtDestroy(void *handle);
int cublasLtDestroy(void *handle)
{
    free(handle);
    return OK;
}

LT_API int cublasLtMatmulDescCreate(lt_desc **desc, int compute, int scale);
int cublasLtMatmulDescCreate(lt_desc **desc, int compute, int scale)
{
    if (scale != (compute == COMPUTE_64F ? R_64F : R_32F) ||
        (compute != COMPUTE_32F && compute != COMPUTE_64F &&
         compute != COMPUTE_TF32))
        return NOT_SUPPORTED;
    *desc = calloc(1, sizeof **desc);
    **desc = (lt_desc){
        .compute = compute, .scale = scale, .epilogue = 1, .bias_type = -1
    };
    return OK;
}

LT_API int cublasLtMatmulDescDestroy(lt_desc *desc);
int cublasLtMatmulDescDestroy(lt_desc *desc)
{
    free(desc);
    return OK;
}

static int set(void *to, size_t wanted, const void *value, size_t bytes)
{
    if (!value || bytes != wanted)
        return INVALID_VALUE;
    memcpy(to, value, bytes);
    return OK;
}

LT_API int cublasLtMatmulDescSetAttribute(lt_desc *desc, int attribute,
                                          const void *value, size_t bytes);
int cublasLtMatmulDescSetAttribute(lt_desc *desc, int attribute,
                                   const void *value, size_t bytes)
{
    switch (attribute) {
    case 3:
    case 4: return set(&desc->trans[attribute - 3], 4, value, bytes);
    case 7: return set(&desc->epilogue, 4, value, bytes);
    case 8: return set(&desc->bias, 8, value, bytes);
    case 11: return set(&desc->aux, 8, value, bytes);
    case 12: return set(&desc->aux_lead, 8, value, bytes);
    case 26: return set(&desc->bias_type, 4, value, bytes);
    }
    return INVALID_VALUE;
}

static size_t type_bytes(int type)
{
    switch (type) {
    case R_32F: return 4;
    case R_64F: return 8;
    case R_16F:
    case R_16BF: return 2;
    }
    return 0;
}

LT_API int cublasLtMatrixLayoutCreate(lt_layout **layout, int type,
                                      uint64_t rows, uint64_t columns,
                                      int64_t lead);
int cublasLtMatrixLayoutCreate(lt_layout **layout, int type, uint64_t rows,
                               uint64_t columns, int64_t lead)
{
    if (!type_bytes(type) || lead < (int64_t)rows)
        return INVALID_VALUE;
    *layout = calloc(1, sizeof **layout);
    **layout = (lt_layout){ type, rows, columns, lead, 0, 1 };
    return OK;
}

LT_API int cublasLtMatrixLayoutDestroy(lt_layout *layout);
int cublasLtMatrixLayoutDestroy(lt_layout *layout)
{
    free(layout);
    return OK;
}

LT_API int cublasLtMatrixLayoutSetAttribute(lt_layout *layout, int attribute,
                                            const void *value, size_t bytes);
int cublasLtMatrixLayoutSetAttribute(lt_layout *layout, int attribute,
                                     const void *value, size_t bytes)
{
    if (attribute == 5)
        return set(&layout->batches, 4, value, bytes);
    if (attribute == 6)
        return set(&layout->stride, 8, value, bytes);
    return INVALID_VALUE;
}

LT_API int cublasLtMatmulPreferenceCreate(lt_pref **pref);
int cublasLtMatmulPreferenceCreate(lt_pref **pref)
{
    *pref = calloc(1, sizeof **pref);
    for (int i = 0; i < 4; i++)
        (*pref)->alignment[i] = DEFAULT_ALIGNMENT;
    return OK;
}

LT_API int cublasLtMatmulPreferenceDestroy(lt_pref *pref);
int cublasLtMatmulPreferenceDestroy(lt_pref *pref)
{
    free(pref);
    return OK;
}

LT_API int cublasLtMatmulPreferenceSetAttribute(lt_pref *pref, int attribute,
                                                const void *value,
                                                size_t bytes);
int cublasLtMatmulPreferenceSetAttribute(lt_pref *pref, int attribute,
                                         const void *value, size_t bytes)
{
    uint32_t ignored;
    if (attribute == 1)
        return set(&pref->workspace, 8, value, bytes);
    if (attribute >= 5 && attribute <= 8)
        return set(&pref->alignment[attribute - 5], 4, value, bytes);
    if (attribute == 0 || attribute == 3 || attribute == 12)
        return set(&ignored, 4, value, bytes);
    return INVALID_VALUE;
}

/* ---- whether a product is one -------------------------------------------- */

/* The layouts of A, B, C and D. */
typedef const lt_layout *const lt_layouts[4];

static int check_product(const lt_desc *desc, lt_layouts at)
{
    const lt_layout *a = at[0], *b = at[1], *d = at[3];
    uint64_t m = desc->trans[0] ? a->columns : a->rows;
    uint64_t k = desc->trans[0] ? a->rows : a->columns;
    uint64_t n = desc->trans[1] ? b->rows : b->columns;
    int e = desc->epilogue;
    if (k != (desc->trans[1] ? b->columns : b->rows) || d->rows != m ||
        d->columns != n || at[2]->rows != m || at[2]->columns != n)
        return INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (at[i]->batches != d->batches)
            return INVALID_VALUE;
    if (a->type != b->type || at[2]->type != d->type ||
        (a->type == R_64F) != (desc->compute == COMPUTE_64F) ||
        (d->type != a->type && d->type != R_32F))
        return NOT_SUPPORTED;
    if (desc->compute == COMPUTE_TF32 && a->type != R_32F)
        return NOT_SUPPORTED;
    if (e == 1)
        return OK;
    if (e & ~KNOWN || a->type == R_64F || d->batches != 1)
        return NOT_SUPPORTED;
    if (e & AUX && (desc->aux_lead % 8 || desc->aux_lead < (int64_t)m))
        return NOT_SUPPORTED;
    return OK;
}

LT_API int cublasLtMatmulAlgoGetHeuristic(
    void *handle, const lt_desc *desc, const lt_layout *a, const lt_layout *b,
    const lt_layout *c, const lt_layout *d, const lt_pref *pref, int wanted,
    lt_result *results, int *count);
int cublasLtMatmulAlgoGetHeuristic(void *handle, const lt_desc *desc,
                                   const lt_layout *a, const lt_layout *b,
                                   const lt_layout *c, const lt_layout *d,
                                   const lt_pref *pref, int wanted,
                                   lt_result *results, int *count)
{
    lt_layouts at = { a, b, c, d };
    int bad = handle ? check_product(desc, at) : INVALID_VALUE;
    *count = 0;
    for (int i = 0; !bad && i < wanted && i < ALGORITHMS; i++) {
        uint64_t workspace = (uint64_t)i * 4096;
        lt_result *r = &results[*count];
        if (workspace > pref->workspace)
            continue;
        *r = (lt_result){ .workspace_bytes = workspace, .waves = 1 };
        r->algo.data[0] = ALGO_MAGIC;
        r->algo.data[1] = (uint64_t)i;
        r->algo.data[2] = workspace;
        for (int k = 0; k < 4; k++)
            r->algo.data[3 + k] = pref->alignment[k];
        ++*count;
    }
    return bad ? bad : *count > 0 ? OK : NOT_SUPPORTED;
}

/* ---- numbers ------------------------------------------------------------- */

static double load(const void *from, int type, int64_t at)
{
    switch (type) {
    case R_32F: return ((const float *)from)[at];
    case R_64F: return ((const double *)from)[at];
    case R_16F: return oari_f16_bits_to_f32(((const uint16_t *)from)[at]);
    default: return oari_bf16_bits_to_f32(((const uint16_t *)from)[at]);
    }
}

static void store(void *to, int type, int64_t at, double value)
{
    switch (type) {
    case R_32F: ((float *)to)[at] = (float)value; break;
    case R_64F: ((double *)to)[at] = value; break;
    case R_16F:
        ((uint16_t *)to)[at] = oari_f16_bits_from_f32((float)value);
        break;
    default: ((uint16_t *)to)[at] = oari_bf16_bits_from_f32((float)value);
    }
}

static double gelu_inner(double x)
{
    return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + gelu_inner(x));
}

static double gelu_slope(double x)
{
    double t = gelu_inner(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 *
                               (1 + 3 * 0.044715 * x * x);
}

/* ---- products ------------------------------------------------------------ */

typedef struct lt_product {
    lt_desc desc;
    lt_layout at[4];
    void *data[4]; /* views of A, B, C, D */
    void *bias, *aux;
    double alpha, beta;
    int64_t m, n, k;
} lt_product;

/* An element of op(A) or op(B). */
static double operand(const lt_product *p, int which, int64_t row,
                      int64_t column, int64_t batch)
{
    const lt_layout *l = &p->at[which];
    int64_t in =
        p->desc.trans[which] ? row * l->lead + column : column * l->lead + row;
    return load(p->data[which], l->type, batch * l->stride + in);
}

/* Rounds to 10 bits of mantissa, as the real one converts an f32. */
static double round_tf32(double x)
{
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) /* infinities and NaN stay */
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&narrow, &bits, sizeof bits);
    return narrow;
}

static double dot(const lt_product *p, int64_t i, int64_t j, int64_t batch)
{
    double sum = 0;
    float narrow = 0;
    for (int64_t k = 0; k < p->k; k++) {
        double a = operand(p, 0, i, k, batch), b = operand(p, 1, k, j, batch);
        double x = p->desc.compute == COMPUTE_TF32
                       ? round_tf32(a) * round_tf32(b)
                       : a * b;
        sum += x;
        narrow += (float)x;
    }
    return p->desc.compute == COMPUTE_64F ? sum : (double)narrow;
}

static double finish(const lt_product *p, double x, int64_t i, int64_t j)
{
    int e = p->desc.epilogue, type = p->at[3].type;
    int bias_type = p->desc.bias_type < 0 ? type : p->desc.bias_type;
    int64_t aux = j * p->desc.aux_lead + i;
    if (e & BIAS)
        x += load(p->bias, bias_type, i);
    if (e & AUX && !(e & DGELU))
        store(p->aux, type, aux, x);
    if (e & GELU)
        x = gelu(x);
    if (e & DGELU)
        x *= gelu_slope(load(p->aux, type, aux));
    if (e & RELU)
        x = x > 0 ? x : 0;
    return x;
}

/* The gradient of a bias: a sum over the columns of D, or over k. */
static void add_up_bias(const lt_product *p)
{
    int e = p->desc.epilogue, type = p->at[3].type;
    int bias_type = p->desc.bias_type < 0 ? type : p->desc.bias_type;
    int64_t count = e & BGRADB ? p->n : p->m, terms = e & BGRAD ? p->n : p->k;
    if (!(e & (BGRAD | BGRADA | BGRADB)))
        return;
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int64_t t = 0; t < terms; t++)
            sum += (float)(e & BGRAD
                               ? load(p->data[3], type, t * p->at[3].lead + i)
                           : e & BGRADA ? operand(p, 0, i, t, 0)
                                        : operand(p, 1, t, i, 0));
        store(p->bias, bias_type, i, sum);
    }
}

static void run_product(void *arg)
{
    const lt_product *p = arg;
    const lt_layout *c = &p->at[2], *d = &p->at[3];
    for (int64_t batch = 0; batch < d->batches; batch++)
        for (int64_t j = 0; j < p->n; j++)
            for (int64_t i = 0; i < p->m; i++) {
                double x = p->alpha * dot(p, i, j, batch);
                if (p->beta != 0)
                    x += p->beta * load(p->data[2], c->type,
                                        batch * c->stride + j * c->lead + i);
                if (p->desc.epilogue != 1)
                    x = finish(p, x, i, j);
                store(p->data[3], d->type, batch * d->stride + j * d->lead + i,
                      x);
            }
    add_up_bias(p);
}

/* Where a matrix really is; NULL: not all of it in one allocation. */
static void *reach_matrix(uint64_t address, const lt_layout *l)
{
    int64_t last = (l->batches - 1) * l->stride +
                   ((int64_t)l->columns - 1) * l->lead + (int64_t)l->rows;
    return standin_reach(address, (size_t)last * type_bytes(l->type));
}

static int reach_all(lt_product *p, const uint64_t address[4])
{
    int e = p->desc.epilogue;
    size_t each = type_bytes(p->at[3].type);
    for (int i = 0; i < 4; i++) {
        if (i == 2 && p->beta == 0)
            continue;
        if (address[i] % type_bytes(p->at[i].type) ||
            !(p->data[i] = reach_matrix(address[i], &p->at[i])))
            return INVALID_VALUE;
    }
    if (e & (BIAS | BGRAD | BGRADA | BGRADB) && e != 1 &&
        !(p->bias = standin_reach(p->desc.bias,
                                  (size_t)(e & BGRADB ? p->n : p->m) *
                                      type_bytes(p->desc.bias_type < 0
                                                     ? p->at[3].type
                                                     : p->desc.bias_type))))
        return INVALID_VALUE;
    if (e & AUX &&
        (p->desc.aux % 16 ||
         !(p->aux = standin_reach(
               p->desc.aux,
               (size_t)((p->n - 1) * p->desc.aux_lead + p->m) * each))))
        return INVALID_VALUE;
    return OK;
}

static int check_algo(const lt_algo *algo, const uint64_t address[4],
                      uint64_t workspace, size_t workspace_bytes)
{
    if (!algo)
        return OK;
    if (algo->data[0] != ALGO_MAGIC || algo->data[1] >= ALGORITHMS)
        return INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (address[i] % algo->data[3 + i])
            return NOT_SUPPORTED;
    if (workspace_bytes < algo->data[2] ||
        (algo->data[2] &&
         (workspace % 16 || !standin_reach(workspace, algo->data[2]))))
        return INVALID_VALUE;
    return OK;
}

static int put_product(const lt_product *made, oari_cu_stream stream_handle)
{
    context *c;
    stream *s;
    lt_product *p;
    if (standin_enter(&c) || !(s = standin_stream(c, stream_handle)))
        return EXECUTION_FAILED;
    p = malloc(sizeof *p);
    *p = *made;
    standin_release(standin_put(s, run_product, p, NULL));
    return OK;
}

static double scalar(const void *value, int type)
{
    return value ? load(value, type, 0) : 0;
}

LT_API int cublasLtMatmul(void *handle, const lt_desc *desc, const void *alpha,
                          const void *a, const lt_layout *a_layout,
                          const void *b, const lt_layout *b_layout,
                          const void *beta, const void *c,
                          const lt_layout *c_layout, void *d,
                          const lt_layout *d_layout, const lt_algo *algo,
                          void *workspace, size_t workspace_bytes,
                          void *stream_handle);
int cublasLtMatmul(void *handle, const lt_desc *desc, const void *alpha,
                   const void *a, const lt_layout *a_layout, const void *b,
                   const lt_layout *b_layout, const void *beta, const void *c,
                   const lt_layout *c_layout, void *d,
                   const lt_layout *d_layout, const lt_algo *algo,
                   void *workspace, size_t workspace_bytes, void *stream_handle)
{
    const uint64_t address[4] = { oari_cu_address(a), oari_cu_address(b),
                                  oari_cu_address(c), oari_cu_address(d) };
    lt_layouts at = { a_layout, b_layout, c_layout, d_layout };
    lt_product p = { .desc = *desc,
                     .at = { *a_layout, *b_layout, *c_layout, *d_layout },
                     .alpha = scalar(alpha, desc->scale),
                     .beta = scalar(beta, desc->scale),
                     .m = (int64_t)d_layout->rows,
                     .n = (int64_t)d_layout->columns,
                     .k = (int64_t)(desc->trans[0] ? a_layout->rows
                                                   : a_layout->columns) };
    int bad = handle && alpha && beta ? check_product(desc, at) : INVALID_VALUE;
    bad = bad ? bad
              : check_algo(algo, address, oari_cu_address(workspace),
                           workspace_bytes);
    bad = bad ? bad : reach_all(&p, address);
    return bad ? bad : put_product(&p, stream_handle);
}
