/* SPDX-License-Identifier: Apache-2.0 */
/* An operation that was posted, as PyTorch waits for it. */
#ifndef OARSONG_TORCH_WORK_H
#define OARSONG_TORCH_WORK_H

#include <cstring>
#include <mutex>
#include <set>

#include <ATen/record_function.h>

#include "_torch_operands.h"

namespace oarsong
{

/* Returns "oarsong:send" as the title of another name's group. It lives as long
 * as the process, since profiles refer to it. */
inline const char *title_of(const std::string &name, const char *title)
{
    static std::mutex lock;
    static auto *titles = new std::set<std::string>;

    if (name == "oarsong")
        return title;
    std::lock_guard<std::mutex> guard(lock);
    return titles->insert(name + strchr(title, ':')).first->c_str();
}

/* What c10d::Work shows to a profile: nothing where none is made, which saves
 * as much time as a small operation takes. */
struct Shown {
    Shown(const char *title, const Memory &memory)
    {
        if (!at::hasCallbacks())
            return;
        this->title = title;
        tensors = memory.given;
    }

    const char *title = nullptr;
    optional<Tensors> tensors;
};

/* How many functions of works that are done run on this thread. */
inline int &finishing()
{
    static thread_local int count;
    return count;
}

class Work : public c10d::Work
{
  public:
    /* Keeps the group, which must outlive the operation's handle. */
    Work(c10::intrusive_ptr<Base> group, OpType type, const char *title,
         Tensors result, Memory memory)
        : Work(std::move(group), type, Shown(title, memory), std::move(result),
               std::move(memory))
    {
    }
    ~Work() override
    {
        oar_work_release(work_);
    }

    /* Takes the handle of the operation, which is under way. */
    void start(oar_work *work, c10::intrusive_ptr<Work> self)
    {
        work_ = work;
        self_ = std::move(self); /* until it is done */
        check(oar_work_then(work_, on_done, this));
    }
    /* Makes it the work of a batch, whose parts are done when it is. */
    void lead(const c10::intrusive_ptr<Work> &self,
              std::vector<c10::intrusive_ptr<Work>> parts)
    {
        parts_ = std::move(parts);
        for (const auto &part : parts_) {
            copies_ = copies_ || part->copies_;
            part->batch_ = self;
        }
    }
    const Memory &memory() const
    {
        return memory_;
    }
    /* There was nothing to do. */
    void end()
    {
        complete(OAR_OK);
    }

    bool isCompleted() override
    {
        int done = 1;

        if (work_ != nullptr && !over())
            oar_work_test(work_, &done);
        return over();
    }
    bool isSuccess() const override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return completed_ && !exception_;
    }
    int sourceRank() const override
    {
        return message.source;
    }
    Tensors result() override
    {
        return result_;
    }
    /* It is made when it is first asked for: few works are. */
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::vector<c10::Device> devices;
        std::unique_lock<std::mutex> lock(mutex_);

        if (future_)
            return future_;
        if (device)
            devices.push_back(*device);
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices);
        bool ended = ended_;
        lock.unlock();
        if (ended)
            settle_future();
        return future_;
    }
    void abort() override
    {
    }

    bool wait(std::chrono::milliseconds timeout) override
    {
        oar_status status = OAR_OK;
        c10::intrusive_ptr<Work> batch = batch_;

        if (batch)
            return batch->wait(timeout);
        if (work_ == nullptr && !over())
            return true; /* collected: the work of the batch is waited for */
        /* Copies follow on the host, so it waits for those. */
        bool ordered = device && !copies_;
        if (work_ != nullptr && ordered)
            status = oar_work_order(work_, current_stream(*device));
        else if (work_ != nullptr && !over())
            status = timeout.count() > 0
                         ? oar_work_wait_for(work_, timeout.count())
                         : oar_work_wait(work_);
        if (status != OAR_OK && !over())
            check(status);
        if (!ordered)
            c10d::Work::wait(kNoTimeout);
        return true;
    }

    oar_message message;
    oar_group *handle = nullptr;  /* of the group */
    Site site;                    /* of the call */
    optional<c10::Device> device; /* of its tensors; none: the CPU */
    std::vector<Tensors> lists;   /* what its future gives; none: the result */

  private:
    Work(c10::intrusive_ptr<Base> group, OpType type, const Shown &shown,
         Tensors result, Memory &&memory)
        : c10d::Work(group->getRank(), type, shown.title, shown.tensors),
          group_(std::move(group)), result_(std::move(result)),
          memory_(std::move(memory))
    {
        message = oar_message_init();
        for (const at::Tensor &tensor : memory_.held)
            if (tensor.is_cuda())
                device = tensor.device();
        copies_ = !memory_.copies.empty();
    }

    /* It may drop the last hold on the group (~Poster). */
    static void on_done(void *self, oar_status status)
    {
        finishing()++;
        static_cast<Work *>(self)->complete(status);
        finishing()--;
    }

    bool over() const
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return completed_;
    }

    /* What failed alone is this thread's last error; else the group's. */
    oar_error why(oar_status status)
    {
        oar_error error = *oar_last_error();

        if (error.status != status && handle != nullptr)
            oar_group_fault(handle, &error);
        return error;
    }

    void complete(oar_status status)
    {
        std::exception_ptr failure;
        c10::intrusive_ptr<Work> self = std::move(self_);
        bool wanted;

        try {
            if (status != OAR_OK)
                throw std::runtime_error(
                    failure_text(why(status), site.text()));
            at::NoGradGuard no_grad;
            c10::impl::ExcludeDispatchKeyGuard no_python(
                c10::DispatchKeySet({ c10::DispatchKey::Python,
                                      c10::DispatchKey::PythonTLSSnapshot }));
            for (auto &copy : memory_.copies) {
                c10::InferenceMode mode(copy.first.is_inference());
                copy.first.copy_(copy.second);
            }
            if (device && copies_)
                synchronize_current(*device);
        } catch (...) {
            failure = std::current_exception();
        }
        for (const auto &part : parts_)
            part->complete(status);
        parts_.clear();
        memory_ = Memory();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            failure_ = failure;
            ended_ = true;
            wanted = bool(future_);
        }
        finish(failure);
        if (wanted)
            settle_future();
    }

    void settle_future()
    {
        if (failure_)
            future_->setError(failure_);
        else
            future_->markCompleted(lists.empty() ? c10::IValue(result_)
                                                 : c10::IValue(lists));
    }

    c10::intrusive_ptr<Base> group_;
    oar_work *work_ = nullptr;
    bool copies_ = false;
    Tensors result_;
    Memory memory_;
    c10::intrusive_ptr<c10::ivalue::Future> future_; /* nullptr: not wanted */
    std::exception_ptr failure_;
    bool ended_ = false; /* failure_ says how */
    c10::intrusive_ptr<Work> self_;
    c10::intrusive_ptr<Work> batch_;              /* that it is a part of */
    std::vector<c10::intrusive_ptr<Work>> parts_; /* of this batch */
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

} // namespace oarsong

#endif
