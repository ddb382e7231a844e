/* SPDX-License-Identifier: Apache-2.0 */
/* dnnl: see dnnl.h.
 *
 * A product of a kind (shape, strides, dtypes, add) is prepared once and kept
 * with the objects that a call needs. While a thread uses one it is busy, and
 * another thread prepares its own. A full row gives up what was used longest
 * ago. The lock guards who is busy; the rest belongs to that thread. What is
 * kept stays until the process ends. */
#include "tensor/cpu/product/dnnl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/isa.h"
#include "base/log.h"
#include "base/status.h"
#include "tensor/cpu/product/blas.h"
#include "tensor/cpu/product/dnnl_symbols.h"

enum { ROWS = 64, KEPT = 4 }; /* 256 products are kept, four in a row */
/* Products of f32 that pay for preparing them: multiplications, and the least
 * of their three sizes. */
enum { LEAST_F32 = 1 << 20, LEAST_SIDE = 16 };

/* ---- loading ------------------------------------------------------------- */

typedef enum use { USE_OFF, USE_AUTO, USE_BF16, USE_ALL, USES } use;

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Final after `once`. */
static use chosen;
static int loaded;
static int major;
static oari_dnnl_table lib;
static void *engine;

static int processor_has_bf16(void)
{
#if defined(__x86_64__)
    return oari_isa_here() == OARI_ISA_AVX512 &&
           __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

static use read_use(void)
{
    static const char *const names[USES] = { "off", "auto", "bf16", "all" };
    const char *text = oari_env_text("OARSONG_DNNL");

    for (int i = 0; text != NULL && i < USES; i++)
        if (strcasecmp(text, names[i]) == 0)
            return (use)i;
    return USE_AUTO; /* oari_env_check refuses other words */
}

/* One that is loaded comes first: two versions in one process might call each
 * other's functions. */
static void *open_library(const char **path)
{
    static const char *const names[] = { "libdnnl.so.3", "libdnnl.so.3.6",
                                         "libdnnl.so.2" };
    enum { NAMES = sizeof names / sizeof names[0] };
    void *library = NULL;

    *path = oari_env_text("OARSONG_DNNL_LIBRARY");
    if (*path != NULL)
        return dlopen(*path, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2 * NAMES && library == NULL; i++) {
        *path = names[i % NAMES];
        library = dlopen(*path,
                         RTLD_NOW | RTLD_LOCAL | (i < NAMES ? RTLD_NOLOAD : 0));
    }
    return library;
}

static void find_symbol(void *library, const char *name, void *field)
{
    void *symbol = dlsym(library, name);

    memcpy(field, &symbol, sizeof symbol);
}

static oar_status find_symbols(void *library, const char *path)
{
#define X(name, result, parameters)                 \
    find_symbol(library, "dnnl_" #name, &lib.name); \
    if (lib.name == NULL)                           \
        return oari_fail(OAR_E_UNAVAILABLE, "%s has no dnnl_" #name, path);
    OARI_DNNL_SYMBOLS(X)
    major = lib.version()->major;
    if (major == 2) {
        OARI_DNNL_SYMBOLS_2(X)
    } else if (major == 3) {
        OARI_DNNL_SYMBOLS_3(X)
    } else {
        return oari_fail(OAR_E_UNAVAILABLE, "%s is of version %d", path, major);
    }
#undef X
    return OAR_OK;
}

static oar_status load_library(void)
{
    const char *path, *why;
    void *library = open_library(&path);
    const oari_dnnl_version *v;

    if (library == NULL) {
        why = dlerror();
        return oari_fail(OAR_E_UNAVAILABLE, "%s", why != NULL ? why : path);
    }
    OARI_TRY(find_symbols(library, path));
    v = lib.version();
    if (v->cpu_runtime != OARI_DNNL_SEQUENTIAL &&
        v->cpu_runtime != OARI_DNNL_OPENMP)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%s has threads whose number cannot be set", path);
    if (v->cpu_runtime == OARI_DNNL_OPENMP) {
        find_symbol(library, "omp_get_max_threads", &lib.get_threads);
        find_symbol(library, "omp_set_num_threads", &lib.set_threads);
        if (lib.get_threads == NULL || lib.set_threads == NULL)
            return oari_fail(OAR_E_UNAVAILABLE, "%s has no OpenMP", path);
    }
    if (lib.engine_create(&engine, OARI_DNNL_CPU, 0) != 0)
        return oari_fail(OAR_E_UNAVAILABLE, "%s has no engine", path);
    oari_log(OAR_LOG_INFO, "products by oneDNN %d.%d.%d (%s)", v->major,
             v->minor, v->patch, path);
    return OAR_OK;
}

static void start(void)
{
    chosen = read_use();
    if (chosen == USE_OFF || (chosen == USE_AUTO && !processor_has_bf16()))
        return;
    loaded = load_library() == OAR_OK;
    if (!loaded)
        oari_log(chosen == USE_AUTO ? OAR_LOG_INFO : OAR_LOG_WARN,
                 "no products by oneDNN: %s", oar_last_error_text());
}

int oari_dnnl_takes(oar_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    if (dtype != OAR_BF16 && dtype != OAR_F32)
        return 0;
    pthread_once(&once, start);
    if (!loaded || dtype == OAR_BF16 || chosen == USE_ALL)
        return loaded;
    return chosen == USE_AUTO && m >= LEAST_SIDE && n >= LEAST_SIDE &&
           k >= LEAST_SIDE && m * n * k >= LEAST_F32;
}

/* ---- one kind of product ------------------------------------------------- */

/* Has no gaps: it is compared and hashed as bytes. */
typedef struct kind {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t a_turned, b_turned, dtype, to, add, threads;
} kind;

enum { A, B, C, SCRATCH, ARGS };

typedef struct product {
    kind of;
    int busy, ready; /* not ready: the library has no fast one */
    uint64_t used;   /* when */
    void *primitive, *stream;
    size_t scratch_bytes;
    oari_dnnl_arg arg[ARGS];
} product;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static product kept[ROWS][KEPT];
static uint64_t uses;

static int dnnl_dtype(int32_t dtype)
{
    return dtype == OAR_BF16 ? OARI_DNNL_BF16 : OARI_DNNL_F32;
}

/* The description of one of the three matrices; *md says where. */
static int describe(oari_dnnl_md *room, int64_t rows, int64_t columns,
                    int64_t lead, int turned, int32_t dtype, void **md)
{
    oari_dnnl_dims dims = { rows, columns };
    oari_dnnl_dims strides = { turned ? 1 : lead, turned ? lead : 1 };
    int as = dnnl_dtype(dtype);

    if (major == 3)
        return lib.memory_desc_create_with_strides(md, 2, dims, as, strides);
    *md = room;
    return lib.memory_desc_init_by_strides(room, 2, dims, as, strides);
}

/* Scratch memory is the caller's: the library's own would belong to the thread
 * that prepared the product. */
static int make_attr(int add, void **attr)
{
    void *ops = NULL;
    int status = lib.primitive_attr_create(attr);

    if (status == 0)
        status =
            lib.primitive_attr_set_scratchpad_mode(*attr, OARI_DNNL_BY_CALLER);
    if (status != 0 || !add)
        return status;
    status = lib.post_ops_create(&ops);
    if (status == 0)
        status = major == 2 ? lib.post_ops_append_sum_v3(ops, 1, 0, 0)
                            : lib.post_ops_append_sum(ops, 1, 0, 0);
    if (status == 0)
        status = lib.primitive_attr_set_post_ops(*attr, ops);
    if (ops != NULL)
        lib.post_ops_destroy(ops);
    return status;
}

static int make_desc(void *const *md, const void *attr, void **desc)
{
    oari_dnnl_op op;

    if (major == 3)
        return lib.matmul_primitive_desc_create(desc, engine, md[A], md[B],
                                                NULL, md[C], attr);
    if (lib.matmul_desc_init(&op, md[A], md[B], NULL, md[C]) != 0)
        return 1;
    return lib.primitive_desc_create(desc, &op, attr, engine, NULL);
}

/* Its plain loops are slower than CBLAS with copies. */
static int is_fast(const void *desc)
{
    const char *name = NULL;

    return chosen != USE_AUTO ||
           (lib.primitive_desc_query(desc, OARI_DNNL_QUERY_NAME, 0, &name) ==
                0 &&
            name != NULL && strstr(name, "ref") == NULL);
}

/* Makes what a call needs, with memory objects that have no memory yet. */
static int make_objects(product *p, void *const *md, const void *desc)
{
    static const int kinds[ARGS] = { OARI_DNNL_ARG_A, OARI_DNNL_ARG_B,
                                     OARI_DNNL_ARG_C, OARI_DNNL_ARG_SCRATCH };
    const void *scratch =
        lib.primitive_desc_query_md(desc, OARI_DNNL_QUERY_SCRATCH, 0);
    int status = lib.primitive_create(&p->primitive, desc);

    p->scratch_bytes = scratch != NULL ? lib.memory_desc_get_size(scratch) : 0;
    if (status == 0)
        status = lib.stream_create(&p->stream, engine, OARI_DNNL_IN_ORDER);
    for (int i = 0; i < ARGS; i++) {
        p->arg[i].kind = kinds[i];
        if (status == 0 && (i != SCRATCH || p->scratch_bytes > 0))
            status =
                lib.memory_create(&p->arg[i].memory,
                                  i == SCRATCH ? scratch : md[i], engine, NULL);
    }
    return status;
}

static void prepare(product *p)
{
    const kind *of = &p->of;
    void *md[3] = { NULL };
    void *attr = NULL, *desc = NULL;
    oari_dnnl_md room[3];
    int status = describe(&room[A], of->m, of->k, of->lda, of->a_turned,
                          of->dtype, &md[A]);

    if (status == 0)
        status = describe(&room[B], of->k, of->n, of->ldb, of->b_turned,
                          of->dtype, &md[B]);
    if (status == 0)
        status = describe(&room[C], of->m, of->n, of->ldc, 0, of->to, &md[C]);
    if (status == 0)
        status = make_attr(of->add, &attr);
    if (status == 0)
        status = make_desc(md, attr, &desc);
    p->ready = status == 0 && is_fast(desc) && make_objects(p, md, desc) == 0;
    if (!p->ready)
        oari_log(OAR_LOG_INFO,
                 "oneDNN has no fast product of %s [%lld, %lld] and "
                 "[%lld, %lld]",
                 oar_dtype_name((oar_dtype)of->dtype), (long long)of->m,
                 (long long)of->k, (long long)of->k, (long long)of->n);
    if (desc != NULL)
        lib.primitive_desc_destroy(desc);
    if (attr != NULL)
        lib.primitive_attr_destroy(attr);
    for (int i = 0; i < 3 && major == 3; i++)
        if (md[i] != NULL)
            lib.memory_desc_destroy(md[i]);
}

static void destroy_objects(product *p)
{
    for (int i = 0; i < ARGS; i++)
        if (p->arg[i].memory != NULL)
            lib.memory_destroy(p->arg[i].memory);
    if (p->stream != NULL)
        lib.stream_destroy(p->stream);
    if (p->primitive != NULL)
        lib.primitive_destroy(p->primitive);
}

/* Returns a product of this kind, which is busy now: one that is kept, or
 * prepared in the place of another one, or in `own` if all there are busy. */
static product *take_product(const kind *of, product *own)
{
    product *row = kept[oari_hash64(of, sizeof *of, 0) % ROWS], *p = NULL;
    product old = { .busy = 0 };

    pthread_mutex_lock(&lock);
    for (int i = 0; i < KEPT && p == NULL; i++)
        if (!row[i].busy && memcmp(&row[i].of, of, sizeof *of) == 0)
            p = &row[i];
    if (p != NULL) {
        p->busy = 1;
        p->used = ++uses;
        pthread_mutex_unlock(&lock);
        return p;
    }
    for (int i = 0; i < KEPT; i++)
        if (!row[i].busy && (p == NULL || row[i].used < p->used))
            p = &row[i];
    if (p == NULL)
        p = own;
    old = *p;
    *p = (product){ .of = *of, .busy = 1, .used = ++uses };
    pthread_mutex_unlock(&lock);
    destroy_objects(&old);
    prepare(p);
    return p;
}

static void give_back(product *p, product *own)
{
    if (p == own) {
        destroy_objects(own);
        return;
    }
    pthread_mutex_lock(&lock);
    p->busy = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- multiplying --------------------------------------------------------- */

static oar_status execute(oari_pool *pool, product *p, const oari_gemm_job *job)
{
    const void *data[ARGS] = { job->a.data, job->b.data, job->c, NULL };
    int64_t bytes = (int64_t)p->scratch_bytes, args = bytes > 0 ? 4 : 3;
    oar_tensor *scratch = NULL;
    int status = 0;

    if (bytes > 0) {
        scratch = oari_tensor_make(pool, OAR_U8, OAR_SHAPE(bytes));
        if (scratch == NULL)
            return OAR_E_NOMEM;
        data[SCRATCH] = oar_tensor_data(scratch);
    }
    for (int i = 0; i < args && status == 0; i++)
        status = lib.memory_set_data_handle(p->arg[i].memory, data[i]);
    if (status == 0)
        status =
            lib.primitive_execute(p->primitive, p->stream, (int)args, p->arg);
    if (status == 0)
        status = lib.stream_wait(p->stream);
    oari_tensor_drop(pool, scratch);
    return status == 0
               ? OAR_OK
               : oari_fail(OAR_E_SYSTEM,
                           "a product by oneDNN: its status is %d", status);
}

oar_status oari_dnnl_multiply(oari_pool *pool, const oari_gemm_job *job,
                              oar_dtype to)
{
    const kind of = { job->m,        job->n,        job->k,
                      job->a.lead,   job->b.lead,   job->lead,
                      job->a.turned, job->b.turned, (int32_t)job->dtype,
                      (int32_t)to,   job->add != 0, oari_blas_threads() };
    product own = { .busy = 0 }, *p;
    oar_status status = OAR_E_UNSUPPORTED;
    int before = 0;

    if (lib.set_threads != NULL) { /* of this thread; others use OpenMP too */
        before = lib.get_threads();
        lib.set_threads(of.threads);
    }
    p = take_product(&of, &own);
    if (p->ready)
        status = execute(pool, p, job);
    give_back(p, &own);
    if (lib.set_threads != NULL)
        lib.set_threads(before);
    return status;
}
