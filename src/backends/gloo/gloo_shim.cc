// SPDX-License-Identifier: Apache-2.0
// gloo_shim: see gloo_shim.h. This file and gloo_ranks.h are the only C++ of
// the library.
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
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
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
};

struct gloo_request {
    Buffer buffer;
    bool sends;
};

namespace
{

// Ten years. The core keeps the deadlines: in Gloo, one wait that runs out of
// time ends all connections.
const milliseconds forever = std::chrono::hours(24 * 3650);

// Runs body. If it throws, writes the exception into why and returns -1.
template <class Body> int guarded(char *why, Body body)
{
    try {
        body();
        return 0;
    } catch (const std::exception &e) {
        std::snprintf(why, GLOO_WHY, "%s", e.what());
    } catch (...) {
        std::snprintf(why, GLOO_WHY, "an exception of unknown type");
    }
    return -1;
}

// ---- rendezvous -------------------------------------------------------------

// Our store, with the interface that Gloo wants.
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
auto connect_mesh(Context &context, const std::shared_ptr<Store> &store,
                  Device &device, int)
    -> decltype(context.connectFullMesh(store, device))
{
    return context.connectFullMesh(store, device);
}
template <class Context, class Store>
void connect_mesh(Context &context, const std::shared_ptr<Store> &store,
                  Device &device, long)
{
    context.connectFullMesh(*store, device);
}

// Connects all ranks. Returns only when all others have connected too: a rank
// that left earlier would close connections that they still wait for.
void connect_ranks(gloo_mesh *mesh, const gloo_mesh_opts *opts)
{
    milliseconds timeout =
        opts->timeout_ms > 0 ? milliseconds(opts->timeout_ms) : forever;
    gloo::transport::tcp::attr here;

    here.hostname = opts->address;
    mesh->device = gloo::transport::tcp::CreateDevice(here);
    mesh->context = std::make_shared<Ranks>(opts->rank, opts->ranks);
    // For a first connection Gloo waits five times as long as it is told.
    mesh->context->setTimeout(std::max(timeout / 5, milliseconds(1)));
    connect_mesh(*mesh->context,
                 std::make_shared<Rendezvous>(opts->store, opts->prefix,
                                              opts->timeout_ms),
                 mesh->device, 0);
    mesh->context->make_endable();

    gloo::BarrierOptions all_connected(mesh->context);
    all_connected.setTimeout(timeout);
    gloo::barrier(all_connected);
    mesh->context->setTimeout(forever);
}

// ---- collectives ------------------------------------------------------------

using Bytes = uint8_t;

Bytes *bytes_at(void *base, size_t offset)
{
    return static_cast<Bytes *>(base) + offset;
}

// The reduction function, as Gloo calls it. It uses the task, which lives at
// least as long as the collective.
auto reducer(const gloo_task *task)
{
    return [task](void *c, const void *a, const void *b, size_t count) {
        task->combine(task->combine_arg, c, a, b, count);
    };
}

void barrier(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::BarrierOptions o(mesh->context);

    o.setTag(task->tag);
    gloo::barrier(o);
}

void broadcast(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::BroadcastOptions o(mesh->context);

    o.setTag(task->tag);
    o.setRoot(task->root);
    o.setOutput(static_cast<Bytes *>(task->out), task->out_count * task->unit);
    gloo::broadcast(o);
}

template <class T>
void allreduce(const gloo_mesh *mesh, const gloo_task *task, void *out,
               size_t count)
{
    gloo::AllreduceOptions o(mesh->context);

    o.setTag(task->tag);
    o.setAlgorithm(task->algorithm == GLOO_ALLREDUCE_BCUBE
                       ? gloo::AllreduceOptions::Algorithm::BCUBE
                       : gloo::AllreduceOptions::Algorithm::RING);
    if (task->in != out)
        o.setInput(static_cast<T *>(task->in), count);
    o.setOutput(static_cast<T *>(out), count);
    o.setReduceFunction(reducer(task));
    gloo::allreduce(o);
}

// On ranks other than the root, partial results go to the scratch memory.
template <class T> void reduce(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::ReduceOptions o(mesh->context);
    void *out = task->out != nullptr ? task->out : task->scratch;

    o.setTag(task->tag);
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

    o.setTag(task->tag);
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

    o.setTag(task->tag);
    o.setRoot(task->root);
    if (mesh->context->rank == task->root) {
        for (int r = 0; r < mesh->context->size; r++)
            parts.push_back(bytes_at(task->in, static_cast<size_t>(r) * part));
        o.setInputs(parts, part);
    }
    o.setOutput(static_cast<Bytes *>(task->out), part);
    gloo::scatter(o);
}

void *part_of_rank(const gloo_mesh *mesh, const gloo_task *task)
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

    o.setTag(task->tag);
    if (task->in != part_of_rank(mesh, task))
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

    o.setTag(task->tag);
    if (task->in_count != 0 && task->in != part_of_rank(mesh, task))
        o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    o.setOutput(static_cast<Bytes *>(task->out),
                in_bytes<size_t>(mesh, task->out_counts, task->unit));
    gloo::allgatherv(o);
}

void alltoall(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AlltoallOptions o(mesh->context);

    o.setTag(task->tag);
    o.setInput(static_cast<Bytes *>(task->in), task->in_count * task->unit);
    o.setOutput(static_cast<Bytes *>(task->out), task->out_count * task->unit);
    gloo::alltoall(o);
}

void alltoallv(const gloo_mesh *mesh, const gloo_task *task)
{
    gloo::AlltoallvOptions o(mesh->context);

    o.setTag(task->tag);
    o.setInput(static_cast<Bytes *>(task->in),
               in_bytes<int64_t>(mesh, task->in_counts, task->unit));
    o.setOutput(static_cast<Bytes *>(task->out),
                in_bytes<int64_t>(mesh, task->out_counts, task->unit));
    gloo::alltoallv(o);
}

// Sums everything everywhere; each rank then keeps its part.
template <class T>
void reduce_scatter(const gloo_mesh *mesh, const gloo_task *task)
{
    size_t rank = static_cast<size_t>(mesh->context->rank);
    const T *sum = static_cast<const T *>(task->scratch);

    allreduce<T>(mesh, task, task->scratch, task->in_count);
    std::memcpy(task->out, sum + rank * task->out_count,
                task->out_count * sizeof(T));
}

template <class T> void run_reduction(const gloo_mesh *m, const gloo_task *t)
{
    switch (t->algorithm) {
    case GLOO_ALLREDUCE_RING:
    case GLOO_ALLREDUCE_BCUBE: return allreduce<T>(m, t, t->out, t->out_count);
    case GLOO_REDUCE_RING: return reduce<T>(m, t);
    case GLOO_REDUCE_SCATTER_ALLREDUCE: return reduce_scatter<T>(m, t);
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
    default: throw std::logic_error("elements of an unknown size");
    }
}

void run(const gloo_mesh *m, const gloo_task *t)
{
    switch (t->algorithm) {
    case GLOO_BARRIER_TREE: return barrier(m, t);
    case GLOO_BROADCAST_TREE: return broadcast(m, t);
    case GLOO_GATHER_DIRECT: return gather(m, t);
    case GLOO_SCATTER_DIRECT: return scatter(m, t);
    case GLOO_ALLGATHER_RING:
        return t->out_counts != nullptr ? allgatherv(m, t) : allgather(m, t);
    case GLOO_ALLTOALL_PAIRS:
        return t->in_counts != nullptr ? alltoallv(m, t) : alltoall(m, t);
    default: return run_by_unit(m, t);
    }
}

// ---- messages ---------------------------------------------------------------

// A slot that no collective of Gloo uses: theirs have 1 to 8 in the top byte.
uint64_t message_slot(uint32_t slot)
{
    return UINT64_C(0x7f) << 56 | slot;
}

} // namespace

// ---- the C interface --------------------------------------------------------

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char *gloo_version(void)
{
    return "gloo " TEXT(GLOO_VERSION_MAJOR) "." TEXT(
        GLOO_VERSION_MINOR) "." TEXT(GLOO_VERSION_PATCH);
}

int gloo_mesh_open(const gloo_mesh_opts *opts, gloo_mesh **mesh,
                   char why[GLOO_WHY])
{
    std::unique_ptr<gloo_mesh> made;

    if (guarded(why, [&] {
            made.reset(new gloo_mesh);
            connect_ranks(made.get(), opts);
        }) != 0) {
        gloo_mesh_close(made.release());
        return -1;
    }
    *mesh = made.release();
    return 0;
}

void gloo_mesh_disconnect(gloo_mesh *mesh)
{
    mesh->context->end();
}

void gloo_mesh_close(gloo_mesh *mesh)
{
    char why[GLOO_WHY];

    if (mesh == nullptr)
        return;
    guarded(why, [&] { mesh->context.reset(); });
    guarded(why, [&] { mesh->device.reset(); });
    delete mesh;
}

size_t gloo_scratch_bytes(const gloo_task *task)
{
    switch (task->algorithm) {
    case GLOO_REDUCE_RING:
        return task->out == nullptr ? task->in_count * task->unit : 0;
    case GLOO_REDUCE_SCATTER_ALLREDUCE: return task->in_count * task->unit;
    default: return 0;
    }
}

int gloo_mesh_run(gloo_mesh *mesh, const gloo_task *task, char why[GLOO_WHY])
{
    return guarded(why, [&] { run(mesh, task); });
}

gloo_request *gloo_mesh_start(gloo_mesh *mesh, int sends, int peer,
                              uint32_t slot, void *data, size_t bytes,
                              char why[GLOO_WHY])
{
    std::unique_ptr<gloo_request> request;

    int failed = guarded(why, [&] {
        request.reset(new gloo_request{
            mesh->context->createUnboundBuffer(data, bytes), sends != 0 });
        if (sends)
            request->buffer->send(peer, message_slot(slot));
        else
            request->buffer->recv(peer, message_slot(slot));
    });
    return failed ? nullptr : request.release();
}

int gloo_request_wait(gloo_request *request, char why[GLOO_WHY])
{
    bool done = false;

    if (guarded(why, [&] {
            done = request->sends ? request->buffer->waitSend(forever)
                                  : request->buffer->waitRecv(forever);
        }) != 0)
        return -1;
    return done ? 0 : 1;
}

void gloo_request_wake(gloo_request *request)
{
    char why[GLOO_WHY];

    guarded(why, [&] {
        if (request->sends)
            request->buffer->abortWaitSend();
        else
            request->buffer->abortWaitRecv();
    });
}

void gloo_request_free(gloo_request *request)
{
    delete request;
}
