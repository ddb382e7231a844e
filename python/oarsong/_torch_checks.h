/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the arguments of a call, in gloo's words, which programs
 * and PyTorch's own tests look for; and calls with several tensors of a rank,
 * which PyTorch once had for several GPUs of a process. */
#ifndef OARSONG_TORCH_CHECKS_H
#define OARSONG_TORCH_CHECKS_H

#include <set>

#include "_torch_operands.h"

namespace oarsong
{

inline void check_root(int64_t root, int size)
{
    TORCH_CHECK(root >= 0 && root < size, "oarsong: invalid root rank: ", root);
}

inline void check_root_tensor(int64_t index, const Tensors &tensors)
{
    TORCH_CHECK(index >= 0 && size_t(index) < tensors.size(),
                "oarsong: invalid root tensor: ", index);
}

/* Tensors of one dtype and layout; `sizes`: of one size. */
inline void check_alike(const Tensors &tensors, const at::Tensor &like,
                        bool sizes = true)
{
    for (size_t i = 0; i < tensors.size(); i++) {
        const at::Tensor &t = tensors[i];

        TORCH_CHECK(t.layout() == like.layout(),
                    "oarsong: invalid tensor layout at index ", i);
        TORCH_CHECK(t.scalar_type() == like.scalar_type(),
                    "oarsong: invalid tensor type at index ", i, " (expected ",
                    like.toString(), ", got ", t.toString(), ")");
        TORCH_CHECK(!sizes || t.numel() == like.numel(),
                    "oarsong: invalid tensor size at index ", i, " (expected ",
                    like.sizes(), ", got ", t.sizes(), ")");
    }
}

/* The tensors of a gather or scatter on its root: one list, one for each rank.
 * what: "input" or "output". */
inline const Tensors &check_lists(const std::vector<Tensors> &lists, int size,
                                  const at::Tensor &like, const char *what)
{
    TORCH_CHECK(lists.size() == 1, "oarsong: requires a single-element ", what,
                " list containing a list with ", size, " tensors");
    TORCH_CHECK(int(lists[0].size()) == size, "oarsong: Incorrect ", what,
                " list size ", lists[0].size(), ". ",
                what[0] == 'i' ? "Input" : "Output", " list size should be ",
                size, ", same as size of the process group");
    check_alike(lists[0], like);
    return lists[0];
}

/* Many tensors that go as one. Returns them, each once. */
inline Tensors check_coalesced(const Tensors &tensors)
{
    std::set<const void *> seen;
    Tensors each;

    TORCH_CHECK(!tensors.empty(), "oarsong: requires non-empty tensor list");
    for (const at::Tensor &t : tensors) {
        TORCH_CHECK(t.layout() == tensors[0].layout(),
                    "oarsong: invalid tensor layout at index ",
                    &t - tensors.data());
        TORCH_CHECK(t.layout() == at::kStrided,
                    "oarsong: unsupported layout: ", "call to_dense() first");
        if (t.numel() == 0 || seen.insert(t.data_ptr()).second)
            each.push_back(t);
    }
    return each;
}

/* The lists of all_gather_coalesced: one for each rank, alike the inputs. */
inline void check_gathered(const std::vector<Tensors> &outputs,
                           const Tensors &inputs, int size)
{
    TORCH_CHECK(int(outputs.size()) == size,
                "oarsong: output lists should be equal to world size ", size,
                ", not ", outputs.size());
    for (const Tensors &list : outputs) {
        TORCH_CHECK(list.size() == inputs.size(),
                    "oarsong: invalid output size: ", list.size(),
                    " tensors for ", inputs.size());
        for (size_t i = 0; i < list.size(); i++) {
            TORCH_CHECK(list[i].sizes() == inputs[i].sizes(),
                        "oarsong: invalid size of output tensor at index ", i);
            TORCH_CHECK(list[i].scalar_type() == inputs[i].scalar_type(),
                        "oarsong: invalid tensor type at index ", i);
        }
    }
}

/* The tensor that stands for all of a rank in a broadcast: the others get it
 * when it has come. */
inline at::Tensor one_of(Memory &memory, const Tensors &tensors, int64_t root)
{
    check_root_tensor(root, tensors);
    check_alike(tensors, tensors[0]);
    at::Tensor t = memory.out(tensors[size_t(root)]);
    for (size_t i = 0; i < tensors.size(); i++)
        if (int64_t(i) != root)
            memory.copies.emplace_back(plain(tensors[i]), t);
    return t;
}

/* The same for an all_reduce, which begins with those of this rank. */
inline at::Tensor reduced(Memory &memory, const Tensors &tensors,
                          const oar_reduce_op &op)
{
    Tensors parts;
    at::Tensor all;

    if (tensors.size() == 1)
        return memory.out(tensors[0]);
    at::NoGradGuard no_grad;
    for (const at::Tensor &t : tensors)
        parts.push_back(plain(t));
    all = at::stack(parts);
    switch (op.kind) {
    case OAR_REDUCE_OP_SUM: all = all.sum(0, false, all.scalar_type()); break;
    case OAR_REDUCE_OP_PROD: all = all.prod(0, false, all.scalar_type()); break;
    case OAR_REDUCE_OP_MIN: all = all.amin(0); break;
    case OAR_REDUCE_OP_MAX: all = all.amax(0); break;
    default:
        TORCH_CHECK(false, "oarsong: several tensors of a rank know sum, "
                           "product, min and max");
    }
    for (const at::Tensor &t : parts)
        memory.copies.emplace_back(t, all);
    memory.held.push_back(all);
    return all;
}

} // namespace oarsong

#endif
