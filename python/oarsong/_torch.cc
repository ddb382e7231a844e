/* SPDX-License-Identifier: Apache-2.0 */
/* The backend "oarsong" of torch.distributed, for PyTorch 1.13 (where a backend
 * is a ProcessGroup) and 2.x (where it is a Backend).
 *
 * Every operation is posted without waiting; a Work waits, and so do futures.
 * Tensors that are not contiguous are copied, and copied back when the
 * operation is done. Messages of failure are the library's. */
#include <cstring>
#include <mutex>
#include <set>

#include <torch/extension.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <oarsong/oarsong.h>

#include "_torch_memory.h"

#define TORCH_AT_LEAST(major, minor)  \
    (TORCH_VERSION_MAJOR > (major) || \
     (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if TORCH_AT_LEAST(2, 5)
#define OARSONG_STREAMS /* PyTorch gives streams without CUDA's headers */
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

namespace
{

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
using optional_device = std::optional<c10::Device>;
#else
using Base = c10d::ProcessGroup;
using optional_device = c10::optional<c10::Device>;
#endif
using Tensors = std::vector<at::Tensor>;
using c10d::OpType;

constexpr auto unset = std::chrono::milliseconds(-1);

/* ---- failures ------------------------------------------------------------ */

/* Programs that wait for "Timed out", as gloo says, find it. */
std::string failure_text(const oar_error &error)
{
    const char *open = error.status == OAR_E_TIMEOUT ? "Timed out (" : "";

    return std::string(oar_status_name(error.status)) + ": " + open +
           error.text + (*open != 0 ? ")" : "");
}

void check(oar_status status)
{
    if (status != OAR_OK)
        throw std::runtime_error(failure_text(*oar_last_error()));
}

/* ---- where the call is in the Python program ----------------------------- */

struct Site {
    std::string file;
    int line = 0;
    const char *name() const
    {
        return file.empty() ? nullptr : file.c_str();
    }
};

/* Returns whether a file is PyTorch's own, or this package's. */
bool inside(const std::string &file)
{
    return file.find("/torch/") != std::string::npos ||
           file.find("/oarsong/") != std::string::npos ||
           file.find("/contextlib.py") != std::string::npos;
}

/* Finds the first frame outside of PyTorch. A thread without Python's frames,
 * as autograd's are, has none. */
Site site_of_caller()
{
    Site site;

    if (!Py_IsInitialized())
        return site;
    py::gil_scoped_acquire gil;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != nullptr) {
        py::object code = py::reinterpret_steal<py::object>(
            reinterpret_cast<PyObject *>(PyFrame_GetCode(frame)));
        std::string file = py::cast<std::string>(code.attr("co_filename"));

        if (!inside(file)) {
            site.file = file;
            site.line = PyFrame_GetLineNumber(frame);
            Py_DECREF(frame);
            break;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return site;
}

/* ---- memory -------------------------------------------------------------- */

oar_dtype dtype_of(const at::Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kFloat: return OAR_F32;
    case at::kDouble: return OAR_F64;
    case at::kHalf: return OAR_F16;
    case at::kBFloat16: return OAR_BF16;
    case at::kChar: return OAR_I8;
    case at::kByte: return OAR_U8;
    case at::kShort: return OAR_I16;
    case at::kInt: return OAR_I32;
    case at::kLong: return OAR_I64;
    case at::kBool: return OAR_BOOL;
#if TORCH_AT_LEAST(2, 3)
    case at::kUInt16: return OAR_U16;
    case at::kUInt32: return OAR_U32;
    case at::kUInt64: return OAR_U64;
#endif
    default:
        TORCH_CHECK(false, "oarsong: there is no dtype for ",
                    tensor.scalar_type(), ": send a view of another dtype");
    }
}

oar_span span_of(const at::Tensor &tensor)
{
    oar_span span =
        oar_span_of(tensor.data_ptr(), size_t(tensor.numel()), OAR_U8);

    span.dtype = dtype_of(tensor);
    if (tensor.is_cuda())
        span.device = oar_device{ OAR_CUDA, int(tensor.get_device()) };
    return span;
}

/* Returns PyTorch's current stream of the device, as CUDA has it. */
void *current_stream(c10::Device device)
{
#ifdef OARSONG_STREAMS
    return c10::impl::VirtualGuardImpl(device.type())
        .getStream(device)
        .native_handle();
#else
    TORCH_CHECK(false, "oarsong: tensors on ", device, " need PyTorch 2.5");
#endif
}

/* Waits until what is on the current stream of the device has run. */
void synchronize_current(c10::Device device)
{
#ifdef OARSONG_STREAMS
    c10::impl::VirtualGuardImpl guard(device.type());

    guard.synchronizeStream(guard.getStream(device));
#endif
}

/* Complex numbers are pairs of real ones; what is sparse has no span. */
at::Tensor plain(const at::Tensor &tensor)
{
    TORCH_CHECK(!tensor.is_sparse() && tensor.layout() == at::kStrided,
                "oarsong: sparse tensors are not supported: call to_dense() "
                "first");
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

oar_reduce_op premul_sum(const c10d::ReduceOp &op)
{
    const auto *factor = static_cast<const c10d::NCCLPreMulSumSupplement *>(
        op.supplement_.get());

    return oar_reduce_op{ OAR_REDUCE_OP_PREMUL_SUM, factor->double_factor };
}

oar_reduce_op op_of(const c10d::ReduceOp &op, const at::Tensor &tensor)
{
    oar_reduce_op_kind kind = oar_reduce_op_kind(uint8_t(op.op_));

    if (op.op_ == c10d::ReduceOp::PREMUL_SUM)
        return premul_sum(op);
    TORCH_CHECK(kind <= OAR_REDUCE_OP_BXOR,
                "oarsong: this reduction is not supported");
    TORCH_CHECK(!tensor.is_complex() || kind == OAR_REDUCE_OP_SUM ||
                    kind == OAR_REDUCE_OP_AVG,
                "oarsong: complex numbers know sum and avg");
    return oar_reduce_op{ kind, 0 };
}

/* ---- works --------------------------------------------------------------- */

/* Returns "oarsong:send" as the title of another name's group. It lives as long
 * as the process, since profiles refer to it. */
const char *title_of(const std::string &name, const char *title)
{
    static std::mutex lock;
    static auto *titles = new std::set<std::string>;

    if (name == "oarsong")
        return title;
    std::lock_guard<std::mutex> guard(lock);
    return titles->insert(name + strchr(title, ':')).first->c_str();
}

/* The tensors of an operation as it sees them, and what to do at its end. */
struct Memory {
    Tensors held;
    Tensors given;                                         /* for profiles */
    std::vector<std::pair<at::Tensor, at::Tensor>> copies; /* to, from */

    /* The tensor that is read; a copy if it is not contiguous. */
    at::Tensor in(const at::Tensor &from)
    {
        at::Tensor tensor = plain(from).contiguous();

        given.push_back(from);
        held.push_back(tensor);
        return tensor;
    }
    /* The tensor that is written, which the operation may also read. */
    at::Tensor out(const at::Tensor &to)
    {
        at::Tensor tensor = plain(to);

        if (!tensor.is_contiguous()) {
            at::Tensor whole = tensor.contiguous();
            copies.emplace_back(tensor, whole);
            tensor = whole;
        }
        given.push_back(to);
        held.push_back(tensor);
        return tensor;
    }
    /* One tensor for a row of parts, which the parts are copied from later. */
    at::Tensor joined_out(const Tensors &parts, const at::Tensor &like)
    {
        int64_t count = 0, at = 0;

        for (const at::Tensor &part : parts)
            count += plain(part).numel();
        at::Tensor whole = at::empty({ count }, plain(like).options());
        for (const at::Tensor &part : parts) {
            at::Tensor numbers = plain(part);

            copies.emplace_back(
                numbers,
                whole.narrow(0, at, numbers.numel()).view(numbers.sizes()));
            at += numbers.numel();
        }
        held.push_back(whole);
        return whole;
    }
    at::Tensor joined_in(const Tensors &parts)
    {
        Tensors flat;

        for (const at::Tensor &part : parts)
            flat.push_back(plain(part).reshape({ -1 }));
        held.push_back(at::cat(flat));
        return held.back();
    }
};

class Work : public c10d::Work
{
  public:
    /* Keeps the group, which must outlive the operation's handle. */
    Work(c10::intrusive_ptr<Base> group, OpType type, const char *title,
         Tensors result, Memory memory)
        : c10d::Work(group->getRank(), type, title, memory.given),
          group_(std::move(group)), result_(std::move(result)),
          memory_(std::move(memory))
    {
        std::vector<c10::Device> devices;

        message = oar_message_init();
        for (const at::Tensor &tensor : memory_.held)
            if (tensor.is_cuda())
                device = tensor.device();
        copies_ = !memory_.copies.empty();
        if (device)
            devices.push_back(*device);
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices);
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
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        return future_;
    }
    void abort() override
    {
    }

    bool wait(std::chrono::milliseconds timeout) override
    {
        oar_status status = OAR_OK;

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
    optional_device device; /* of its tensors; none: the CPU */

  private:
    static void on_done(void *self, oar_status status)
    {
        static_cast<Work *>(self)->complete(status);
    }

    bool over() const
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return completed_;
    }

    void complete(oar_status status)
    {
        std::exception_ptr failure;
        c10::intrusive_ptr<Work> self = std::move(self_);

        try {
            if (status != OAR_OK)
                throw std::runtime_error(failure_text(*oar_last_error()));
            at::NoGradGuard no_grad;
            for (auto &copy : memory_.copies)
                copy.first.copy_(copy.second);
            if (device && copies_)
                synchronize_current(*device);
        } catch (...) {
            failure = std::current_exception();
        }
        memory_ = Memory();
        finish(failure);
        if (failure)
            future_->setError(failure);
        else
            future_->markCompleted(c10::IValue(result_));
    }

    c10::intrusive_ptr<Base> group_;
    oar_work *work_ = nullptr;
    bool copies_ = false;
    Tensors result_;
    Memory memory_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    c10::intrusive_ptr<Work> self_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/* ---- the group ----------------------------------------------------------- */

const at::Tensor &only(const Tensors &tensors)
{
    TORCH_CHECK(tensors.size() == 1, "oarsong: one tensor for each call, not ",
                tensors.size());
    return tensors[0];
}

std::vector<size_t> counts_of(const std::vector<int64_t> &splits,
                              const at::Tensor &tensor, int ranks)
{
    std::vector<size_t> counts;
    int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0), sum = 0;
    int64_t row = rows == 0 ? 0 : tensor.numel() / rows;

    TORCH_CHECK(splits.empty() || int(splits.size()) == ranks,
                "oarsong: ", splits.size(), " split sizes for ", ranks,
                " ranks");
    TORCH_CHECK(!splits.empty() || rows % ranks == 0, "oarsong: ", rows,
                " rows do not go into ", ranks, " equal parts");
    for (int i = 0; i < ranks; i++) {
        int64_t part = splits.empty() ? rows / ranks : splits[size_t(i)];

        counts.push_back(size_t(part * row));
        sum += part;
    }
    TORCH_CHECK(sum == rows, "oarsong: the split sizes add up to ", sum,
                ", but there are ", rows, " rows");
    return counts;
}

class Group : public Base
{
  public:
    /* name: what operations are called in profiles: "oarsong:send". */
    Group(uintptr_t handle, int rank, int size, int64_t timeout_ms,
          const std::string &name)
        : Base(rank, size), group_(reinterpret_cast<oar_group *>(handle)),
          timeout_(timeout_ms), name_(name)
    {
    }
    ~Group() override
    {
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
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions()
    {
        return c10::make_intrusive<c10d::Backend::Options>("oarsong", timeout_);
    }

    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &o)
    {
        Memory memory;
        Tensors ins, outs;

        for (size_t i = 0; i < inputs.size(); i++) {
            ins.push_back(memory.in(inputs[i]));
            outs.push_back(memory.out(outputs.at(i)));
        }
        return post_batch(OpType::COALESCED, "oarsong:all_gather", outputs,
                          std::move(memory), o.timeout, [&](auto &&call) {
                              for (size_t i = 0; i < ins.size(); i++)
                                  call(oar_all_gather_v_at, span_of(ins[i]),
                                       span_of(outs[i]),
                                       static_cast<const size_t *>(nullptr));
                          });
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &o)
    {
        Memory memory;
        Tensors ins, outs;

        for (size_t i = 0; i < inputs.size(); i++) {
            ins.push_back(memory.in(inputs[i]));
            outs.push_back(memory.out(outputs.at(i)));
        }
        return post_batch(OpType::COALESCED, "oarsong:reduce_scatter", outputs,
                          std::move(memory), o.timeout, [&](auto &&call) {
                              for (size_t i = 0; i < ins.size(); i++)
                                  call(oar_reduce_scatter_v_at, span_of(ins[i]),
                                       static_cast<const size_t *>(nullptr),
                                       span_of(outs[i]),
                                       op_of(o.reduceOp, outputs[i]));
                          });
    }
#endif

    const std::string getBackendName() const override
    {
        return "oarsong";
    }

    void setSequenceNumberForGroup() override
    {
    }
    uint64_t getSequenceNumberForGroup() override
    {
        return sequence_;
    }

    WorkPtr broadcast(Tensors &tensors,
                      const c10d::BroadcastOptions &o) override
    {
        Memory memory;
        at::Tensor t = memory.out(only(tensors));

        return post(OpType::BROADCAST, "oarsong:broadcast", tensors,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_broadcast_at, span_of(t),
                                    int(o.rootRank));
                    });
    }

    WorkPtr allreduce(Tensors &tensors,
                      const c10d::AllreduceOptions &o) override
    {
        Memory memory;

        if (only(tensors).is_sparse())
            return sparse_allreduce(tensors, o);
        oar_reduce_op op = op_of(o.reduceOp, tensors[0]);
        at::Tensor t = memory.out(tensors[0]);

        return post(OpType::ALLREDUCE, "oarsong:all_reduce", tensors,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_all_reduce_at, span_of(t), op);
                    });
    }

    WorkPtr
    allreduce_coalesced(Tensors &tensors,
                        const c10d::AllreduceCoalescedOptions &o) override
    {
        Memory memory;
        Tensors all;

        for (const at::Tensor &tensor : tensors)
            all.push_back(memory.out(tensor));
        return post_batch(OpType::ALLREDUCE_COALESCED, "oarsong:all_reduce",
                          tensors, std::move(memory), o.timeout,
                          [&](auto &&call) {
                              for (size_t i = 0; i < all.size(); i++)
                                  call(oar_all_reduce_at, span_of(all[i]),
                                       op_of(o.reduceOp, tensors[i]));
                          });
    }

    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &o) override
    {
        Memory memory;
        oar_reduce_op op = op_of(o.reduceOp, only(tensors));
        bool root = o.rootRank == getRank();
        at::Tensor t = root ? memory.out(tensors[0]) : memory.in(tensors[0]);
        oar_span in = span_of(t);
        oar_span out = root ? in : oar_span_of(nullptr, 0, in.dtype);

        return post(OpType::REDUCE, "oarsong:reduce", tensors,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_reduce_at, in, out, op,
                                    int(o.rootRank));
                    });
    }

    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &o) override
    {
        Memory memory;
        at::Tensor in = memory.in(only(inputs));

        TORCH_CHECK(outputs.size() == 1 && int(outputs[0].size()) == getSize(),
                    "oarsong: all_gather needs a list of ", getSize(),
                    " tensors");
        return gathered(OpType::ALLGATHER, outputs[0], inputs[0], in,
                        std::move(memory), o.timeout);
    }

    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &o) override
    {
        Memory memory;
        at::Tensor in = memory.in(input), out = memory.out(output);

        return post(OpType::_ALLGATHER_BASE, "oarsong:all_gather", { output },
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_all_gather_v_at, span_of(in),
                                    span_of(out),
                                    static_cast<const size_t *>(nullptr));
                    });
    }

    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &o) override
    {
        Memory memory;
        Tensors ins, outs, results;

        TORCH_CHECK(int(outputs.size()) == getSize(),
                    "oarsong: all_gather_coalesced needs ", getSize(),
                    " lists of tensors");
        for (size_t i = 0; i < inputs.size(); i++) {
            Tensors parts;

            for (Tensors &list : outputs) {
                TORCH_CHECK(list.size() == inputs.size(),
                            "oarsong: all_gather_coalesced: lists of ",
                            list.size(), " tensors for ", inputs.size());
                parts.push_back(list[i]);
                results.push_back(list[i]);
            }
            ins.push_back(memory.in(inputs[i]));
            outs.push_back(memory.joined_out(parts, inputs[i]));
        }
        return post_batch(
            OpType::ALLGATHER_COALESCED, "oarsong:all_gather", results,
            std::move(memory), o.timeout, [&](auto &&call) {
                for (size_t i = 0; i < ins.size(); i++)
                    call(oar_all_gather_v_at, span_of(ins[i]), span_of(outs[i]),
                         static_cast<const size_t *>(nullptr));
            });
    }

    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &o) override
    {
        Memory memory;
        at::Tensor in = memory.in(only(inputs)), out;
        Tensors results;
        oar_span to = oar_span_of(nullptr, 0, dtype_of(in));

        if (o.rootRank == getRank()) {
            TORCH_CHECK(outputs.size() == 1 &&
                            int(outputs[0].size()) == getSize(),
                        "oarsong: gather needs a list of ", getSize(),
                        " tensors on its root");
            results = outputs[0];
            out = memory.joined_out(results, inputs[0]);
            to = span_of(out);
        } else {
            TORCH_CHECK(outputs.empty(), "oarsong: gather has results on its "
                                         "root only");
        }
        return post(OpType::GATHER, "oarsong:gather", results,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_gather_at, span_of(in), to,
                                    int(o.rootRank));
                    });
    }

    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &o) override
    {
        Memory memory;
        at::Tensor out = memory.out(only(outputs)), in;
        oar_span from = oar_span_of(nullptr, 0, dtype_of(out));

        if (o.rootRank == getRank()) {
            TORCH_CHECK(inputs.size() == 1 &&
                            int(inputs[0].size()) == getSize(),
                        "oarsong: scatter needs a list of ", getSize(),
                        " tensors on its root");
            in = memory.joined_in(inputs[0]);
            from = span_of(in);
        } else {
            TORCH_CHECK(inputs.empty(),
                        "oarsong: scatter has inputs on its root only");
        }
        return post(OpType::SCATTER, "oarsong:scatter", outputs,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_scatter_at, from, span_of(out),
                                    int(o.rootRank));
                    });
    }

    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &o) override
    {
        Memory memory;
        std::vector<size_t> counts;

        TORCH_CHECK(inputs.size() == 1 && int(inputs[0].size()) == getSize(),
                    "oarsong: reduce_scatter needs a list of ", getSize(),
                    " tensors");
        oar_reduce_op op = op_of(o.reduceOp, only(outputs));
        at::Tensor out = memory.out(outputs[0]);
        at::Tensor in = memory.joined_in(inputs[0]);
        for (const at::Tensor &part : inputs[0])
            counts.push_back(size_t(plain(part).numel()));
        return post(OpType::REDUCE_SCATTER, "oarsong:reduce_scatter", outputs,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_reduce_scatter_v_at, span_of(in),
                                    static_cast<const size_t *>(counts.data()),
                                    span_of(out), op);
                    });
    }

    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &o) override
    {
        Memory memory;
        oar_reduce_op op = op_of(o.reduceOp, output);
        at::Tensor in = memory.in(input), out = memory.out(output);

        return post(OpType::_REDUCE_SCATTER_BASE, "oarsong:reduce_scatter",
                    { output }, std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_reduce_scatter_v_at, span_of(in),
                                    static_cast<const size_t *>(nullptr),
                                    span_of(out), op);
                    });
    }

    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input,
                          std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &o) override
    {
        Memory memory;
        at::Tensor in = memory.in(input), out = memory.out(output);
        std::vector<size_t> in_counts = counts_of(input_splits, in, getSize());
        std::vector<size_t> out_counts =
            counts_of(output_splits, out, getSize());

        return exchanged(OpType::ALLTOALL_BASE, { output }, in, in_counts, out,
                         out_counts, std::move(memory), o.timeout);
    }

    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &o) override
    {
        Memory memory;
        std::vector<size_t> in_counts, out_counts;

        TORCH_CHECK(
            int(outputs.size()) == getSize() && int(inputs.size()) == getSize(),
            "oarsong: all_to_all needs two lists of ", getSize(), " tensors");
        for (int i = 0; i < getSize(); i++) {
            in_counts.push_back(size_t(plain(inputs[size_t(i)]).numel()));
            out_counts.push_back(size_t(plain(outputs[size_t(i)]).numel()));
        }
        at::Tensor in = memory.joined_in(inputs);
        at::Tensor out = memory.joined_out(outputs, outputs[0]);
        return exchanged(OpType::ALLTOALL, outputs, in, in_counts, out,
                         out_counts, std::move(memory), o.timeout);
    }

    WorkPtr send(Tensors &tensors, int to, int tag) override
    {
        Memory memory;
        at::Tensor t = memory.in(only(tensors));

        return post(OpType::SEND, "oarsong:send", tensors, std::move(memory),
                    unset, [&](auto &&call) {
                        return call(oar_send_at, span_of(t), to, int64_t(tag));
                    });
    }

    WorkPtr recv(Tensors &tensors, int from, int tag) override
    {
        return receive(tensors, from, tag, "oarsong:recv");
    }

    WorkPtr recvAnysource(Tensors &tensors, int tag) override
    {
        return receive(tensors, OAR_ANY_SOURCE, tag, "oarsong:recvAnySource");
    }

    WorkPtr barrier(const c10d::BarrierOptions &o) override
    {
        return post(OpType::BARRIER, "oarsong:barrier", {}, Memory(), o.timeout,
                    [&](auto &&call) { return call(oar_barrier_at); });
    }

    void monitoredBarrier(const c10d::BarrierOptions &o, bool) override
    {
        Site site = site_of_caller();
        oar_call_opts opts = options(o.timeout);

        check(oar_monitored_barrier_at(site.name(), site.line, group_, &opts));
    }

  private:
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

    WorkPtr receive(Tensors &tensors, int from, int tag, const char *title)
    {
        Memory memory;
        at::Tensor t = memory.out(only(tensors));

        return post(OpType::RECV, title, tensors, std::move(memory), unset,
                    [&](auto &&call) {
                        return call(oar_recv_at, span_of(t), from,
                                    int64_t(tag));
                    });
    }

    /* Makes a work of what `run` posts. It is given a function that calls one
     * of the library's with the call site before the arguments that it gets,
     * and options and a place for the handle behind them. */
    template <class Run>
    WorkPtr post(OpType type, const char *title, Tensors result, Memory memory,
                 std::chrono::milliseconds timeout, Run run)
    {
        Site site = site_of_caller();
        auto work =
            c10::make_intrusive<Work>(self(), type, title_of(name_, title),
                                      std::move(result), std::move(memory));
        oar_call_opts opts = options(timeout);
        oar_work *handle = nullptr;

        if (type == OpType::RECV)
            opts.message = &work->message;
        if (work->device)
            opts.stream = current_stream(*work->device);
        check(run([&](auto function, auto... arguments) {
            return function(site.name(), site.line, group_, arguments..., &opts,
                            &handle);
        }));
        sequence_++;
        work->start(handle, work);
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
        oar_call_opts opts = options(timeout);
        oar_work *handle = nullptr;
        oar_status failed = OAR_OK;

        if (work->device)
            opts.stream = current_stream(*work->device);
        check(oar_batch_begin(group_));
        run([&](auto function, auto... arguments) {
            if (failed == OAR_OK)
                failed = function(site.name(), site.line, group_, arguments...,
                                  &opts, nullptr);
        });
        oar_error error = *oar_last_error();
        oar_status ended = oar_batch_end(group_, &handle);
        if (failed != OAR_OK) {
            oar_work_release(handle);
            throw std::runtime_error(failure_text(error));
        }
        check(ended);
        sequence_++;
        if (handle == nullptr)
            work->end();
        else
            work->start(handle, work);
        return work;
    }

    /* Gathers rows of all ranks, as many as counts has of each. */
    at::Tensor gather_rows(const at::Tensor &rows, const at::Tensor &counts,
                           const Site &site, const oar_call_opts &opts)
    {
        int64_t row = 1;
        std::vector<size_t> parts;

        for (int64_t i = 1; i < rows.dim(); i++)
            row *= rows.size(i);
        for (int r = 0; r < getSize(); r++)
            parts.push_back(size_t(counts[r].item<int64_t>() * row));
        std::vector<int64_t> shape = rows.sizes().vec();
        shape[0] = counts.sum().item<int64_t>();
        at::Tensor all = at::empty(shape, rows.options());
        check(oar_all_gather_v_at(site.name(), site.line, group_, span_of(rows),
                                  span_of(all), parts.data(), &opts, nullptr));
        return all;
    }

    /* Adds up sparse tensors: every rank gets all indices and values. Waits
     * for the others. */
    WorkPtr sparse_allreduce(Tensors &tensors, const c10d::AllreduceOptions &o)
    {
        Site site = site_of_caller();
        oar_call_opts opts = options(o.timeout);
        auto work = c10::make_intrusive<Work>(
            self(), OpType::ALLREDUCE, title_of(name_, "oarsong:all_reduce"),
            tensors, Memory());
        at::NoGradGuard no_grad;

        TORCH_CHECK(o.reduceOp == c10d::ReduceOp::SUM && !tensors[0].is_cuda(),
                    "oarsong: sparse tensors know sum, on the CPU: call "
                    "to_dense() first");
        at::Tensor mine = tensors[0].coalesce();
        at::Tensor count = at::full({ 1 }, mine._nnz(), at::kLong);
        at::Tensor counts = at::empty({ getSize() }, at::kLong);
        check(oar_all_gather_v_at(site.name(), site.line, group_,
                                  span_of(count), span_of(counts), nullptr,
                                  &opts, nullptr));
        at::Tensor at_rows =
            gather_rows(mine._indices().t().contiguous(), counts, site, opts);
        at::Tensor values =
            gather_rows(mine._values().contiguous(), counts, site, opts);
        tensors[0].copy_(
            at::_sparse_coo_tensor_unsafe(at_rows.t(), values, mine.sizes())
                .coalesce());
        work->end();
        return work;
    }

    WorkPtr gathered(OpType type, const Tensors &outputs,
                     const at::Tensor &like, const at::Tensor &in,
                     Memory memory, std::chrono::milliseconds timeout)
    {
        std::vector<size_t> counts;

        for (const at::Tensor &part : outputs)
            counts.push_back(size_t(plain(part).numel()));
        at::Tensor out = memory.joined_out(outputs, like);
        return post(type, "oarsong:all_gather", outputs, std::move(memory),
                    timeout, [&](auto &&call) {
                        return call(oar_all_gather_v_at, span_of(in),
                                    span_of(out),
                                    static_cast<const size_t *>(counts.data()));
                    });
    }

    WorkPtr exchanged(OpType type, const Tensors &results, const at::Tensor &in,
                      const std::vector<size_t> &in_counts,
                      const at::Tensor &out,
                      const std::vector<size_t> &out_counts, Memory memory,
                      std::chrono::milliseconds timeout)
    {
        return post(type, "oarsong:all_to_all", results, std::move(memory),
                    timeout, [&](auto &&call) {
                        return call(
                            oar_all_to_all_v_at, span_of(in),
                            static_cast<const size_t *>(in_counts.data()),
                            span_of(out),
                            static_cast<const size_t *>(out_counts.data()));
                    });
    }

    oar_group *group_;
    std::chrono::milliseconds timeout_;
    std::string name_;
    uint64_t sequence_ = 0;
};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    py::module::import("torch.distributed");
    py::class_<Group, Base, c10::intrusive_ptr<Group>>(module, "Group")
        .def(py::init<uintptr_t, int, int, int64_t, const std::string &>())
        .def("abort_with", &Group::abort_with,
             py::call_guard<py::gil_scoped_release>())
        .def("subset", &Group::subset, py::call_guard<py::gil_scoped_release>())
        .def("failed", &Group::failed);
    module.def("share_memory", &share_memory);
    module.def("memory_stats", [] {
        Shared_stats stats = shared_stats();

        return py::dict(py::arg("allocations") = stats.allocations,
                        py::arg("used_bytes") = stats.used_bytes,
                        py::arg("kept_bytes") = stats.kept_bytes);
    });
}
