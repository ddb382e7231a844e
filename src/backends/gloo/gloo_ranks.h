// SPDX-License-Identifier: Apache-2.0
// gloo_ranks.h: a Gloo context whose connections can be ended. C++, only for
// gloo_shim.cc.
//
// When connections end, Gloo fails those waits whose block has not started to
// move, but not those whose block is being sent or received at that moment:
// they would never return. So this file tracks all buffers and ends their
// waits.
#ifndef BACKENDS_GLOO_RANKS_H
#define BACKENDS_GLOO_RANKS_H

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

using std::chrono::milliseconds;
using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

namespace
{

class TrackedBuffer;

struct Buffers {
    std::mutex lock;
    std::set<TrackedBuffer *> all;
    bool ended = false;
};

class TrackedBuffer : public gloo::transport::UnboundBuffer
{
  public:
    TrackedBuffer(std::shared_ptr<Buffers> buffers, Buffer buffer)
        : UnboundBuffer(buffer->ptr, buffer->size),
          buffers_(std::move(buffers)), buffer_(std::move(buffer))
    {
        std::lock_guard<std::mutex> guard(buffers_->lock);
        buffers_->all.insert(this);
    }

    ~TrackedBuffer() override
    {
        std::lock_guard<std::mutex> guard(buffers_->lock);
        buffers_->all.erase(this);
    }

    // Ends waits that are in progress and those that start later.
    void end_waits()
    {
        buffer_->abortWaitRecv();
        buffer_->abortWaitSend();
    }

    bool waitRecv(int *rank, milliseconds timeout) override
    {
        return checked(buffer_->waitRecv(rank, timeout));
    }

    bool waitSend(int *rank, milliseconds timeout) override
    {
        return checked(buffer_->waitSend(rank, timeout));
    }

    void abortWaitRecv() override
    {
        buffer_->abortWaitRecv();
    }
    void abortWaitSend() override
    {
        buffer_->abortWaitSend();
    }

    void send(int to, uint64_t slot, size_t offset, size_t bytes) override
    {
        buffer_->send(to, slot, offset, bytes);
    }

    void recv(int from, uint64_t slot, size_t offset, size_t bytes) override
    {
        buffer_->recv(from, slot, offset, bytes);
    }

    void recv(std::vector<int> from, uint64_t slot, size_t offset,
              size_t bytes) override
    {
        buffer_->recv(from, slot, offset, bytes);
    }

  private:
    // Gloo's collectives ignore what a wait returns, so this throws.
    bool checked(bool done)
    {
        std::lock_guard<std::mutex> guard(buffers_->lock);

        if (!done && buffers_->ended)
            throw std::runtime_error("it has ended");
        return done;
    }

    std::shared_ptr<Buffers> buffers_;
    Buffer buffer_;
};

class TrackingContext : public gloo::transport::Context
{
  public:
    TrackingContext(std::shared_ptr<gloo::transport::Context> inner,
                    std::shared_ptr<Buffers> buffers)
        : gloo::transport::Context(inner->rank, inner->size),
          inner_(std::move(inner)), buffers_(std::move(buffers))
    {
    }

    std::unique_ptr<gloo::transport::Pair> &getPair(int peer) override
    {
        return inner_->getPair(peer);
    }

    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override
    {
        return inner_->createPair(peer);
    }

    Buffer createUnboundBuffer(void *data, size_t bytes) override
    {
        return Buffer(new TrackedBuffer(
            buffers_, inner_->createUnboundBuffer(data, bytes)));
    }

  private:
    std::shared_ptr<gloo::transport::Context> inner_;
    std::shared_ptr<Buffers> buffers_;
};

class Ranks : public gloo::rendezvous::Context
{
  public:
    using gloo::rendezvous::Context::Context;

    // Call it when all ranks are connected.
    void make_endable()
    {
        transportContext_ =
            std::make_shared<TrackingContext>(transportContext_, buffers_);
    }

    // Gloo has no call to end connections, but a wait that runs out of time
    // ends them: "all pairs should be signaled and closed in that event"
    // (transport/tcp/context.h). A buffer made later finds them closed.
    void end()
    {
        try {
            char nothing = 0;
            Buffer never = createUnboundBuffer(&nothing, 1);
            never->waitRecv(milliseconds(1));
        } catch (const std::exception &) {
            // the wait ran out of time, as it should
        }
        std::lock_guard<std::mutex> guard(buffers_->lock);
        buffers_->ended = true;
        for (TrackedBuffer *buffer : buffers_->all)
            buffer->end_waits();
    }

  private:
    std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
};

} // namespace

#endif
