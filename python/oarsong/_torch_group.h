/* SPDX-License-Identifier: Apache-2.0 */
/* How a group posts operations: each with the line of its caller, the timeout
 * of the group and the current stream of PyTorch; several as one batch.
 *
 * Between startCoalescing and endCoalescing calls of a thread are collected;
 * their works are done when the batch is. */
#ifndef OARSONG_TORCH_GROUP_H
#define OARSONG_TORCH_GROUP_H

#include <thread>

#include "_torch_work.h"

namespace oarsong
{

class Poster : public Base
{
  public:
    /* name: what operations are called in profiles: "oarsong:send". */
    Poster(uintptr_t handle, int rank, int size, int64_t timeout_ms,
           const std::string &name)
        : Base(rank, size), group_(reinterpret_cast<oar_group *>(handle)),
          timeout_(timeout_ms), name_(name)
    {
    }
    /* A thread of the group cannot destroy it: another one does. */
    ~Poster() override
    {
        if (finishing() != 0) {
            std::thread(oar_group_destroy, group_).detach();
            return;
        }
        /* Its threads may be about to take the lock of the interpreter. */
        if (PyGILState_Check()) {
            py::gil_scoped_release no_gil;
            oar_group_destroy(group_);
        } else {
            oar_group_destroy(group_);
        }
    }
    void abort_with(const std::string &reason)
    {
        check(oar_group_abort(group_, reason.c_str()));
    }
    /* Returns the handle of a group of some of its ranks, ascending. */
    uintptr_t subset(const std::vector<int> &ranks)
    {
        oar_group *made = nullptr;

        check(oar_group_subset(group_, int(ranks.size()), ranks.data(), &made));
        return reinterpret_cast<uintptr_t>(made);
    }
    bool failed()
    {
        return oar_group_fault(group_, nullptr) != OAR_OK;
    }

#if TORCH_VERSION_MAJOR >= 2
    /* Not every 2.x has all of these, so none says `override`. */
    void abort()
    {
        abort_with("the program has aborted the process group");
    }
    void shutdown()
    {
    }
    void setTimeout(std::chrono::milliseconds timeout)
    {
        timeout_ = timeout;
    }
    bool supportsCoalescing() const
    {
        return true;
    }
    void startCoalescing()
    {
        TORCH_CHECK(batch().owner == nullptr,
                    "oarsong: this thread coalesces calls already");
        check(oar_batch_begin(group_));
        batch().owner = this;
    }
    WorkPtr endCoalescing()
    {
        std::vector<c10::intrusive_ptr<Work>> parts;
        Memory memory;
        oar_work *handle = nullptr;

        TORCH_CHECK(batch().owner == this,
                    "oarsong: this thread coalesces no calls");
        batch().owner = nullptr;
        parts.swap(batch().works);
        check(oar_batch_end(group_, &handle));
        for (const auto &part : parts)
            memory.hold(part->memory());
        auto work = c10::make_intrusive<Work>(
            self(), OpType::COALESCED, title_of(name_, "oarsong:coalesced"),
            Tensors(), std::move(memory));
        work->lead(work, std::move(parts));
        start(work, handle);
        return work;
    }
#endif

    const std::string getBackendName() const override
    {
        return "oarsong"; /* PyTorch takes one named gloo for gloo's class */
    }
    void setSequenceNumberForGroup() override
    {
    }
    uint64_t getSequenceNumberForGroup() override
    {
        return sequence_;
    }

  protected:
    oar_call_opts options(std::chrono::milliseconds timeout) const
    {
        oar_call_opts opts = oar_call_opts_init();

        opts.timeout_ms =
            timeout.count() > 0 ? timeout.count() : timeout_.count();
        return opts;
    }

    c10::intrusive_ptr<Base> self()
    {
        return c10::intrusive_ptr<Base>::unsafe_reclaim_from_nonowning(this);
    }

    /* Makes a work of what `run` posts. It is given a function that calls one
     * of the library's with the call site before the arguments that it gets,
     * and options and a place for the handle behind them. lists: what the
     * future gives in place of the result. */
    template <class Run>
    WorkPtr post(OpType type, const char *title, Tensors result, Memory memory,
                 std::chrono::milliseconds timeout, Run run,
                 std::vector<Tensors> lists = {})
    {
        Site site = site_of_caller();
        auto work =
            c10::make_intrusive<Work>(self(), type, title_of(name_, title),
                                      std::move(result), std::move(memory));
        work->lists = std::move(lists);
        oar_call_opts opts = options_of(*work, type, timeout, site);
        bool collected = batch().owner == this;
        oar_work *handle = nullptr;

        oar_status status = run([&](auto function, auto... arguments) {
            return function(site.file, site.line, group_, arguments..., &opts,
                            collected ? nullptr : &handle);
        });
        if (collected)
            return collect(work, status);
        check(status);
        start(work, handle);
        return work;
    }

    /* The same for several calls, which go as one. */
    template <class Run>
    WorkPtr post_batch(OpType type, const char *title, Tensors result,
                       Memory memory, std::chrono::milliseconds timeout,
                       Run run)
    {
        Site site = site_of_caller();
        auto work =
            c10::make_intrusive<Work>(self(), type, title_of(name_, title),
                                      std::move(result), std::move(memory));
        oar_call_opts opts = options_of(*work, type, timeout, site);
        bool collected = batch().owner == this;
        oar_work *handle = nullptr;
        oar_status failed = OAR_OK;

        if (!collected)
            check(oar_batch_begin(group_));
        run([&](auto function, auto... arguments) {
            if (failed == OAR_OK)
                failed = function(site.file, site.line, group_, arguments...,
                                  &opts, nullptr);
        });
        if (collected)
            return collect(work, failed);
        oar_error error = *oar_last_error();
        oar_status ended = oar_batch_end(group_, &handle);
        if (failed != OAR_OK) {
            oar_work_release(handle);
            throw std::runtime_error(failure_text(error));
        }
        check(ended);
        start(work, handle);
        return work;
    }

    oar_group *group_;
    std::chrono::milliseconds timeout_;
    std::string name_;
    uint64_t sequence_ = 0;

  private:
    /* What this thread has collected since startCoalescing. */
    struct Batch {
        Poster *owner = nullptr;
        std::vector<c10::intrusive_ptr<Work>> works;
    };
    static Batch &batch()
    {
        static thread_local Batch collected;
        return collected;
    }

    oar_call_opts options_of(Work &work, OpType type,
                             std::chrono::milliseconds timeout,
                             const Site &site)
    {
        oar_call_opts opts = options(timeout);

        work.handle = group_;
        work.site = site;
        if (type == OpType::RECV)
            opts.message = &work.message;
        if (work.device)
            opts.stream = current_stream(*work.device);
        return opts;
    }

    void start(const c10::intrusive_ptr<Work> &work, oar_work *handle)
    {
        sequence_++;
        if (handle == nullptr)
            work->end();
        else
            work->start(handle, work);
    }

    /* Takes a call into this thread's batch. One that failed ends the batch:
     * nobody else would, and the next one could not begin. */
    WorkPtr collect(const c10::intrusive_ptr<Work> &work, oar_status status)
    {
        if (status != OAR_OK) {
            std::string text = failure_text(*oar_last_error());
            oar_work *handle = nullptr;

            batch().owner = nullptr;
            batch().works.clear();
            oar_batch_end(group_, &handle);
            oar_work_release(handle);
            throw std::runtime_error(text);
        }
        batch().works.push_back(work);
        return work;
    }
};

} // namespace oarsong

#endif
