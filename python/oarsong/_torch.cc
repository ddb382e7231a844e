/* SPDX-License-Identifier: Apache-2.0 */
/* The backend "oarsong" of torch.distributed, for PyTorch 1.13 (where a backend
 * is a ProcessGroup) and 2.x (where it is a Backend).
 *
 * Every operation is posted without waiting; a Work waits, and so do futures.
 * Tensors that are not contiguous are copied, and copied back when the
 * operation is done. Messages of failure are the library's. */
#include <pybind11/chrono.h>

#include "_torch_checks.h"
#include "_torch_memory.h"
#include "_torch_rare.h"

namespace oarsong
{

class Group : public RarePoster
{
  public:
    using RarePoster::RarePoster;

#if TORCH_VERSION_MAJOR >= 2
    /* Not every 2.x has these, so none says `override`. */
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

    WorkPtr gather_into_tensor(at::Tensor &output, at::Tensor &input,
                               const c10d::GatherOptions &o)
    {
        Memory memory;
        at::Tensor in = memory.in(input);
        oar_span to = oar_span_of(nullptr, 0, dtype_of(in));
        Tensors results;

        if (o.rootRank == getRank()) {
            results = { output };
            to = span_of(memory.out(output));
        }
        return post(OpType::GATHER, "oarsong:gather", results,
                    std::move(memory), o.timeout, [&](auto &&call) {
                        return call(oar_gather_at, span_of(in), to,
                                    int(o.rootRank));
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

    WorkPtr broadcast(Tensors &tensors,
                      const c10d::BroadcastOptions &o) override
    {
        Memory memory;

        check_root(o.rootRank, getSize());
        at::Tensor t = one_of(memory, tensors, o.rootTensor);
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

        TORCH_CHECK(!tensors.empty(),
                    "oarsong: requires non-empty tensor list");
        check_alike(tensors, tensors[0]);
        if (tensors[0].is_sparse())
            return sparse_allreduce(tensors, o);
        oar_reduce_op op = op_of(o.reduceOp, tensors[0]);
        at::Tensor t = reduced(memory, tensors, op);

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
        Tensors each = check_coalesced(tensors), all;

        for (const at::Tensor &tensor : each)
            all.push_back(memory.out(tensor));
        return post_batch(OpType::ALLREDUCE_COALESCED, "oarsong:all_reduce",
                          tensors, std::move(memory), o.timeout,
                          [&](auto &&call) {
                              for (size_t i = 0; i < all.size(); i++)
                                  call(oar_all_reduce_at, span_of(all[i]),
                                       op_of(o.reduceOp, each[i]));
                          });
    }

    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &o) override
    {
        Memory memory;

        check_root(o.rootRank, getSize());
        check_root_tensor(o.rootTensor, tensors);
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

        TORCH_CHECK(!inputs.empty(),
                    "oarsong: requires non-empty input tensor list");
        TORCH_CHECK(outputs.size() == inputs.size(),
                    "oarsong: requires input/output tensor lists to have the "
                    "same length");
        check_alike(inputs, inputs[0]);
        for (const Tensors &list : outputs) {
            TORCH_CHECK(list.size() == inputs.size() * size_t(getSize()),
                        "oarsong: invalid output tensor list: ", list.size(),
                        " tensors for ", getSize(), " ranks");
            check_alike(list, inputs[0], inputs.size() > 1);
        }
        if (inputs.size() > 1)
            return allgather_several(outputs, inputs, o.timeout);
        at::Tensor in = memory.in(inputs[0]);
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

        check_gathered(outputs, inputs, getSize());
        for (size_t i = 0; i < inputs.size(); i++) {
            Tensors parts;

            for (Tensors &list : outputs) {
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

        check_root(o.rootRank, getSize());
        at::Tensor in = memory.in(only(inputs, "input ")), out;
        Tensors results;
        oar_span to = oar_span_of(nullptr, 0, dtype_of(in));

        if (o.rootRank == getRank()) {
            results = check_lists(outputs, getSize(), inputs[0], "output");
            out = memory.joined_out(results, inputs[0]);
            to = span_of(out);
        } else {
            TORCH_CHECK(outputs.empty(),
                        "oarsong: gather requires empty output on non-root");
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

        check_root(o.rootRank, getSize());
        at::Tensor out = memory.out(only(outputs, "output ")), in;
        oar_span from = oar_span_of(nullptr, 0, dtype_of(out));

        if (o.rootRank == getRank()) {
            in = memory.joined_in(
                check_lists(inputs, getSize(), outputs[0], "input"));
            from = span_of(in);
        } else {
            TORCH_CHECK(inputs.empty(),
                        "oarsong: scatter requires empty input on non-root");
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

    void monitoredBarrier(const c10d::BarrierOptions &o, bool all) override
    {
        Site site = site_of_caller();
        oar_call_opts opts = options(o.timeout);

        if (o.timeout.count() == 0)
            opts.timeout_ms = 1; /* it only looks */
        if (oar_monitored_barrier_at(site.file, site.line, group_, &opts) !=
            OAR_OK)
            throw std::runtime_error(
                monitored_text(failure_text(*oar_last_error()), getRank(), all,
                               o.timeout.count() == 0 ? 0 : opts.timeout_ms));
    }

  private:
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
};

} // namespace oarsong

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    py::module::import("torch.distributed");
    keep_freed_memory();
    using oarsong::Group;
    py::class_<Group, oarsong::Base, c10::intrusive_ptr<Group>>(module, "Group")
        .def(py::init<uintptr_t, int, int, int64_t, const std::string &>())
        .def("abort_with", &Group::abort_with,
             py::call_guard<py::gil_scoped_release>())
#if TORCH_VERSION_MAJOR >= 2
        .def("_set_default_timeout", &Group::setTimeout)
#endif
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
