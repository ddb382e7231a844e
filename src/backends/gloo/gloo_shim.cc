// SPDX-License-Identifier: Apache-2.0
// gloo_shim: see gloo_shim.h. The only C++ of the library, with gloo_ranks.h.
#include "backends/gloo/gloo_shim.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "backends/gloo/gloo_ranks.h"

using Device = std::shared_ptr<gloo::transport::Device>;

using Context = std::shared_ptr<Ranks>;

struct gloo_mesh {
    Device device;
    Context context;
    Context old; // for the first generation; or none
};

struct gloo_slip {
    Buffer buffer;
    bool sends;
};

namespace
{

// Ten years. Deadlines are the core's business: in Gloo, one wait that runs out
// of time ends all connections.
const milliseconds forever = std::chrono::hours(24 * 3650);

void explain(char *why, const char *text)
{
    std::snprintf(why, GLOO_WHY, "%s", text);
}

// Runs body; what it throws becomes why and -1.
template <class Body> int guarded(char *why, Body body)
{
    try {
        body();
        return 0;
    } catch (const std::exception &e) {
        explain(why, e.what());
    } catch (...) {
        explain(why, "an exception of unknown type");
    }
    return -1;
}

// ---- rendezvous -------------------------------------------------------------

// Our store, as Gloo wants to see it.
class Rendezvous : public gloo::rendezvous::Store
{
  public:
    Rendezvous(oar_store *store, const char *prefix, int64_t timeout_ms)
        : store_(store), prefix_(prefix), timeout_ms_(timeout_ms)
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        check(
            oar_store_set(store_, name(key).c_str(), data.data(), data.size()));
    }

    std::vector<char> get(const std::string &key) override
    {
        void *value = nullptr;
        size_t bytes = 0;

        check(oar_store_get(store_, name(key).c_str(), timeout_ms_, &value,
                            &bytes));
        std::unique_ptr<void, void (*)(void *)> owner(value, oar_free);
        const char *first = static_cast<const char *>(value);
        return std::vector<char>(first, first + bytes);
    }

    void wait(const std::vector<std::string> &keys,
              const milliseconds &) override
    {
        wait(keys);
    }

    void wait(const std::vector<std::string> &keys) override
    {
        std::vector<std::string> names;
        std::vector<const char *> texts;

        for (const std::string &key : keys)
            names.push_back(name(key));
        for (const std::string &text : names)
            texts.push_back(text.c_str());
        check(oar_store_wait(store_, static_cast<int>(texts.size()),
                             texts.data(), timeout_ms_));
    }

  private:
    std::string name(const std::string &key) const
    {
        return prefix_ + "/" + key;
    }

    static void check(oar_status status)
    {
        if (status != OAR_OK)
            throw std::runtime_error(oar_last_error_text());
    }

    oar_store *store_;
    std::string prefix_;
    int64_t timeout_ms_;
};

// Newer releases share the store, older ones borrow it.
template <class Context, class Store>
auto meet(Context &context, const std::shared_ptr<Store> &store, Device &device,
          int) -> decltype(context.connectFullMesh(store, device))
{
    return context.connectFullMesh(store, device);
}
template <class Context, class Store>
void meet(Context &context, const std::shared_ptr<Store> &store, Device &device,
          long)
{
    context.connectFullMesh(*store, device);
}

// Who leaves before all others have connected would close what they still wait
// for.
void await_all(const Context &context, milliseconds timeout)
{
    gloo::BarrierOptions o(context);

    o.setTimeout(timeout);
    gloo::barrier(o);
}

// For a first connection Gloo waits five times as long as it is told. In the
// first generation the same time ends waits in collectives: there it is left.
milliseconds patience_for(milliseconds timeout, bool old)
{
    return old ? timeout : std::max(timeout / 5, milliseconds(1));
}

Context connect(Device &device, const gloo_site *site, bool old)
{
    milliseconds timeout =
        site->timeout_ms > 0 ? milliseconds(site->timeout_ms) : forever;
    Context context = std::make_shared<Ranks>(site->rank, site->ranks);
    std::string prefix = std::string(site->prefix) + (old ? "/old" : "/new");

    context->setTimeout(patience_for(timeout, old));
    meet(*context,
         std::make_shared<Rendezvous>(site->store, prefix.c_str(),
                                      site->timeout_ms),
         device, 0);
    context->make_endable();
    await_all(context, timeout);
    context->setTimeout(forever);
    return context;
}

// What the first generation sends stops a connection until its receiver has
// called the same collective: so it has connections of its own.
void connect_all(gloo_mesh *mesh, const gloo_site *site)
{
    gloo::transport::tcp::attr here;

    here.hostname = site->address;
    mesh->device = gloo::transport::tcp::CreateDevice(here);
    mesh->context = connect(mesh->device, site, false);
    if (site->old)
        mesh->old = connect(mesh->device, site, true);
}

// ---- the second generation --------------------------------------------------

using Bytes = uint8_t;

Bytes *bytes_at(void *base, size_t offset)
{
    return static_cast<Bytes *>(base) + offset;
}

template <class Options> void label(Options &o, const gloo_task *task)
{
    o.setTag(task->tag);
}

// The reduction as Gloo calls it. It outlives the call: it is the task's.
auto reducer(const gloo_task *task)
{
    return [task](void *c, const void *a, const void *b, size_t count) {
        task->combine(task->how, c, a, b, count);
    };
}

void barrier(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::BarrierOptions o(mesh->context);

    label(o, task);
    gloo::barrier(o);
}

void broadcast(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::BroadcastOptions o(mesh->context);

    label(o, task);
    o.setRoot(task->root);
    o.setOutput(static_cast<Bytes *>(task->out), task->out_count * task->unit);
    gloo::broadcast(o);
}

template <class T>
void allreduce_in(const gloo_mesh *mesh, const gloo_task *task, void *out,
                  size_t count)
{
    gloo::AllreduceOptions o(mesh->context);

    label(o, task);
    o.setAlgorithm(task->way == GLOO_ALLREDUCE_BCUBE
                       ? gloo::AllreduceOptions::Algorithm::BCUBE
                       : gloo::AllreduceOptions::Algorithm::RING);
    if (task->in != out)
        o.setInput(static_cast<T *>(task->in), count);
    o.setOutput(static_cast<T *>(out), count);
    o.setReduceFunction(reducer(task));
    gloo::allreduce(o);
}

template <class T> void allreduce(const gloo_mesh *mesh, const gloo_task *task)
{
    allreduce_in<T>(mesh, task, task->out, task->out_count);
}

// On ranks that are not the root the partial results are in the scratch.
template <class T> void reduce(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::ReduceOptions o(mesh->context);
    void *out = task->out != nullptr ? task->out : task->scratch;

    label(o, task);
    o.setRoot(task->root);
    if (task->in != out)
        o.setInput(static_cast<T *>(task->in), task->in_count);
    o.setOutput(static_cast<T *>(out), task->in_count);
    o.setReduceFunction(reducer(task));
    gloo::reduce(o);
}

void gather(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::GatherOptions o(mesh->context);

    label(o, task);
    o.setRoot(task->root);
    o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    if (mesh->context->rank == task->root)
        o.setOutput(static_cast<Bytes *>(task->out),
                    task->out_count * task->unit);
    gloo::gather(o);
}

void scatter(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::ScatterOptions o(mesh->context);
    size_t part = task->out_count * task->unit;
    std::vector<Bytes *> parts;

    label(o, task);
    o.setRoot(task->root);
    if (mesh->context->rank == task->root) {
        for (int r = 0; r < mesh->context->size; r++)
            parts.push_back(bytes_at(task->in, static_cast<size_t>(r) * part));
        o.setInputs(parts, part);
    }
    o.setOutput(static_cast<Bytes *>(task->out), part);
    gloo::scatter(o);
}

void *own_part(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t before = 0;
    int rank = mesh->context->rank;

    for (int r = 0; r < rank; r++)
        before +=
            task->out_counts != nullptr ? task->out_counts[r] : task->in_count;
    return bytes_at(task->out, before * task->unit);
}

void allgather(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AllgatherOptions o(mesh->context);

    label(o, task);
    if (task->in != own_part(mesh, task))
        o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    o.setOutput(static_cast<Bytes *>(task->out), task->out_count * task->unit);
    gloo::allgather(o);
}

template <class Count>
std::vector<Count> in_bytes(const gloo_mesh *mesh, const size_t *counts,
                            size_t unit)
{
    std::vector<Count> list;

    for (int r = 0; r < mesh->context->size; r++)
        list.push_back(static_cast<Count>(counts[r] * unit));
    return list;
}

void allgatherv(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AllgathervOptions o(mesh->context);

    label(o, task);
    if (task->in_count != 0 && task->in != own_part(mesh, task))
        o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    o.setOutput(static_cast<Bytes *>(task->out),
                in_bytes<size_t>(mesh, task->out_counts, task->unit));
    gloo::allgatherv(o);
}

void alltoall(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AlltoallOptions o(mesh->context);

    label(o, task);
    o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    o.setOutput(static_cast<Bytes *>(task->out), task->out_count * task->unit);
    gloo::alltoall(o);
}

void alltoallv(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AlltoallvOptions o(mesh->context);

    label(o, task);
    o.setInput(static_cast<Bytes *>(task->in),
               in_bytes<int64_t>(mesh, task->in_counts, task->unit));
    o.setOutput(static_cast<Bytes *>(task->out),
                in_bytes<int64_t>(mesh, task->out_counts, task->unit));
    gloo::alltoallv(o);
}

// ---- the first generation ---------------------------------------------------

// Its reductions are plain functions; which one, they find here.
thread_local const gloo_task *reducing;

template <class T> void combine_old(T *a, const T *b, size_t count)
{
    reducing->combine(reducing->how, a, a, b, count);
}

template <class T>
const gloo::ReductionFunction<T> old_function(gloo::CUSTOM, &combine_old<T>);

// An object of the first generation does not wait for all it sends; when it is
// destroyed, what is not sent yet is lost, and what then comes for it stops the
// connection. Each pair's messages stay in order, so one more to and from every
// peer sees to it that they are through.
void flush(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AlltoallOptions o(mesh->old);
    size_t ranks = static_cast<size_t>(mesh->old->size);
    std::vector<Bytes> in(ranks), out(ranks);

    label(o, task);
    o.setInput(in.data(), ranks);
    o.setOutput(out.data(), ranks);
    gloo::alltoall(o);
}

void run_old(const gloo_mesh *mesh, const gloo_task *task,
             gloo::Algorithm &object)
{
    reducing = task;
    object.run();
    flush(mesh, task);
}

template <class T, template <class> class Algorithm>
void allreduce_old(const gloo_mesh *mesh, const gloo_task *task)
{
    T *out = static_cast<T *>(task->out);

    if (task->in != task->out)
        std::memcpy(out, task->in, task->out_count * sizeof(T));
    Algorithm<T> object(mesh->old, std::vector<T *>{ out },
                        static_cast<int>(task->out_count), &old_function<T>);
    run_old(mesh, task, object);
}

template <class T> using Halving = gloo::AllreduceHalvingDoubling<T>;
template <class T> using Chunked = gloo::AllreduceRingChunked<T>;
template <class T> using OldRing = gloo::AllreduceRing<T>;
template <class T> using OldBcube = gloo::AllreduceBcube<T>;

void broadcast_old(const gloo_mesh *mesh, const gloo_task *task)
{
    Bytes *out = static_cast<Bytes *>(task->out);
    gloo::BroadcastOneToAll<Bytes> object(
        mesh->old, std::vector<Bytes *>{ out },
        static_cast<int>(task->out_count * task->unit), task->root);

    run_old(mesh, task, object);
}

void allgather_old(const gloo_mesh *mesh, const gloo_task *task)
{
    std::vector<const Bytes *> in{ static_cast<const Bytes *>(task->in) };
    gloo::AllgatherRing<Bytes> object(
        mesh->old, in, static_cast<Bytes *>(task->out),
        static_cast<int>(task->in_count * task->unit));

    run_old(mesh, task, object);
}

template <class Barrier>
void barrier_old(const gloo_mesh *mesh, const gloo_task *task)
{
    Barrier object(mesh->old);

    run_old(mesh, task, object);
}

// It writes its result over what it may still be sending; so it is only given
// as much as a socket takes at once.
enum { PIECE_BYTES = 16384 };

size_t piece_of(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t row = task->unit * static_cast<size_t>(mesh->old->size);
    size_t piece = PIECE_BYTES / row;

    return piece == 0 ? 1 : piece < task->out_count ? piece : task->out_count;
}

template <class T>
void scatter_piece(const gloo_mesh *mesh, const gloo_task *task, size_t at,
                   size_t count)
{
    size_t ranks = static_cast<size_t>(mesh->old->size);
    T *row = static_cast<T *>(task->scratch);
    const T *in = static_cast<const T *>(task->in);
    std::vector<int> counts(ranks, static_cast<int>(count));

    for (size_t r = 0; r < ranks; r++)
        std::memcpy(row + r * count, in + r * task->out_count + at,
                    count * sizeof(T));
    gloo::ReduceScatterHalvingDoubling<T> object(
        mesh->old, std::vector<T *>{ row }, static_cast<int>(ranks * count),
        counts, &old_function<T>);
    run_old(mesh, task, object);
    std::memcpy(static_cast<T *>(task->out) + at, row, count * sizeof(T));
}

template <class T>
void reduce_scatter_old(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t piece = piece_of(mesh, task);

    for (size_t at = 0; at < task->out_count; at += piece) {
        size_t left = task->out_count - at;
        scatter_piece<T>(mesh, task, at, left < piece ? left : piece);
    }
}

// All of the sum, of which this rank keeps its part.
template <class T>
void reduce_scatter_whole(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t rank = static_cast<size_t>(mesh->context->rank);
    const T *sum = static_cast<const T *>(task->scratch);

    allreduce_in<T>(mesh, task, task->scratch, task->in_count);
    std::memcpy(task->out, sum + rank * task->out_count,
                task->out_count * sizeof(T));
}

// ---- which ------------------------------------------------------------------

template <class T> void run_reduction(const gloo_mesh *m, const gloo_task *t)
{
    switch (t->way) {
    case GLOO_ALLREDUCE_RING:
    case GLOO_ALLREDUCE_BCUBE: return allreduce<T>(m, t);
    case GLOO_ALLREDUCE_HALVING: return allreduce_old<T, Halving>(m, t);
    case GLOO_ALLREDUCE_CHUNKED: return allreduce_old<T, Chunked>(m, t);
    case GLOO_ALLREDUCE_OLD_RING: return allreduce_old<T, OldRing>(m, t);
    case GLOO_ALLREDUCE_OLD_BCUBE: return allreduce_old<T, OldBcube>(m, t);
    case GLOO_REDUCE_RING: return reduce<T>(m, t);
    case GLOO_SCATTERED_HALVING: return reduce_scatter_old<T>(m, t);
    case GLOO_SCATTERED_WHOLE: return reduce_scatter_whole<T>(m, t);
    default: throw std::logic_error("not a reduction");
    }
}

void run_by_unit(const gloo_mesh *mesh, const gloo_task *task)
{
    switch (task->unit) {
    case 1: return run_reduction<uint8_t>(mesh, task);
    case 2: return run_reduction<uint16_t>(mesh, task);
    case 4: return run_reduction<uint32_t>(mesh, task);
    case 8: return run_reduction<uint64_t>(mesh, task);
    default: throw std::logic_error("elements of an odd size");
    }
}

void run(const gloo_mesh *m, const gloo_task *t)
{
    switch (t->way) {
    case GLOO_BARRIER_TREE: return barrier(m, t);
    case GLOO_BARRIER_ALL: return barrier_old<gloo::BarrierAllToAll>(m, t);
    case GLOO_BARRIER_ONE: return barrier_old<gloo::BarrierAllToOne>(m, t);
    case GLOO_BROADCAST_TREE: return broadcast(m, t);
    case GLOO_BROADCAST_STAR: return broadcast_old(m, t);
    case GLOO_GATHER_DIRECT: return gather(m, t);
    case GLOO_SCATTER_DIRECT: return scatter(m, t);
    case GLOO_ALLGATHER_RING:
        return t->out_counts != nullptr ? allgatherv(m, t) : allgather(m, t);
    case GLOO_ALLGATHER_OLD_RING:
        return t->out_counts != nullptr ? allgatherv(m, t)
                                        : allgather_old(m, t);
    case GLOO_ALLTOALL_PAIRS:
        return t->in_counts != nullptr ? alltoallv(m, t) : alltoall(m, t);
    default: return run_by_unit(m, t);
    }
}

// ---- messages ---------------------------------------------------------------

// Apart from those of Gloo's collectives, which have 1 to 8 in the top byte.
uint64_t message_slot(uint32_t slot)
{
    return UINT64_C(0x7f) << 56 | slot;
}

gloo_slip *begin(gloo_mesh *mesh, int peer, uint32_t slot, void *data,
                 size_t bytes, bool sends, char *why)
{
    std::unique_ptr<gloo_slip> slip;

    int failed = guarded(why, [&] {
        slip.reset(new gloo_slip{
            mesh->context->createUnboundBuffer(data, bytes), sends });
        if (sends)
            slip->buffer->send(peer, message_slot(slot));
        else
            slip->buffer->recv(peer, message_slot(slot));
    });
    return failed ? nullptr : slip.release();
}

} // namespace

// ---- what C calls -----------------------------------------------------------

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char *gloo_version(void)
{
    return "gloo " TEXT(GLOO_VERSION_MAJOR) "." TEXT(
        GLOO_VERSION_MINOR) "." TEXT(GLOO_VERSION_PATCH);
}

int gloo_mesh_open(const gloo_site *site, gloo_mesh **mesh, char why[GLOO_WHY])
{
    std::unique_ptr<gloo_mesh> made;

    if (guarded(why, [&] {
            made.reset(new gloo_mesh);
            connect_all(made.get(), site);
        }) != 0) {
        gloo_mesh_close(made.release());
        return -1;
    }
    *mesh = made.release();
    return 0;
}

void gloo_mesh_spoil(gloo_mesh *mesh)
{
    mesh->context->end();
    if (mesh->old)
        mesh->old->end();
}

void gloo_mesh_close(gloo_mesh *mesh)
{
    char why[GLOO_WHY];

    if (mesh == nullptr)
        return;
    guarded(why, [&] { mesh->old.reset(); });
    guarded(why, [&] { mesh->context.reset(); });
    guarded(why, [&] { mesh->device.reset(); });
    delete mesh;
}

int gloo_is_old(gloo_way way)
{
    switch (way) {
    case GLOO_BARRIER_ALL:
    case GLOO_BARRIER_ONE:
    case GLOO_BROADCAST_STAR:
    case GLOO_ALLREDUCE_HALVING:
    case GLOO_ALLREDUCE_CHUNKED:
    case GLOO_ALLREDUCE_OLD_RING:
    case GLOO_ALLREDUCE_OLD_BCUBE:
    case GLOO_ALLGATHER_OLD_RING:
    case GLOO_SCATTERED_HALVING: return 1;
    default: return 0;
    }
}

size_t gloo_scratch_bytes(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t ranks = static_cast<size_t>(mesh->context->size);

    switch (task->way) {
    case GLOO_REDUCE_RING:
        return task->out == nullptr ? task->in_count * task->unit : 0;
    case GLOO_SCATTERED_WHOLE: return task->in_count * task->unit;
    case GLOO_SCATTERED_HALVING:
        return piece_of(mesh, task) * ranks * task->unit;
    default: return 0;
    }
}

int gloo_mesh_run(gloo_mesh *mesh, const gloo_task *task, char why[GLOO_WHY])
{
    return guarded(why, [&] { run(mesh, task); });
}

gloo_slip *gloo_mesh_send(gloo_mesh *mesh, int peer, uint32_t slot, void *data,
                          size_t bytes, char why[GLOO_WHY])
{
    return begin(mesh, peer, slot, data, bytes, true, why);
}

gloo_slip *gloo_mesh_recv(gloo_mesh *mesh, int peer, uint32_t slot, void *data,
                          size_t bytes, char why[GLOO_WHY])
{
    return begin(mesh, peer, slot, data, bytes, false, why);
}

int gloo_slip_wait(gloo_slip *slip, char why[GLOO_WHY])
{
    bool done = false;

    if (guarded(why, [&] {
            done = slip->sends ? slip->buffer->waitSend(forever)
                               : slip->buffer->waitRecv(forever);
        }) != 0)
        return -1;
    return done ? 0 : 1;
}

void gloo_slip_wake(gloo_slip *slip)
{
    char why[GLOO_WHY];

    guarded(why, [&] {
        if (slip->sends)
            slip->buffer->abortWaitSend();
        else
            slip->buffer->abortWaitRecv();
    });
}

void gloo_slip_free(gloo_slip *slip)
{
    delete slip;
}
