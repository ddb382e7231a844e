/* SPDX-License-Identifier: Apache-2.0 */
/* standin/graph.c: captures and graphs of the stand-in. A graph is a list of
 * what was put on the captured streams, in the order of the calls, which is one
 * of the orders that a GPU may run it in. A launch is one operation that runs
 * the list. What a capture must not meet is the error that the driver gives:
 * waiting, allocating, memory that is not pinned, events from outside. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "standin/driver.h"

enum { ACTIVE = 1, INVALIDATED = 2 }; /* CUstreamCaptureStatus */
enum { UNJOINED = 904, ISOLATION = 905 };

typedef struct node {
    operation_fn run;
    void *arg;
} node;

/* A graph, a capture of which one comes, and what was instantiated of it are
 * this; each is counted. */
struct graph {
    graph *next; /* of those that were captured and not destroyed */
    uint64_t number;
    int refs;
    node *nodes;
    int count, room;
    /* while it is captured */
    int capturing, spoiled, unjoined, mode;
    stream *origin;
    pthread_t thread;
};

typedef struct graph_launch {
    graph *what;
} graph_launch;

static graph *graphs;
static uint64_t captures;
static _Thread_local int thread_mode = OARI_CU_CAPTURE_GLOBAL;

/* ---- counting ------------------------------------------------------------ */

/* Locked. */
static void release_graph(graph *g)
{
    graph **link = &graphs;
    if (--g->refs > 0)
        return;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    for (int i = 0; i < g->count; i++)
        free(g->nodes[i].arg);
    free(g->nodes);
    free(g);
}

static graph *find_graph(const void *handle)
{
    graph *g = graphs;
    while (g && (g != handle || g->capturing))
        g = g->next;
    return g;
}

uint64_t standin_graph_number(const graph *g)
{
    return g ? g->number : 0;
}

/* NULL: that capture is over. */
static graph *find_capture(uint64_t number)
{
    graph *g = graphs;
    while (g && (g->number != number || !g->capturing))
        g = g->next;
    return g;
}

void standin_check_graphs(const block *b)
{
    uintptr_t start = (uintptr_t)b->view, end = start + b->bytes;
    for (graph *g = graphs; g; g = g->next)
        for (int i = 0; i < g->count; i++) {
            const char *arg = g->nodes[i].arg;
            size_t bytes = arg ? malloc_usable_size(g->nodes[i].arg) : 0;
            for (size_t at = 0; at + 8 <= bytes; at += 8) {
                uint64_t value;
                memcpy(&value, arg + at, 8);
                if (value >= start && value < end)
                    standin_die("memory of %zu bytes is freed while operation "
                                "%d of a graph uses it",
                                b->bytes, i);
            }
        }
}

/* ---- capturing ----------------------------------------------------------- */

int standin_spoil_capture(graph *g)
{
    g->spoiled = 1;
    return OARI_CU_CAPTURE_UNSUPPORTED;
}

void standin_capture(graph *g, operation_fn fn, void *arg)
{
    if (!fn) {
        free(arg);
        return;
    }
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 16;
        g->nodes = realloc(g->nodes, sizeof *g->nodes * (size_t)g->room);
    }
    g->nodes[g->count++] = (node){ fn, arg };
}

int standin_unsafe(void)
{
    int bad = 0;
    pthread_mutex_lock(&standin_lock);
    for (graph *g = graphs; g && thread_mode != OARI_CU_CAPTURE_RELAXED;
         g = g->next)
        if (g->capturing && g->mode != OARI_CU_CAPTURE_RELAXED &&
            (pthread_equal(g->thread, pthread_self()) ||
             (g->mode == OARI_CU_CAPTURE_GLOBAL &&
              thread_mode == OARI_CU_CAPTURE_GLOBAL)))
            bad = standin_spoil_capture(g);
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

/* Declared in event.c. */
int standin_capture_wait(stream *s, operation *mark);

/* Locked. A stream that waits for an event of a capture comes into it. */
int standin_capture_wait(stream *s, operation *mark)
{
    uint64_t number = standin_captured_in(mark);
    graph *from = find_capture(number), **in = standin_stream_capture(s);
    if (number && !from)
        return OARI_CU_SUCCESS; /* of a capture that is over */
    if (*in && *in != from) {
        (*in)->spoiled = 1;
        return ISOLATION;
    }
    if (!*in) {
        *in = from;
        standin_release_locked(standin_captured_operation(s));
    } else
        *standin_joined(mark) = 1;
    return OARI_CU_SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = thread_mode;
    if (*mode < OARI_CU_CAPTURE_GLOBAL || *mode > OARI_CU_CAPTURE_RELAXED)
        return OARI_CU_INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return OARI_CU_SUCCESS;
}

int cuStreamBeginCapture_v2(oari_cu_stream handle, int mode)
{
    context *c;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (mode < OARI_CU_CAPTURE_GLOBAL || mode > OARI_CU_CAPTURE_RELAXED)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    if (!s)
        bad = CU_INVALID_HANDLE;
    else if (standin_is_standard(s))
        bad = OARI_CU_CAPTURE_UNSUPPORTED;
    else if (*standin_stream_capture(s))
        bad = CU_ILLEGAL_STATE;
    else {
        graph *g = calloc(1, sizeof *g);
        g->number = ++captures;
        g->refs = 1;
        g->capturing = 1;
        g->mode = mode;
        g->origin = s;
        g->thread = pthread_self();
        g->next = graphs;
        graphs = g;
        *standin_stream_capture(s) = g;
        standin_release_locked(standin_captured_operation(s));
    }
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

/* Another stream than the first must have been waited for by one of the
 * capture, behind all that is on it. */
static void leave_capture(stream *s, void *arg)
{
    graph *g = arg;
    if (*standin_stream_capture(s) != g)
        return;
    *standin_stream_capture(s) = NULL;
    if (s != g->origin && !*standin_joined(standin_last(s)))
        g->unjoined = 1;
}

int cuStreamEndCapture(oari_cu_stream handle, oari_cu_graph *made)
{
    context *c;
    graph *g = NULL;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    if (s)
        g = *standin_stream_capture(s);
    if (!g || g->origin != s)
        bad = g ? UNJOINED : CU_ILLEGAL_STATE;
    else if (g->mode != OARI_CU_CAPTURE_RELAXED &&
             !pthread_equal(g->thread, pthread_self()))
        bad = OARI_CU_CAPTURE_WRONG_THREAD;
    else {
        g->capturing = 0;
        standin_each_stream(leave_capture, g);
        bad = g->spoiled    ? OARI_CU_CAPTURE_INVALIDATED
              : g->unjoined ? UNJOINED
                            : OARI_CU_SUCCESS;
        *made = bad ? NULL : g;
        if (bad)
            release_graph(g);
    }
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuStreamIsCapturing(oari_cu_stream handle, int *status)
{
    context *c;
    stream *s;
    graph *g;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    g = s ? *standin_stream_capture(s) : NULL;
    *status = !g ? 0 : g->spoiled ? INVALIDATED : ACTIVE;
    pthread_mutex_unlock(&standin_lock);
    return s ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

/* ---- graphs -------------------------------------------------------------- */

/* What is instantiated is the graph itself, once more. */
int cuGraphInstantiateWithFlags(oari_cu_graph_exec *exec, oari_cu_graph handle,
                                unsigned long long flags)
{
    context *c;
    graph *g;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (flags)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    g = find_graph(handle);
    if (g)
        g->refs++;
    pthread_mutex_unlock(&standin_lock);
    if (g)
        *exec = g;
    return g ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

static int drop(void *handle)
{
    graph *g;
    int bad = standin_begin();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    g = find_graph(handle);
    if (g)
        release_graph(g);
    pthread_mutex_unlock(&standin_lock);
    return g ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

int cuGraphDestroy(oari_cu_graph handle)
{
    return drop(handle);
}

int cuGraphExecDestroy(oari_cu_graph_exec handle)
{
    return drop(handle);
}

static void run_graph(void *arg)
{
    graph *g = ((graph_launch *)arg)->what;
    for (int i = 0; i < g->count; i++)
        g->nodes[i].run(g->nodes[i].arg);
    pthread_mutex_lock(&standin_lock);
    release_graph(g);
    pthread_mutex_unlock(&standin_lock);
}

int cuGraphLaunch(oari_cu_graph_exec handle, oari_cu_stream stream_handle)
{
    context *c;
    graph *g;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    g = find_graph(handle);
    s = standin_stream_locked(c, stream_handle);
    if (!g || !s)
        bad = CU_INVALID_HANDLE;
    else if (*standin_stream_capture(s)) /* a child graph: not here */
        bad = standin_spoil_capture(*standin_stream_capture(s));
    else {
        graph_launch *what = calloc(1, sizeof *what);
        what->what = g;
        g->refs++;
        standin_release_locked(standin_put_locked(s, run_graph, what, NULL));
    }
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

/* ---- functions of the host ----------------------------------------------- */

typedef struct host_call {
    void (*fn)(void *arg);
    void *arg;
} host_call;

static void run_host_call(void *arg)
{
    const host_call *what = arg;
    what->fn(what->arg);
}

int cuLaunchHostFunc(oari_cu_stream stream_handle, void (*fn)(void *arg),
                     void *arg)
{
    context *c;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (!fn)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, stream_handle);
    if (s) {
        host_call *what = calloc(1, sizeof *what);
        *what = (host_call){ fn, arg };
        standin_release_locked(
            standin_put_locked(s, run_host_call, what, NULL));
    }
    pthread_mutex_unlock(&standin_lock);
    return s ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}
