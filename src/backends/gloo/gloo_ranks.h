// SPDX-License-Identifier: Apache-2.0
// gloo_ranks.h: Gloo's ranks, whose connections can be ended. C++, for
// gloo_shim.cc alone.
//
// Those that wait for a connection when it ends are told by Gloo, but not whose
// block is on its way just then: they would wait for good. So we know all
// blocks, and end what waits ourselves.
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

class Block;

struct Blocks {
    std::mutex lock;
    std::set<Block *> all;
    bool over = false;
};

class Block : public gloo::transport::UnboundBuffer
{
  public:
    Block(std::shared_ptr<Blocks> blocks, Buffer buffer)
        : UnboundBuffer(buffer->ptr, buffer->size), blocks_(std::move(blocks)),
          buffer_(std::move(buffer))
    {
        std::lock_guard<std::mutex> guard(blocks_->lock);
        blocks_->all.insert(this);
    }

    ~Block() override
    {
        std::lock_guard<std::mutex> guard(blocks_->lock);
        blocks_->all.erase(this);
    }

    // Who begins to wait later than this is stopped as well.
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
    // Gloo's collectives do not look at what a wait returns.
    bool checked(bool done)
    {
        std::lock_guard<std::mutex> guard(blocks_->lock);

        if (!done && blocks_->over)
            throw std::runtime_error("it has ended");
        return done;
    }

    std::shared_ptr<Blocks> blocks_;
    Buffer buffer_;
};

class Transport : public gloo::transport::Context
{
  public:
    Transport(std::shared_ptr<gloo::transport::Context> inner,
              std::shared_ptr<Blocks> blocks)
        : gloo::transport::Context(inner->rank, inner->size),
          inner_(std::move(inner)), blocks_(std::move(blocks))
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
        return Buffer(
            new Block(blocks_, inner_->createUnboundBuffer(data, bytes)));
    }

  private:
    std::shared_ptr<gloo::transport::Context> inner_;
    std::shared_ptr<Blocks> blocks_;
};

class Ranks : public gloo::rendezvous::Context
{
  public:
    using gloo::rendezvous::Context::Context;

    // Once they are connected.
    void make_endable()
    {
        transportContext_ =
            std::make_shared<Transport>(transportContext_, blocks_);
    }

    // Gloo has no call to end connections, but a wait that runs out of time
    // does it: "all pairs should be signaled and closed in that event"
    // (transport/tcp/context.h). A block made later finds them closed.
    void end()
    {
        try {
            char nothing = 0;
            Buffer never = createUnboundBuffer(&nothing, 1);
            never->waitRecv(milliseconds(1));
        } catch (const std::exception &) {
            // as it should
        }
        std::lock_guard<std::mutex> guard(blocks_->lock);
        blocks_->over = true;
        for (Block *block : blocks_->all)
            block->end_waits();
    }

  private:
    std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
};

} // namespace

#endif
