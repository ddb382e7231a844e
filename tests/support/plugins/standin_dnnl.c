/* SPDX-License-Identifier: Apache-2.0 */
/* standin_dnnl: stands for oneDNN where there is none, or one that cannot
 * multiply bf16. Plain loops behind the C interface of version 2 or 3
 * (STANDIN_DNNL_MAJOR, 3 unless set). It refuses products with k = 13, wants
 * scratch memory for those with n = 7, and fails if two threads are in one
 * stream. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID = 2, UNIMPLEMENTED = 3 };
enum { BF16 = 2, F32 = 3, SCRATCH_BYTES = 4096 };

typedef struct md {
    int64_t ndims, dims[12], strides[12], dtype;
    int64_t rest[61]; /* 696 bytes, as that of version 2 */
} md;

typedef struct op {
    md a, b, c, rest;
} op;

typedef struct attr {
    int adds, by_caller;
} attr;

typedef struct desc {
    md a, b, c, scratch;
    int adds;
} desc;

typedef struct memory {
    md at;
    void *data;
} memory;

typedef struct standin_stream {
    atomic_int inside;
} standin_stream;

typedef struct argument {
    int kind;
    memory *memory;
} argument;

static atomic_int live, executed, wrong;
static _Thread_local int threads = 7;
static atomic_int seen_threads;

PUBLIC int standin_dnnl_live(void);
PUBLIC int standin_dnnl_executed(void);
PUBLIC int standin_dnnl_wrong(void);
PUBLIC int standin_dnnl_threads(void);

int standin_dnnl_live(void)
{
    return atomic_load(&live);
}

int standin_dnnl_executed(void)
{
    return atomic_load(&executed);
}

int standin_dnnl_wrong(void)
{
    return atomic_load(&wrong);
}

int standin_dnnl_threads(void)
{
    return atomic_load(&seen_threads);
}

/* ---- OpenMP -------------------------------------------------------------- */

PUBLIC int omp_get_max_threads(void);
PUBLIC void omp_set_num_threads(int count);

int omp_get_max_threads(void)
{
    return threads;
}

void omp_set_num_threads(int count)
{
    threads = count;
}

/* ---- objects ------------------------------------------------------------- */

/* Defines NAME, with a prototype before it. */
#define CALL(result, name, parameters) \
    PUBLIC result name parameters;     \
    result name parameters

static int make(void **object, const void *like, size_t bytes)
{
    *object = calloc(1, bytes);
    if (*object == NULL)
        return 1;
    if (like != NULL)
        memcpy(*object, like, bytes);
    atomic_fetch_add(&live, 1);
    return SUCCESS;
}

static int drop(void *object)
{
    if (object == NULL)
        atomic_fetch_add(&wrong, 1);
    free(object);
    atomic_fetch_sub(&live, 1);
    return SUCCESS;
}

typedef struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} version;

CALL(const version *, dnnl_version, (void))
{
    static version v = { 3, 0, 0, "", 2, 0 };
    const char *major = getenv("STANDIN_DNNL_MAJOR");

    if (major != NULL)
        v.major = atoi(major);
    return &v;
}

CALL(int, dnnl_engine_create, (void **engine, int kind, size_t index))
{
    static int cpu;

    *engine = &cpu;
    return kind == 1 && index == 0 ? SUCCESS : INVALID;
}

CALL(int, dnnl_stream_create, (void **to, void *engine, unsigned flags))
{
    return flags == 1 ? make(to, NULL, sizeof(standin_stream)) : INVALID;
}

CALL(int, dnnl_stream_wait, (void *s))
{
    return s != NULL ? SUCCESS : INVALID;
}

CALL(int, dnnl_stream_destroy, (void *s))
{
    return drop(s);
}

CALL(int, dnnl_primitive_attr_create, (void **to))
{
    return make(to, NULL, sizeof(attr));
}

CALL(int, dnnl_primitive_attr_destroy, (void *a))
{
    return drop(a);
}

CALL(int, dnnl_primitive_attr_set_scratchpad_mode, (attr * a, int mode))
{
    a->by_caller = mode == 1;
    return SUCCESS;
}

CALL(int, dnnl_post_ops_create, (void **to))
{
    return make(to, NULL, sizeof(int));
}

CALL(int, dnnl_post_ops_destroy, (void *ops))
{
    return drop(ops);
}

CALL(int, dnnl_post_ops_append_sum,
     (int *ops, float scale, int32_t zero, int dtype))
{
    *ops = 1;
    return scale == 1 && zero == 0 && dtype == 0 ? SUCCESS : INVALID;
}

CALL(int, dnnl_post_ops_append_sum_v3,
     (int *ops, float scale, int32_t zero, int dtype))
{
    return dnnl_post_ops_append_sum(ops, scale, zero, dtype);
}

CALL(int, dnnl_primitive_attr_set_post_ops, (attr * a, const int *ops))
{
    a->adds = *ops;
    return SUCCESS;
}

/* ---- descriptions -------------------------------------------------------- */

CALL(int, dnnl_memory_desc_init_by_strides,
     (md * to, int ndims, const int64_t *dims, int dtype,
      const int64_t *strides))
{
    *to = (md){ .ndims = ndims, .dtype = dtype };
    memcpy(to->dims, dims, sizeof to->dims);
    memcpy(to->strides, strides, sizeof to->strides);
    return ndims == 2 ? SUCCESS : INVALID;
}

CALL(int, dnnl_memory_desc_create_with_strides,
     (void **to, int ndims, const int64_t *dims, int dtype,
      const int64_t *strides))
{
    md at;
    int status =
        dnnl_memory_desc_init_by_strides(&at, ndims, dims, dtype, strides);

    return status == SUCCESS ? make(to, &at, sizeof at) : status;
}

CALL(int, dnnl_memory_desc_destroy, (void *at))
{
    return drop(at);
}

CALL(size_t, dnnl_memory_desc_get_size, (const md *at))
{
    return at->ndims == 0 ? 0 : SCRATCH_BYTES;
}

CALL(int, dnnl_matmul_primitive_desc_create,
     (void **to, void *engine, const md *a, const md *b, const md *bias,
      const md *c, const attr *how))
{
    desc d = { *a, *b, *c, { .ndims = 0 }, how->adds };

    if (bias != NULL || !how->by_caller || a->dims[1] != b->dims[0] ||
        a->dims[0] != c->dims[0] || b->dims[1] != c->dims[1] ||
        a->dtype != b->dtype || c->strides[1] != 1)
        return INVALID;
    if (a->dims[1] == 13)
        return UNIMPLEMENTED;
    d.scratch.ndims = c->dims[1] == 7;
    return make(to, &d, sizeof d);
}

CALL(int, dnnl_matmul_desc_init,
     (op * to, const md *a, const md *b, const md *bias, const md *c))
{
    *to = (op){ *a, *b, *c, { .ndims = 0 } };
    return bias == NULL ? SUCCESS : INVALID;
}

CALL(int, dnnl_primitive_desc_create,
     (void **to, const op *o, const attr *how, void *engine, const void *hint))
{
    return dnnl_matmul_primitive_desc_create(to, engine, &o->a, &o->b, NULL,
                                             &o->c, how);
}

CALL(int, dnnl_primitive_desc_query,
     (const void *d, int what, int index, const char **result))
{
    *result = "loops";
    return what == 8 ? SUCCESS : INVALID;
}

CALL(const md *, dnnl_primitive_desc_query_md,
     (const desc *d, int what, int index))
{
    return what == 136 ? &d->scratch : NULL;
}

CALL(int, dnnl_primitive_desc_destroy, (void *d))
{
    return drop(d);
}

/* ---- products ------------------------------------------------------------ */

CALL(int, dnnl_memory_create,
     (void **to, const md *at, void *engine, void *data))
{
    memory m = { *at, data };

    return make(to, &m, sizeof m);
}

CALL(int, dnnl_memory_set_data_handle, (memory * m, void *data))
{
    m->data = data;
    return SUCCESS;
}

CALL(int, dnnl_memory_destroy, (void *m))
{
    return drop(m);
}

CALL(int, dnnl_primitive_create, (void **to, const void *d))
{
    return make(to, d, sizeof(desc));
}

CALL(int, dnnl_primitive_destroy, (void *p))
{
    return drop(p);
}

static float get(const md *at, const void *data, int64_t i, int64_t j)
{
    int64_t where = i * at->strides[0] + j * at->strides[1];
    uint32_t bits;
    float value;

    if (at->dtype == F32)
        return ((const float *)data)[where];
    bits = (uint32_t)((const uint16_t *)data)[where] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put(const md *at, void *data, int64_t i, int64_t j, float value)
{
    int64_t where = i * at->strides[0] + j * at->strides[1];
    uint32_t bits;

    if (at->dtype == F32) {
        ((float *)data)[where] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)data)[where] = (uint16_t)(bits >> 16);
}

static void multiply(const desc *d, const void *a, const void *b, void *c)
{
    for (int64_t i = 0; i < d->c.dims[0]; i++)
        for (int64_t j = 0; j < d->c.dims[1]; j++) {
            float sum = 0;

            for (int64_t k = 0; k < d->a.dims[1]; k++)
                sum += get(&d->a, a, i, k) * get(&d->b, b, k, j);
            if (d->adds)
                sum += get(&d->c, c, i, j);
            put(&d->c, c, i, j, sum);
        }
}

CALL(int, dnnl_primitive_execute,
     (const desc *d, standin_stream *s, int count, const argument *all))
{
    void *data[4] = { NULL };

    for (int i = 0; i < count; i++)
        data[all[i].kind == 1    ? 0
             : all[i].kind == 33 ? 1
             : all[i].kind == 17 ? 2
                                 : 3] = all[i].memory->data;
    if (atomic_fetch_add(&s->inside, 1) != 0 ||
        (d->scratch.ndims > 0) != (data[3] != NULL)) {
        atomic_fetch_add(&wrong, 1);
        return INVALID;
    }
    if (data[3] != NULL)
        memset(data[3], 0xff, SCRATCH_BYTES);
    multiply(d, data[0], data[1], data[2]);
    atomic_store(&seen_threads, threads);
    atomic_fetch_add(&executed, 1);
    atomic_fetch_sub(&s->inside, 1);
    return SUCCESS;
}
