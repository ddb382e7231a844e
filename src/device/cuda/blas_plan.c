/* SPDX-License-Identifier: Apache-2.0 */
/* blas_plan: descriptors for cuBLASLt, and the choice of an algorithm by
 * measuring. cuBLASLt thinks in columns: to' = b' a', so that its A is our b,
 * and its B our a. Plans are kept until the process ends. */
#include "device/cuda/blas_plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "device/cuda/cuda_pool.h"

enum {
    BUCKETS = 256,
    PROPOSED = 16, /* algorithms that are measured */
    TIMES = 3,     /* each */
    SAMPLES = 4,   /* places of the result that are compared */
    SAMPLE_BYTES = 16384
};

static oari_blas_plan *plans[BUCKETS];

/* ---- descriptors --------------------------------------------------------- */

static int lt_dtype(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F64: return OARI_LT_F64;
    case OAR_F16: return OARI_LT_F16;
    case OAR_BF16: return OARI_LT_BF16;
    default: return OARI_LT_F32;
    }
}

static int lt_epilogue(oari_blas_epilogue epilogue)
{
    static const int number[] = {
        [OARI_BLAS_PLAIN] = OARI_LT_EPILOGUE_PLAIN,
        [OARI_BLAS_BIAS] = OARI_LT_EPILOGUE_BIAS,
        [OARI_BLAS_GELU] = OARI_LT_EPILOGUE_GELU_AUX_BIAS,
        [OARI_BLAS_GELU_BACK] = OARI_LT_EPILOGUE_DGELU,
        [OARI_BLAS_GELU_BACK_SUMS] = OARI_LT_EPILOGUE_DGELU_BIAS_GRAD,
        [OARI_BLAS_SUMS] = OARI_LT_EPILOGUE_BIAS_GRAD_B,
    };

    return number[epilogue];
}

/* The alignment that may be counted on, up to 256 bytes. */
static int32_t alignment(const void *p, const void *q)
{
    uintptr_t bits = (uintptr_t)p | (uintptr_t)q | 256;

    return (int32_t)(bits & (0 - bits));
}

static oari_blas_key key_of(const oari_blas_run *run, const oari_blas_job *job)
{
    oari_blas_key key;

    memset(&key, 0, sizeof key);
    key = (oari_blas_key){
        .m = job->m,
        .n = job->n,
        .k = job->k,
        .batches = job->batches,
        .a_lead = job->a.lead,
        .b_lead = job->b.lead,
        .to_lead = job->to_lead,
        .aux_lead = job->aux_lead,
        .a_batch = job->a.batch,
        .b_batch = job->b.batch,
        .to_batch = job->to_batch,
        .device = run->device,
        .dtype = (int32_t)job->dtype,
        .to_dtype = (int32_t)job->to_dtype,
        .epilogue = (int32_t)job->epilogue,
        .a_turned = job->a.turned,
        .b_turned = job->b.turned,
        .add = job->add,
        .tf32 = run->tf32,
        .align = { alignment(job->a.data, NULL), alignment(job->b.data, NULL),
                   alignment(job->to, NULL), alignment(job->bias, job->aux) }
    };
    return key;
}

/* A matrix of rows x columns, or what is its transpose, as columns. */
static oar_status make_layout(const oari_blas_run *run, oar_dtype dtype,
                              int64_t rows, int64_t columns, int turned,
                              int64_t lead, int64_t batches, int64_t batch,
                              oari_lt_layout *layout)
{
    int32_t count = (int32_t)batches;
    int result = run->lt->LayoutCreate(
        layout, lt_dtype(dtype), (uint64_t)(turned ? rows : columns),
        (uint64_t)(turned ? columns : rows), lead);

    if (result == 0 && batches > 1)
        result = run->lt->LayoutSet(*layout, OARI_LT_LAYOUT_BATCHES, &count,
                                    sizeof count);
    if (result == 0 && batches > 1)
        result = run->lt->LayoutSet(*layout, OARI_LT_LAYOUT_BATCH_STRIDE,
                                    &batch, sizeof batch);
    return oari_blas_check(result, "describe a matrix");
}

/* What a product reads or writes beside its matrices. */
static int set_pointers(const oari_blas_run *run, oari_lt_desc desc,
                        const oari_blas_job *job)
{
    int result = 0;

    if (job->bias != NULL)
        result = run->lt->DescSet(desc, OARI_LT_DESC_BIAS, &job->bias,
                                  sizeof job->bias);
    if (job->aux != NULL && result == 0)
        result = run->lt->DescSet(desc, OARI_LT_DESC_AUX, &job->aux,
                                  sizeof job->aux);
    return result;
}

static oar_status make_desc(const oari_blas_run *run, const oari_blas_job *job,
                            oari_lt_desc *desc)
{
    const oari_blas_table *lt = run->lt;
    int wide = job->dtype == OAR_F64, one = OARI_LT_TRANSPOSED;
    int compute = wide                                 ? OARI_LT_COMPUTE_F64
                  : job->dtype == OAR_F32 && run->tf32 ? OARI_LT_COMPUTE_TF32
                                                       : OARI_LT_COMPUTE_F32;
    int epilogue = lt_epilogue(job->epilogue);
    int result =
        lt->DescCreate(desc, compute, wide ? OARI_LT_F64 : OARI_LT_F32);

    if (result == 0 && job->b.turned)
        result = lt->DescSet(*desc, OARI_LT_DESC_TRANS_A, &one, sizeof one);
    if (result == 0 && job->a.turned)
        result = lt->DescSet(*desc, OARI_LT_DESC_TRANS_B, &one, sizeof one);
    if (result == 0)
        result = lt->DescSet(*desc, OARI_LT_DESC_EPILOGUE, &epilogue,
                             sizeof epilogue);
    if (result == 0)
        result = set_pointers(run, *desc, job);
    if (result == 0 && job->aux != NULL)
        result = lt->DescSet(*desc, OARI_LT_DESC_AUX_LEAD, &job->aux_lead,
                             sizeof job->aux_lead);
    return oari_blas_check(result, "describe a product");
}

static oar_status describe_plan(const oari_blas_run *run,
                                const oari_blas_job *job, oari_blas_plan *plan)
{
    OARI_TRY(make_desc(run, job, &plan->desc));
    OARI_TRY(make_layout(run, job->dtype, job->m, job->k, job->a.turned,
                         job->a.lead, job->batches, job->a.batch, &plan->a));
    OARI_TRY(make_layout(run, job->dtype, job->k, job->n, job->b.turned,
                         job->b.lead, job->batches, job->b.batch, &plan->b));
    return make_layout(run, job->to_dtype, job->m, job->n, 0, job->to_lead,
                       job->batches, job->to_batch, &plan->to);
}

static void free_plan(const oari_blas_run *run, oari_blas_plan *plan)
{
    if (plan->desc != NULL)
        run->lt->DescDestroy(plan->desc);
    if (plan->a != NULL)
        run->lt->LayoutDestroy(plan->a);
    if (plan->b != NULL)
        run->lt->LayoutDestroy(plan->b);
    if (plan->to != NULL)
        run->lt->LayoutDestroy(plan->to);
    oari_free(plan);
}

oar_status oari_blas_run_plan(const oari_blas_run *run,
                              const oari_blas_plan *plan,
                              const oari_blas_job *job,
                              const oari_lt_algo *algo, void *to)
{
    static const double ones[] = { 0, 1 };
    static const float one[] = { 0, 1 };
    const int wide = job->dtype == OAR_F64, add = job->add != 0;
    const void *alpha = wide ? (const void *)&ones[1] : &one[1];
    const void *beta = wide ? (const void *)&ones[add] : &one[add];
    int result = set_pointers(run, plan->desc, job);

    if (result == 0)
        result = run->lt->Matmul(run->handle, plan->desc, alpha, job->b.data,
                                 plan->b, job->a.data, plan->a, beta, to,
                                 plan->to, to, plan->to, algo, run->workspace,
                                 OARI_BLAS_WORKSPACE, run->stream);
    return oari_blas_check(result, "multiply matrices");
}

/* ---- measuring ----------------------------------------------------------- */

static oar_status ask_proposals(const oari_blas_run *run,
                                const oari_blas_plan *plan,
                                oari_lt_result results[PROPOSED], int *count)
{
    const oari_blas_table *lt = run->lt;
    const uint32_t reductions = OARI_LT_REDUCE_IN_F32;
    const size_t bytes = OARI_BLAS_WORKSPACE;
    const int32_t *have = plan->key.align;
    const uint32_t align[] = { (uint32_t)have[1], (uint32_t)have[0],
                               (uint32_t)have[2], (uint32_t)have[2] };
    oari_lt_pref pref = NULL;
    int result = lt->PrefCreate(&pref);

    *count = 0;
    if (result == 0)
        result =
            lt->PrefSet(pref, OARI_LT_PREF_WORKSPACE, &bytes, sizeof bytes);
    if (result == 0)
        result = lt->PrefSet(pref, OARI_LT_PREF_REDUCTIONS, &reductions,
                             sizeof reductions);
    for (int i = 0; i < 4 && result == 0; i++)
        result = lt->PrefSet(pref, OARI_LT_PREF_ALIGN_A + i, &align[i],
                             sizeof align[i]);
    if (result == 0)
        result =
            lt->Heuristic(run->handle, plan->desc, plan->b, plan->a, plan->to,
                          plan->to, pref, PROPOSED, results, count);
    if (pref != NULL)
        lt->PrefDestroy(pref);
    OARI_TRY(oari_blas_check(result, "choose an algorithm"));
    if (*count > 0)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED,
                     "cuBLASLt has no algorithm for %s matrices of %lld x %lld "
                     "and %lld columns",
                     oar_dtype_name((oar_dtype)plan->key.dtype),
                     (long long)plan->key.m, (long long)plan->key.k,
                     (long long)plan->key.n);
}

/* A measurement of one kind of product. */
typedef struct trial {
    const oari_blas_run *run;
    const oari_blas_plan *plan;
    const oari_blas_job *job;
    void *to; /* the result, or scratch of its size */
    size_t bytes;
    oari_cu_event begin, end;
    int any_bits;               /* the bits of the first do not matter */
    unsigned char *first, *now; /* samples of results */
} trial;

/* Copies samples of the result to the host, which waits. */
static oar_status take_sample(const trial *t, unsigned char *to)
{
    size_t each = t->bytes / SAMPLES;

    each = (each < SAMPLE_BYTES ? each : SAMPLE_BYTES) & ~(size_t)15;
    memset(to, 0, (size_t)SAMPLES * SAMPLE_BYTES);
    for (size_t i = 0; i < SAMPLES && each > 0; i++)
        OARI_TRY(oar_device_copy(
            to + i * SAMPLE_BYTES, oar_device_of(OAR_CPU, 0),
            (char *)t->to + t->bytes / SAMPLES * i,
            oar_device_of(OAR_CUDA, t->run->device), each, t->run->stream));
    return OAR_OK;
}

/* Measures one algorithm; *ms is infinite if it does not count. */
static oar_status time_algorithm(const trial *t, const oari_lt_algo *algo,
                                 int is_first, float *ms)
{
    const oari_cuda *cu = t->run->cu;
    int result = OARI_CU_SUCCESS;
    float took;

    *ms = 1e30f;
    if (!t->any_bits && t->job->add) /* each begins with the same numbers */
        OARI_TRY(oari_cuda_check(cu->MemsetD8Async(oari_cu_address(t->to), 0,
                                                   t->bytes, t->run->stream),
                                 "measure products"));
    if (oari_blas_run_plan(t->run, t->plan, t->job, algo, t->to) != OAR_OK)
        return OAR_OK;
    if (!t->any_bits) {
        OARI_TRY(take_sample(t, is_first ? t->first : t->now));
        if (!is_first &&
            memcmp(t->first, t->now, (size_t)SAMPLES * SAMPLE_BYTES) != 0)
            return OAR_OK;
    }
    for (int i = 0; i < TIMES && result == OARI_CU_SUCCESS; i++) {
        result = cu->EventRecord(t->begin, t->run->stream);
        OARI_TRY(oari_blas_run_plan(t->run, t->plan, t->job, algo, t->to));
        if (result == OARI_CU_SUCCESS)
            result = cu->EventRecord(t->end, t->run->stream);
        if (result == OARI_CU_SUCCESS)
            result = cu->EventSynchronize(t->end);
        if (result == OARI_CU_SUCCESS)
            result = cu->EventElapsedTime(&took, t->begin, t->end);
        if (result == OARI_CU_SUCCESS && took < *ms)
            *ms = took;
    }
    return oari_cuda_check(result, "measure products");
}

static oar_status time_all(trial *t, const oari_lt_result *results, int count,
                           oari_lt_algo *best)
{
    const oari_cuda *cu = t->run->cu;
    float least = 1e30f, ms;
    oar_status status =
        oari_cuda_check(cu->EventCreate(&t->begin, 0), "measure products");

    if (status == OAR_OK)
        status =
            oari_cuda_check(cu->EventCreate(&t->end, 0), "measure products");
    for (int i = 0; i < count && status == OAR_OK; i++) {
        status = time_algorithm(t, &results[i].algo, i == 0, &ms);
        if (status == OAR_OK && ms < least) {
            least = ms;
            *best = results[i].algo;
        }
    }
    if (t->begin != NULL)
        cu->EventDestroy(t->begin);
    if (t->end != NULL)
        cu->EventDestroy(t->end);
    return status;
}

/* A product that is not added to anything may be done several times where its
 * result goes; another goes to scratch memory. Without memory for that, the
 * first proposal it is. */
static oar_status measure(const oari_blas_run *run, const oari_blas_plan *plan,
                          const oari_blas_job *job, const oari_lt_result *found,
                          int count, oari_lt_algo *best)
{
    const int64_t width = (int64_t)oar_dtype_size(job->to_dtype);
    const int64_t last = (job->batches - 1) * job->to_batch +
                         (job->m - 1) * job->to_lead + job->n;
    trial t = { .run = run,
                .plan = plan,
                .job = job,
                .to = job->to,
                .bytes = (size_t)(last * width),
                .any_bits = oari_env_text("OARSONG_TUNE_FILE") != NULL };
    oar_status status;

    *best = found[0].algo;
    if (job->add && oari_cuda_pool_alloc(run->device, t.bytes, &t.to) != OAR_OK)
        return OAR_OK;
    t.first = oari_alloc(2 * SAMPLES, SAMPLE_BYTES);
    t.now = t.first != NULL ? t.first + SAMPLES * SAMPLE_BYTES : NULL;
    status = t.first != NULL ? time_all(&t, found, count, best) : OAR_E_NOMEM;
    oari_free(t.first);
    if (job->add)
        oari_cuda_pool_free(run->device, t.to, run->stream);
    return status;
}

/* ---- plans --------------------------------------------------------------- */

static oar_status choose_algorithm(const oari_blas_run *run,
                                   const oari_blas_job *job,
                                   oari_blas_plan *plan)
{
    oari_lt_result found[PROPOSED];
    int count;

    if (oari_blas_recall(run, &plan->key, &plan->algo))
        return OAR_OK;
    OARI_TRY(ask_proposals(run, plan, found, &count));
    if (count == 1)
        plan->algo = found[0].algo;
    else
        OARI_TRY(measure(run, plan, job, found, count, &plan->algo));
    oari_blas_remember(run, &plan->key, &plan->algo);
    return OAR_OK;
}

oar_status oari_blas_find_plan(const oari_blas_run *run,
                               const oari_blas_job *job, oari_blas_plan **plan)
{
    oari_blas_key key = key_of(run, job);
    oari_blas_plan **bucket =
        &plans[oari_hash64(&key, sizeof key, 0) % BUCKETS];
    oari_blas_plan *made;
    oar_status status;

    for (made = *bucket; made != NULL; made = made->next)
        if (memcmp(&made->key, &key, sizeof key) == 0) {
            *plan = made;
            return OAR_OK;
        }
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->key = key;
    status = describe_plan(run, job, made);
    if (status == OAR_OK)
        status = choose_algorithm(run, job, made);
    if (status != OAR_OK) {
        free_plan(run, made);
        return status;
    }
    made->next = *bucket;
    *bucket = *plan = made;
    return OAR_OK;
}

/* ---- all of them --------------------------------------------------------- */

/* Where a plan's kind is done, without a handle. */
static oari_blas_run run_of(const oari_blas_run *run,
                            const oari_blas_plan *plan)
{
    oari_blas_run its = *run;

    its.device = plan->key.device;
    return its;
}

oar_status oari_blas_write_plans(const oari_blas_run *run, char **text,
                                 size_t *bytes)
{
    size_t count = 0, at = 0;

    for (int i = 0; i < BUCKETS; i++)
        for (oari_blas_plan *p = plans[i]; p != NULL; p = p->next)
            count++;
    *text = oari_alloc(count * OARI_BLAS_LINE + 1, 1);
    if (*text == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < BUCKETS; i++)
        for (oari_blas_plan *p = plans[i]; p != NULL; p = p->next) {
            oari_blas_run its = run_of(run, p);

            at += oari_blas_write_line(&its, &p->key, &p->algo, *text + at);
        }
    *bytes = at;
    return OAR_OK;
}

int oari_blas_recall_plans(const oari_blas_run *run)
{
    int changed = 0;

    for (int i = 0; i < BUCKETS; i++)
        for (oari_blas_plan *p = plans[i]; p != NULL; p = p->next) {
            oari_blas_run its = run_of(run, p);
            oari_lt_algo before = p->algo;

            if (oari_blas_recall(&its, &p->key, &p->algo))
                changed += memcmp(&before, &p->algo, sizeof before) != 0;
        }
    return changed;
}
