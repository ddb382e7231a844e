/* SPDX-License-Identifier: Apache-2.0 */
/* shard_gpu: shards of arrays on a GPU: arithmetic, the order of ranks, and one
 * copy of whole arrays for all ranks on that GPU.
 *
 * That copy is memory of rank 0 that the others map (CUDA IPC). Nothing keeps a
 * rank from writing to parts of others. It may be freed only when no process
 * has it mapped: a page of the host says which ranks have let go of it.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "device/gpu_share.h"
#include "parallel/reducer/agreement.h"
#include "parallel/reducer/reducer.h"
#include "parallel/shards/shards.h"

enum { LET_GO_MS = 5000, PAUSE_US = 200, UUID_BYTES = 16 };

/* ---- numbers ------------------------------------------------------------- */

static oar_tensor *view_of(const oari_numbers *n)
{
    return oar_view_of(NULL, n->storage,
                       (int64_t)(n->at / oar_dtype_size(n->dtype)), n->dtype,
                       OAR_SHAPE((int64_t)n->count));
}

static oar_status copy_tensor(oar_tensor *to, const oar_tensor *from)
{
    return to != NULL && from != NULL ? oar_tensor_copy(to, from)
                                      : oar_last_error()->status;
}

oar_status oari_numbers_copy(const oari_numbers *to, const oari_numbers *from)
{
    oar_tensor *a, *b;
    oar_status status;

    if (to->count == 0)
        return OAR_OK;
    a = view_of(to);
    b = view_of(from);
    status = copy_tensor(a, b);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return status;
}

oar_status oari_numbers_add(const oari_numbers *to, const oari_numbers *from)
{
    oar_tensor *a, *b, *same, *sum;
    oar_status status;

    if (to->count == 0)
        return OAR_OK;
    a = view_of(to);
    b = view_of(from);
    same = b != NULL && from->dtype != to->dtype ? oar_cast(NULL, b, to->dtype)
                                                 : oar_tensor_retain(b);
    sum = a != NULL && same != NULL ? oar_add(NULL, a, same) : NULL;
    status = copy_tensor(a, sum);
    oar_tensor_release(sum);
    oar_tensor_release(same);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return status;
}

oar_status oari_numbers_scale(const oari_numbers *of, double factor)
{
    oar_tensor *a, *scaled;
    oar_status status;

    if (of->count == 0 || factor == 1)
        return OAR_OK;
    a = view_of(of);
    scaled = a != NULL ? oar_scale(NULL, a, factor) : NULL;
    status = copy_tensor(a, scaled);
    oar_tensor_release(scaled);
    oar_tensor_release(a);
    return status;
}

oari_numbers oari_part_numbers(const oar_shards *s, const oari_flat *flat)
{
    return (oari_numbers){ s->params, oari_shards_part_at(s, flat),
                           flat->counts[s->part], flat->dtype };
}

oari_numbers oari_whole_numbers(const oar_shards *s, const oari_flat *flat)
{
    size_t at = flat->first * oar_dtype_size(flat->whole_dtype);

    return (oari_numbers){ s->resident ? s->whole : flat->whole->storage,
                           at + (s->resident ? flat->whole_at : 0),
                           flat->counts[s->part], flat->whole_dtype };
}

oar_status oari_shards_zeros(oar_device device, size_t bytes,
                             oar_storage **made)
{
    oar_span all;

    if (device.kind == OAR_CPU)
        OARI_TRY(oar_storage_create(bytes, 1, made));
    else
        OARI_TRY(oar_storage_create_on(device, bytes, made));
    all = oari_span_on(device, oar_storage_data(*made), bytes, OAR_U8);
    return oari_span_clear(&all);
}

/* ---- which device -------------------------------------------------------- */

oar_status oari_gpu_find_device(oar_shards *s, const oar_span *array)
{
    oar_device cpu = oar_device_of(OAR_CPU, 0);

    s->device = s->arrays > 0 ? array[0].device : cpu;
    for (int i = 0; i < s->arrays; i++)
        if (array[i].device.kind != s->device.kind ||
            array[i].device.index != s->device.index)
            return oari_fail(OAR_E_DEVICE,
                             "shards_create: array 0 is on %s, array %d on %s: "
                             "all must be on one device",
                             oar_device_text(s->device).text, i,
                             oar_device_text(array[i].device).text);
    if (s->opts.host_state &&
        (!oari_shards_on_gpu(s) || s->opts.hold != OAR_HOLD_HOST))
        return oari_fail(OAR_E_ARG, "shards_create: host_state is for arrays "
                                    "on a GPU with OAR_HOLD_HOST");
    s->shard_device = s->opts.host_state ? cpu : s->device;
    s->arrays_pool.device = s->grads_pool.device = s->device;
    return OAR_OK;
}

oar_status oari_gpu_compare(oar_shards *s, oar_group *group)
{
    oar_device_properties gpu = oar_device_properties_init();
    size_t ranks = (size_t)s->ranks;
    unsigned char *all = oari_alloc(ranks, UUID_BYTES);
    oar_status status =
        all != NULL ? oar_device_describe(s->device, &gpu) : OAR_E_NOMEM;

    status = oari_agree_on_status(group, status, "shards_create");
    if (status == OAR_OK)
        status = oar_all_gather(
            group, oar_span_of(gpu.uuid, UUID_BYTES, OAR_U8),
            oar_span_of(all, ranks * UUID_BYTES, OAR_U8),
            OAR_OPTS(oar_call_opts, .label = "shards_create"), NULL);
    s->one_gpu = 1;
    for (size_t r = 0; status == OAR_OK && r < ranks; r++)
        s->one_gpu &= memcmp(all + r * UUID_BYTES, all, UUID_BYTES) == 0;
    oari_free(all);
    return status;
}

/* ---- order --------------------------------------------------------------- */

oar_status oari_shards_await(const oar_shards *s, oar_work *work,
                             int64_t timeout_ms)
{
    if (!oari_shards_on_gpu(s))
        return oar_work_wait_for(work, timeout_ms);
    if (timeout_ms >= 0)
        OARI_TRY(oar_work_wait_for(work, timeout_ms));
    return oar_work_order(work, oar_stream_current(s->device));
}

int oari_shards_are_recorded(const oar_shards *s)
{
    return oari_gpu_records(s->device);
}

oar_status oari_gpu_fence(oar_shards *s)
{
    if (s->ranks == 1)
        return OAR_OK;
    return oar_all_reduce(
        s->reduce,
        oari_span_on(s->device, oar_storage_data(s->fence), 1, OAR_F32),
        OAR_MAX, OAR_OPTS(oar_call_opts, .label = "fence"), NULL);
}

/* ---- one copy for all ranks ---------------------------------------------- */

/* One rank's line on the page. */
typedef struct common_line {
    _Atomic int64_t process;
    _Atomic int let_go;
    char pad[48];
} common_line;

typedef struct common_copy {
    oar_device device;
    int rank, ranks;
    void *memory;
    oar_window *page;
} common_copy;

static common_line *line_of(const common_copy *c, int rank)
{
    return (common_line *)oar_window_data(c->page) + rank;
}

/* Whether a process has ended; its parent may not know yet. */
static int has_ended(pid_t process)
{
    char path[64], text[256] = "";
    const char *state;
    FILE *file;

    if (kill(process, 0) != 0)
        return errno == ESRCH;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)process);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    state = fgets(text, sizeof text, file) != NULL ? strrchr(text, ')') : NULL;
    fclose(file);
    return state != NULL &&
           (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
}

static int is_gone(const common_copy *c, int rank)
{
    pid_t process = (pid_t)atomic_load(&line_of(c, rank)->process);

    return atomic_load(&line_of(c, rank)->let_go) ||
           (process > 0 && has_ended(process));
}

/* Returns whether no other rank has the memory any more, after a while. */
static int all_are_gone(const common_copy *c)
{
    int64_t deadline = oari_now_ns() + (int64_t)LET_GO_MS * 1000000;

    for (int r = 1; r < c->ranks; r++)
        while (!is_gone(c, r)) {
            if (oari_now_ns() > deadline)
                return 0;
            usleep(PAUSE_US);
        }
    return 1;
}

/* What streams of this process still do with the memory is awaited. */
static void let_go(void *arg)
{
    common_copy *c = arg;
    oar_error keep = *oar_last_error();

    if (c->memory != NULL)
        oar_stream_synchronize(c->device, oar_stream_current(c->device));
    if (c->rank != 0)
        oari_gpu_unmap(c->device, c->memory);
    else if (c->page == NULL || all_are_gone(c))
        oari_gpu_unshare(c->device, c->memory);
    else
        oari_log(OAR_LOG_WARN,
                 "shards: other ranks still have the parameters of this one "
                 "mapped: they stay until this process ends");
    if (c->page != NULL)
        atomic_store(&line_of(c, c->rank)->let_go, 1);
    oar_window_release(c->page);
    oari_free(c);
    oari_fail_with(&keep);
}

static oar_status share_memory(const oar_shards *s, common_copy *c,
                               size_t bytes, oari_gpu_handle *handle)
{
    oar_span all;

    OARI_TRY(oari_gpu_share(s->device, bytes, &c->memory, handle));
    all = oari_span_on(s->device, c->memory, bytes, OAR_U8);
    OARI_TRY(oari_span_clear(&all));
    return oar_stream_synchronize(s->device, oar_stream_current(s->device));
}

/* A GPU, or a machine, where processes cannot share memory is no reason for
 * OAR_HOLD_AUTO to fail. */
static oar_status open_common(oar_shards *s, common_copy *c, size_t bytes)
{
    oari_gpu_handle handle = { { 0 } };
    oar_status status = OAR_OK;

    OARI_TRY(oar_window_create(s->local, (size_t)c->ranks * sizeof(common_line),
                               NULL, &c->page));
    atomic_store(&line_of(c, c->rank)->process, (int64_t)getpid());
    if (c->rank == 0)
        status = share_memory(s, c, bytes, &handle);
    OARI_TRY(oari_agree_on_status(s->local, status, "shards_create"));
    OARI_TRY(oar_broadcast(
        s->local, oar_span_of(handle.bytes, sizeof handle.bytes, OAR_U8), 0,
        OAR_OPTS(oar_call_opts, .label = "shards_create"), NULL));
    if (c->rank != 0 &&
        oari_gpu_map(s->device, &handle, &c->memory) != OAR_OK) {
        oar_error why = *oar_last_error();
        status = oari_fail(OAR_E_UNSUPPORTED,
                           "OAR_HOLD_MAPPED on a GPU: %.300s", why.text);
    }
    return oari_agree_on_status(s->local, status, "shards_create");
}

oar_status oari_gpu_map_whole(oar_shards *s)
{
    size_t bytes = s->whole_bytes != 0 ? s->whole_bytes : 1;
    common_copy *c;
    oar_status status;

    if (s->local == NULL) /* one rank */
        return oari_shards_zeros(s->device, bytes, &s->whole);
    c = oari_alloc(1, sizeof *c);
    OARI_TRY(oari_agree_on_status(s->local, c != NULL ? OAR_OK : OAR_E_NOMEM,
                                  "shards_create"));
    c->device = s->device;
    c->rank = oar_group_rank(s->local);
    c->ranks = oar_group_size(s->local);
    status = open_common(s, c, bytes);
    if (status == OAR_OK)
        status = oar_storage_create_detached_on(s->device, bytes, &s->whole);
    if (status == OAR_OK)
        status = oar_storage_attach(s->whole, c->memory, let_go, c);
    if (status != OAR_OK)
        let_go(c);
    return status;
}

/* ---- reductions ---------------------------------------------------------- */

/* Gives the gradient in the dtype in which it is added up: collectives on a GPU
 * do not convert. */
static oar_status widen(oar_shards *s, oari_flat *flat, oari_numbers *whole)
{
    size_t bytes = flat->count * oar_dtype_size(flat->mean_dtype);
    oari_numbers narrow = *whole;

    if (flat->mean_dtype == flat->whole_dtype)
        return OAR_OK;
    OARI_TRY(oari_buffer_take(&s->grads_pool, bytes, &flat->wide));
    whole->storage = flat->wide->storage;
    whole->dtype = flat->mean_dtype;
    return oari_numbers_copy(whole, &narrow);
}

oar_status oari_gpu_post_reduce(oar_shards *s, oari_flat *flat, oar_span mean,
                                const oar_call_opts *opts)
{
    oari_numbers whole = { flat->grad->storage, 0, flat->count,
                           flat->whole_dtype };
    oar_span from;
    oar_status status;

    OARI_TRY(widen(s, flat, &whole));
    from = oari_span_on(s->device, oar_storage_data(whole.storage), whole.count,
                        whole.dtype);
    if (s->opts.weighted && !s->scales) {
        status = oar_reduce_scatter_v(s->reduce, from, flat->counts, mean,
                                      OAR_WEIGHTED_MEAN, opts, &flat->reduce);
        if (status != OAR_E_UNSUPPORTED || s->posted > 0)
            return status;
        oar_clear_error();
        s->scales = 1; /* all ranks see this alike, before anything is posted */
    }
    if (s->scales && s->factor_pass != s->passes + 1) {
        OARI_TRY(oari_weight_factor(s->reduce, s->weight, &s->factor));
        s->factor_pass = s->passes + 1;
    }
    if (s->scales)
        OARI_TRY(oari_numbers_scale(&whole, s->factor));
    return oar_reduce_scatter_v(s->reduce, from, flat->counts, mean, OAR_AVG,
                                opts, &flat->reduce);
}
