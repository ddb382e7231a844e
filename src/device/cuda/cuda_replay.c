/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_replay: steps as graphs. A step is a row of graphs; between two of them
 * is what must not be recorded (oar_replay_cut). The step that is recorded runs
 * too: each graph is started when it is complete, so that what comes between
 * finds its data.
 *
 * Numbers that change from step to step lie in one piece of device memory. A
 * replay writes them to one of a few pinned copies and copies that there before
 * it starts the first graph; it waits only if that copy is still to be read.
 *
 * A replay belongs to one thread at a time; the thread that records one knows
 * it in `recording`. */
#include "device/cuda/cuda_replay.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "device/cuda/cuda_trace.h"
#include "device/cuda/driver.h"

enum {
    WARM = 3,
    COPIES = 4,           /* of the numbers, in pinned memory */
    NUMBER_BYTES = 16384, /* of one copy */
    ALIGNMENT = 16,
    NON_BLOCKING = 1,
    UNTIMED = 2,
    INVALIDATED = 2 /* of a capture */
};

typedef enum replay_state { WARMING, RECORDED, AS_IT_IS } replay_state;

/* A graph, and what is called behind it unless NULL. */
typedef struct replay_part {
    oari_cu_graph_exec exec;
    oar_replay_fn then;
    void *arg;
    void (*drop)(void *arg); /* or NULL */
} replay_part;

typedef struct replay_number {
    size_t at;
    oari_replay_fill_fn fill;
    void *arg;
} replay_number;

struct oar_replay {
    oar_device device;
    oar_replay_fn fn;
    void *arg;
    int warm, strict, runs;
    replay_state state;
    oari_cu_stream stream;
    oari_cu_event order; /* between this stream and the caller's */
    replay_part *part;
    int parts, part_room;
    replay_number *number;
    int numbers, number_room;
    size_t used; /* bytes of the numbers */
    char values[NUMBER_BYTES];
    const uint64_t *salt; /* among them; NULL: nobody has asked */
    void *device_values;
    char *pinned; /* COPIES of them */
    oari_cu_event read[COPIES];
    int copies; /* made so far */
    void **kept;
    int keeps, kept_room;
};

/* Streams of replays that have ended. They are used again and never destroyed,
 * because pools of tapes remember on which stream their memory was used. */
typedef struct spare_stream {
    struct spare_stream *next;
    oari_cu_stream stream;
    int device;
} spare_stream;

static spare_stream *spares;
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local oar_replay *recording;
static _Thread_local int running;

int oari_replay_records(int device)
{
    return recording != NULL && recording->device.index == device;
}

/* Makes room for one more element. */
static oar_status grow(void **list, int *room, int count, size_t bytes)
{
    int wanted = *room > 0 ? 2 * *room : 16;
    void *made;

    if (count < *room)
        return OAR_OK;
    if ((made = oari_alloc((size_t)wanted, bytes)) == NULL)
        return OAR_E_NOMEM;
    if (count > 0)
        memcpy(made, *list, (size_t)count * bytes);
    oari_free(*list);
    *list = made;
    *room = wanted;
    return OAR_OK;
}

/* ---- numbers ------------------------------------------------------------- */

oar_status oari_replay_number(const void *first, size_t bytes,
                              oari_replay_fill_fn fill, void *arg, void **at)
{
    oar_replay *r = recording;
    size_t place = (r->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    oar_status status;

    if (place + bytes > NUMBER_BYTES) {
        oari_free(arg);
        return oari_fail(OAR_E_UNSUPPORTED,
                         "replay: more than %d bytes of numbers that change "
                         "from step to step",
                         NUMBER_BYTES);
    }
    status = grow((void **)&r->number, &r->number_room, r->numbers,
                  sizeof *r->number);
    if (status != OAR_OK) {
        oari_free(arg);
        return status;
    }
    memcpy(r->values + place, first, bytes);
    r->number[r->numbers++] = (replay_number){ place, fill, arg };
    r->used = place + bytes;
    *at = (char *)r->device_values + place;
    return OAR_OK;
}

/* The next number of a row that depends on nothing else. */
static void fill_salt(void *arg, void *to)
{
    uint64_t z = ++*(uint64_t *)arg * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    memcpy(to, &z, sizeof z);
}

oar_status oari_replay_salt(int device, const uint64_t **salt)
{
    uint64_t *replays, none = 0;
    void *at = NULL;

    *salt = NULL;
    if (!oari_replay_records(device))
        return OAR_OK;
    if (recording->salt == NULL) {
        if ((replays = oari_alloc(1, sizeof *replays)) == NULL)
            return OAR_E_NOMEM;
        OARI_TRY(
            oari_replay_number(&none, sizeof none, fill_salt, replays, &at));
        recording->salt = at;
    }
    *salt = recording->salt;
    return OAR_OK;
}

/* Puts a copy of the values on the stream. */
static int copy_values(oar_replay *r, const oari_cuda *cu)
{
    int k = r->copies++ % COPIES, result = OARI_CU_SUCCESS;
    char *from = r->pinned + (size_t)k * NUMBER_BYTES;

    if (r->used == 0)
        return result;
    if (r->copies > COPIES)
        result = cu->EventSynchronize(r->read[k]);
    memcpy(from, r->values, r->used);
    if (result == OARI_CU_SUCCESS)
        result = cu->MemcpyHtoDAsync(oari_cu_address(r->device_values), from,
                                     r->used, r->stream);
    return result != OARI_CU_SUCCESS ? result
                                     : cu->EventRecord(r->read[k], r->stream);
}

/* ---- memory -------------------------------------------------------------- */

int oari_replay_keep(int device, void *memory)
{
    oar_replay *r = recording;

    if (!oari_replay_records(device) ||
        grow((void **)&r->kept, &r->kept_room, r->keeps, sizeof *r->kept) !=
            OAR_OK)
        return 0;
    r->kept[r->keeps++] = memory;
    return 1;
}

static int exchange_mode(int device, int mode)
{
    const oari_cuda *cu;

    if (oari_cuda_known(device, &cu) == OAR_OK)
        cu->ThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

int oari_replay_alloc_begin(int device)
{
    return oari_replay_records(device)
               ? exchange_mode(device, OARI_CU_CAPTURE_RELAXED)
               : -1;
}

void oari_replay_alloc_end(int device, int before)
{
    if (before >= 0)
        exchange_mode(device, before);
}

static void drop_arg(const replay_part *part)
{
    if (part->drop != NULL)
        part->drop(part->arg);
}

static void drop_recording(oar_replay *r, const oari_cuda *cu)
{
    for (int i = 0; i < r->parts; i++) {
        cu->GraphExecDestroy(r->part[i].exec);
        drop_arg(&r->part[i]);
    }
    for (int i = 0; i < r->numbers; i++)
        oari_free(r->number[i].arg);
    for (int i = 0; i < r->keeps; i++)
        oar_device_free(r->device, r->kept[i], r->stream);
    r->parts = r->numbers = r->keeps = 0;
    r->used = 0;
    r->salt = NULL;
}

/* ---- recording ----------------------------------------------------------- */

static oar_status begin_part(oar_replay *r)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(r->device.index, &cu));
    result = cu->StreamBeginCapture(r->stream, OARI_CU_CAPTURE_THREAD);
    oari_cuda_leave();
    return oari_cuda_check(result, "begin to record a step");
}

static int complete_part(oar_replay *r, const oari_cuda *cu, replay_part *part)
{
    oari_cu_graph graph = NULL;
    int result = cu->StreamEndCapture(r->stream, &graph);

    if (result == OARI_CU_SUCCESS) {
        result = cu->GraphInstantiate(&part->exec, graph, 0);
        cu->GraphDestroy(graph);
    }
    return result;
}

static int launch_graph(const oar_replay *r, const oari_cuda *cu,
                        oari_cu_graph_exec exec)
{
    oari_gpu_interval *traced = oari_gpu_trace_begin(r->device, r->stream);
    int result = cu->GraphLaunch(exec, r->stream);

    oari_gpu_trace_end(traced, result == OARI_CU_SUCCESS ? "replay" : NULL);
    return result;
}

/* Ends a graph and starts it. The replay has the part then, or dropped it. */
static oar_status end_part(oar_replay *r, replay_part part)
{
    const oari_cuda *cu;
    int result;

    oar_status status =
        grow((void **)&r->part, &r->part_room, r->parts, sizeof *r->part);

    if (status == OAR_OK)
        status = oari_cuda_enter(r->device.index, &cu);
    if (status != OAR_OK) {
        drop_arg(&part);
        return status;
    }
    result = complete_part(r, cu, &part);
    if (result == OARI_CU_SUCCESS) {
        r->part[r->parts++] = part;
        result = copy_values(r, cu);
    } else
        drop_arg(&part);
    if (result == OARI_CU_SUCCESS)
        result = launch_graph(r, cu, part.exec);
    oari_cuda_leave();
    return oari_cuda_check(result, "record a step");
}

oar_status oar_replay_cut_with(oar_replay_fn fn, void *arg,
                               void (*drop)(void *arg))
{
    oar_replay *r = recording;
    oar_status status;

    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "replay_cut without a function");
    if (r == NULL) {
        status = fn(arg);
        drop_arg(&(replay_part){ .arg = arg, .drop = drop });
        return status;
    }
    OARI_TRY(end_part(r, (replay_part){ NULL, fn, arg, drop }));
    recording = NULL;
    OARI_TRY(fn(arg));
    recording = r;
    return begin_part(r);
}

oar_status oar_replay_cut(oar_replay_fn fn, void *arg)
{
    return oar_replay_cut_with(fn, arg, NULL);
}

/* Ends a capture that has failed, or whose step has. Returns whether something
 * in it could not be recorded. */
static int abandon_part(oar_replay *r)
{
    oari_cu_graph graph = NULL;
    const oari_cuda *cu;
    int state = 0, result;

    if (oari_cuda_enter(r->device.index, &cu) != OAR_OK)
        return 0;
    if (cu->StreamIsCapturing(r->stream, &state) == OARI_CU_SUCCESS &&
        state != 0) {
        result = cu->StreamEndCapture(r->stream, &graph);
        if (result == OARI_CU_SUCCESS)
            cu->GraphDestroy(graph);
    }
    drop_recording(r, cu);
    oari_cuda_leave();
    return state == INVALIDATED;
}

/* Whether a step has failed because it cannot be recorded. What uses the result
 * of an operation that failed returns OAR_E_ARG and keeps its error. */
static int is_refusal(oar_status status)
{
    if (status == OAR_E_ARG)
        status = oar_last_error()->status;
    return status == OAR_E_UNSUPPORTED || status == OAR_E_GPU;
}

/* Runs the step once while it is recorded. */
static oar_status record_step(oar_replay *r)
{
    oar_status status = begin_part(r);
    char why[sizeof((oar_error *)0)->text];
    int refused;

    if (status != OAR_OK)
        return status;
    recording = r;
    status = r->fn(r->arg);
    if (status == OAR_OK)
        status = end_part(r, (replay_part){ NULL, NULL, NULL, NULL });
    refused = is_refusal(status);
    recording = NULL;
    if (status == OAR_OK) {
        r->state = RECORDED;
        return OAR_OK;
    }
    snprintf(why, sizeof why, "%s", oar_last_error_text());
    if (!abandon_part(r) && !refused)
        return status; /* the step's own error: it may be recorded yet */
    r->state = AS_IT_IS;
    if (r->strict)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "replay: the step cannot be recorded: %s", why);
    oari_log(OAR_LOG_WARN,
             "replay: the step cannot be recorded and runs as it is: %s", why);
    return r->fn(r->arg);
}

/* ---- replaying ----------------------------------------------------------- */

static oar_status start_parts(oar_replay *r)
{
    const oari_cuda *cu;
    int result;

    for (int i = 0; i < r->numbers; i++)
        r->number[i].fill(r->number[i].arg, r->values + r->number[i].at);
    OARI_TRY(oari_cuda_enter(r->device.index, &cu));
    result = copy_values(r, cu);
    for (int i = 0; i < r->parts && result == OARI_CU_SUCCESS; i++) {
        const replay_part *part = &r->part[i];
        oar_status status;

        result = launch_graph(r, cu, part->exec);
        if (result == OARI_CU_SUCCESS && part->then != NULL &&
            (status = part->then(part->arg)) != OAR_OK) {
            oari_cuda_leave();
            return status;
        }
    }
    oari_cuda_leave();
    return oari_cuda_check(result, "replay a step");
}

/* Makes `later` wait for what is on `earlier`. */
static oar_status order_streams(oar_replay *r, void *earlier, void *later)
{
    OARI_TRY(oar_event_record(r->device, r->order, earlier));
    return oar_stream_wait(r->device, later, r->order);
}

oar_status oar_replay_run(oar_replay *r)
{
    void *before;
    oar_status status, ordered;

    if (r == NULL)
        return oari_fail(OAR_E_ARG, "replay_run without a replay");
    if (running)
        return oari_fail(OAR_E_STATE, "replay_run inside of a step");
    if (r->state == AS_IT_IS && r->strict)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "replay: the step could not be recorded");
    before = oar_stream_current(r->device);
    OARI_TRY(order_streams(r, before, r->stream));
    OARI_TRY(oar_stream_set_current(r->device, r->stream));
    running = 1;
    if (r->state == RECORDED)
        status = start_parts(r);
    else if (r->state == AS_IT_IS || r->runs < r->warm)
        status = r->fn(r->arg);
    else
        status = record_step(r);
    running = 0;
    r->runs += status == OAR_OK;
    oar_stream_set_current(r->device, before);
    ordered = order_streams(r, r->stream, before);
    return status != OAR_OK ? status : ordered;
}

int oar_replay_graphs(const oar_replay *r)
{
    return r != NULL && r->state == RECORDED ? r->parts : 0;
}

/* ---- making and ending --------------------------------------------------- */

static int take_stream(oar_replay *r, const oari_cuda *cu)
{
    spare_stream **at = &spares, *found;

    pthread_mutex_lock(&spares_lock);
    while (*at != NULL && (*at)->device != r->device.index)
        at = &(*at)->next;
    if ((found = *at) != NULL)
        *at = found->next;
    pthread_mutex_unlock(&spares_lock);
    if (found == NULL)
        return cu->StreamCreateWithPriority(&r->stream, NON_BLOCKING, 0);
    r->stream = found->stream;
    oari_free(found);
    return OARI_CU_SUCCESS;
}

/* Without memory for the list the stream is left as it is. */
static void give_stream(const oar_replay *r)
{
    spare_stream *spare =
        r->stream != NULL ? oari_alloc(1, sizeof *spare) : NULL;

    if (spare == NULL)
        return;
    spare->stream = r->stream;
    spare->device = r->device.index;
    pthread_mutex_lock(&spares_lock);
    spare->next = spares;
    spares = spare;
    pthread_mutex_unlock(&spares_lock);
}

static oar_status open_replay(oar_replay *r)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(
        oar_device_alloc(r->device, NUMBER_BYTES, (void **)&r->device_values));
    OARI_TRY(oari_cuda_enter(r->device.index, &cu));
    result = take_stream(r, cu);
    if (result == OARI_CU_SUCCESS)
        result = cu->EventCreate(&r->order, UNTIMED);
    for (int k = 0; k < COPIES && result == OARI_CU_SUCCESS; k++)
        result = cu->EventCreate(&r->read[k], UNTIMED);
    if (result == OARI_CU_SUCCESS)
        result = cu->MemHostAlloc((void **)&r->pinned,
                                  (size_t)COPIES * NUMBER_BYTES, 0);
    oari_cuda_leave();
    return oari_cuda_check(result, "make a replay");
}

oar_status oar_replay_create(oar_device device, oar_replay_fn fn, void *arg,
                             const oar_replay_opts *opts, oar_replay **replay)
{
    oar_replay_opts o;
    oar_replay *r;
    oar_status status;

    if (fn == NULL || replay == NULL)
        return oari_fail(OAR_E_ARG,
                         "replay_create without a function or a result");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (o.warm < 0)
        return oari_fail(OAR_E_ARG, "replay_create warm %d: below zero",
                         o.warm);
    OARI_TRY(oari_cuda_only(device, "replay"));
    if ((r = oari_alloc(1, sizeof *r)) == NULL)
        return OAR_E_NOMEM;
    r->device = device;
    r->fn = fn;
    r->arg = arg;
    r->warm = o.warm > 0 ? o.warm : WARM;
    r->strict = o.strict;
    status = open_replay(r);
    if (status == OAR_OK)
        *replay = r;
    else
        oar_replay_destroy(r);
    return status;
}

void oar_replay_destroy(oar_replay *r)
{
    const oari_cuda *cu;

    if (r == NULL)
        return;
    if (oari_cuda_enter(r->device.index, &cu) == OAR_OK) {
        if (r->stream != NULL)
            cu->StreamSynchronize(r->stream);
        drop_recording(r, cu);
        for (int k = 0; k < COPIES; k++)
            if (r->read[k] != NULL)
                cu->EventDestroy(r->read[k]);
        if (r->order != NULL)
            cu->EventDestroy(r->order);
        if (r->pinned != NULL)
            cu->MemFreeHost(r->pinned);
        oar_device_free(r->device, r->device_values, r->stream);
        give_stream(r);
        oari_cuda_leave();
    }
    oari_free(r->part);
    oari_free(r->number);
    oari_free(r->kept);
    oari_free(r);
}
