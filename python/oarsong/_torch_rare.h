/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that few programs make: sparse tensors, and several tensors of a rank,
 * which PyTorch once had for several GPUs of a process. */
#ifndef OARSONG_TORCH_RARE_H
#define OARSONG_TORCH_RARE_H

#include "_torch_group.h"

namespace oarsong
{

class RarePoster : public Poster
{
  public:
    using Poster::Poster;

  protected:
    /* Every list gets all tensors of all ranks. */
    WorkPtr allgather_several(const std::vector<Tensors> &outputs,
                              const Tensors &inputs,
                              std::chrono::milliseconds timeout)
    {
        Memory memory;
        at::Tensor in = memory.joined_in(inputs);
        at::Tensor out = memory.joined_out(outputs[0], inputs[0]);

        for (size_t i = 1; i < outputs.size(); i++)
            for (size_t k = 0; k < outputs[i].size(); k++)
                memory.copies.emplace_back(plain(outputs[i][k]),
                                           plain(outputs[0][k]));
        return post(
            OpType::ALLGATHER, "oarsong:all_gather", outputs[0],
            std::move(memory), timeout,
            [&](auto &&call) {
                return call(oar_all_gather_v_at, span_of(in), span_of(out),
                            static_cast<const size_t *>(nullptr));
            },
            outputs);
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
        check(oar_all_gather_v_at(site.file, site.line, group_, span_of(rows),
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
                    "oarsong: unsupported reduction operation: sparse tensors "
                    "know sum, on the CPU: call to_dense() first");
        at::Tensor mine = tensors[0];
        for (size_t i = 1; i < tensors.size(); i++)
            mine = mine + tensors[i];
        mine = mine.coalesce();
        at::Tensor count = at::full({ 1 }, mine._nnz(), at::kLong);
        at::Tensor counts = at::empty({ getSize() }, at::kLong);
        check(oar_all_gather_v_at(site.file, site.line, group_, span_of(count),
                                  span_of(counts), nullptr, &opts, nullptr));
        at::Tensor at_rows =
            gather_rows(mine._indices().t().contiguous(), counts, site, opts);
        at::Tensor values =
            gather_rows(mine._values().contiguous(), counts, site, opts);
        at::Tensor sum =
            at::_sparse_coo_tensor_unsafe(at_rows.t(), values, mine.sizes())
                .coalesce();
        for (at::Tensor &tensor : tensors)
            tensor.copy_(sum);
        work->end();
        return work;
    }
};

} // namespace oarsong

#endif
