/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as the library sees them: spans, operators, and the copies that stand
 * in for tensors that are not contiguous. */
#ifndef OARSONG_TORCH_OPERANDS_H
#define OARSONG_TORCH_OPERANDS_H

#include "_torch_site.h"

#if TORCH_AT_LEAST(2, 5)
#define OARSONG_STREAMS /* PyTorch gives streams without CUDA's headers */
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

namespace oarsong
{

inline oar_dtype dtype_of(const at::Tensor &tensor)
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

inline oar_span span_of(const at::Tensor &tensor)
{
    oar_span span =
        oar_span_of(tensor.data_ptr(), size_t(tensor.numel()), OAR_U8);

    span.dtype = dtype_of(tensor);
    if (tensor.is_cuda())
        span.device = oar_device{ OAR_CUDA, int(tensor.get_device()) };
    return span;
}

/* Returns PyTorch's current stream of the device, as CUDA has it. */
inline void *current_stream(c10::Device device)
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
inline void synchronize_current(c10::Device device)
{
#ifdef OARSONG_STREAMS
    c10::impl::VirtualGuardImpl guard(device.type());

    guard.synchronizeStream(guard.getStream(device));
#endif
}

/* Complex numbers are pairs of real ones; what is sparse has no span. */
inline at::Tensor plain(const at::Tensor &tensor)
{
    TORCH_CHECK(!tensor.is_sparse() && tensor.layout() == at::kStrided,
                "oarsong: sparse tensors are not supported: call to_dense() "
                "first");
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

/* The factor is a number, or a tensor that has one, which may be on a GPU. */
inline oar_reduce_op premul_sum(const c10d::ReduceOp &op)
{
    const auto *given = static_cast<const c10d::NCCLPreMulSumSupplement *>(
        op.supplement_.get());

    TORCH_CHECK(given != nullptr, "oarsong: PREMUL_SUM has no factor: make it "
                                  "with _make_nccl_premul_sum(factor)");
#if TORCH_VERSION_MAJOR >= 2
    at::Tensor factor = given->tensor_factor;
#else
    TORCH_CHECK(given->tensor_factors.size() <= 1,
                "oarsong: PREMUL_SUM takes one factor, not ",
                given->tensor_factors.size());
    at::Tensor factor =
        given->tensor_factors.empty() ? at::Tensor() : given->tensor_factors[0];
#endif
    if (!factor.defined())
        return oar_reduce_op{ OAR_REDUCE_OP_PREMUL_SUM, given->double_factor };
    TORCH_CHECK(factor.numel() == 1,
                "oarsong: PREMUL_SUM takes a factor of one element, not of ",
                factor.numel());
    return oar_reduce_op{ OAR_REDUCE_OP_PREMUL_SUM, factor.item<double>() };
}

inline oar_reduce_op op_of(const c10d::ReduceOp &op, const at::Tensor &tensor)
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

/* The tensors of an operation as it sees them, and what to do at its end. */
struct Memory {
    Tensors held;
    Tensors given;                                         /* for profiles */
    std::vector<std::pair<at::Tensor, at::Tensor>> copies; /* to, from */

    /* Keeps what another operation keeps. */
    void hold(const Memory &other)
    {
        held.insert(held.end(), other.held.begin(), other.held.end());
    }
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

/* what: "input ", "output ". */
inline const at::Tensor &only(const Tensors &tensors, const char *what = "")
{
    TORCH_CHECK(tensors.size() == 1, "oarsong: requires a single-element ",
                what, "tensor list, not one of ", tensors.size());
    return tensors[0];
}

inline std::vector<size_t> counts_of(const std::vector<int64_t> &splits,
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

} // namespace oarsong

#endif
