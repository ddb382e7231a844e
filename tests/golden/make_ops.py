#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes ops.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. Per case: CASE.in0, ... (those with a
gradient first, then the others), CASE.seed, CASE.out, CASE.grad0, ..., in f64;
and CASE.KIND.out, CASE.KIND.grad0, ... for KIND f16 and bf16: what PyTorch has
in that dtype, from the same numbers rounded to it. Where it cannot (its f16 on
the CPU is a stub), the numbers are computed in f32 from the rounded ones and
rounded once. So they are too in CASE.KIND.once.out and so on, which are there
where PyTorch, which makes some gradients by several operations, is elsewhere.
The cases are those of tests/unit/ops_cases.h, by name.
"""
import pathlib

import torch
import torch.nn.functional as F

from records import put, records, write

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
stubs = []


def run(fn, dtype, inputs, others, seed, work=None):
    work = work or dtype
    leaves = [t.to(dtype).to(work).clone().requires_grad_() for t in inputs]
    out = fn(*leaves, *others)
    out.backward(seed.to(dtype).to(work))
    return [t.to(dtype) for t in [out] + [leaf.grad for leaf in leaves]]


# Gradients that PyTorch, and we, compute from the result, which is a half.
FROM_RESULT = {
    "tanh": lambda g, y: g * (1 - y * y),
    "sigmoid": lambda g, y: g * y * (1 - y),
    "exp": lambda g, y: g * y,
    "sqrt": lambda g, y: g / (2 * y),
    "expm1": lambda g, y: g * (y + 1),
}


def run_once(name, fn, dtype, inputs, others, seed):
    got = run(fn, dtype, inputs, others, seed, torch.float32)
    if name in FROM_RESULT:
        g, y = seed.to(dtype).float(), got[0].float()
        got[1] = FROM_RESULT[name](g, y).to(dtype)
    return got


def case(name, fn, *inputs, others=()):
    seed = torch.randn(fn(*inputs, *others).shape)
    for i, t in enumerate(list(inputs) + list(others)):
        put(f"{name}.in{i}", t)
    put(f"{name}.seed", seed)
    parts = ["out"] + [f"grad{i}" for i in range(len(inputs))]
    for part, t in zip(parts, run(fn, torch.float64, inputs, others, seed)):
        put(f"{name}.{part}", t)
    for kind, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        once = run_once(name, fn, dtype, inputs, others, seed)
        try:
            got = run(fn, dtype, inputs, others, seed)
        except RuntimeError as why:
            assert "not implemented for" in str(why) or "Half" in str(why), why
            stubs.append(f"{name}.{kind}")
            got = once
        for part, t, o in zip(parts, got, once):
            put(f"{name}.{kind}.{part}", t)
            if not torch.equal(t, o):
                put(f"{name}.{kind}.once.{part}", o)


def views(r):
    case("permute", lambda a: a.permute(2, 0, 1), r(2, 3, 5))
    case("slice", lambda a: a[:, 1:-1:2], r(3, 7))
    case("slice_cut", lambda a: a[-2:, 3:99], r(3, 5))
    case("select", lambda a: a.select(1, 2), r(2, 3, 3))
    case("select_last", lambda a: a.select(-1, -1), r(3, 4))
    case("expand", lambda a: a.expand(2, 3, 5), r(3, 1))
    case("squeeze", lambda a: a.squeeze(1), r(3, 1, 5))
    case("unsqueeze", lambda a: a.unsqueeze(-2), r(3, 5))
    case("contiguous", lambda a: a.t().contiguous(), r(3, 5))
    case("split", lambda a: a.split([2, 4, 1], 1)[1], r(3, 7))
    case("chunk", lambda a: a.tensor_split(3, 1)[0], r(3, 7))
    case("cat", lambda a, b, c: torch.cat([a, b, c], 1), r(3, 2), r(3, 4),
         r(3, 1))
    case("cat_many", lambda a, b: torch.cat([a, b, a, b, a], 0), r(1, 3),
         r(2, 3))
    case("stack", lambda a, b, c: torch.stack([a, b, c], 1), r(3, 2), r(3, 2),
         r(3, 2))
    case("stack_last", lambda a, b: torch.stack([a, b], -1), r(5), r(5))


def pairs(r):
    p = lambda *shape: r(*shape).abs() + 0.3
    case("add", torch.add, r(3, 5), r(3, 5))
    case("sub", torch.sub, r(3, 1, 5), r(2, 1))
    case("mul", torch.mul, r(3, 5), r(5))
    case("div", torch.div, r(3, 5), p(3, 1))
    case("div_one", torch.div, r(3, 5), torch.tensor(0.7))
    case("pow", torch.pow, p(3, 5), r(5))
    case("minimum", torch.minimum, r(3, 5), r(5))
    case("maximum", torch.maximum, r(3, 5), r(3, 1))
    same = torch.tensor([1.0, 2.0, 3.0])
    case("maximum_equal", torch.maximum, same, same.flip(0))
    case("scale", lambda a: a * -1.75, r(11))
    case("shift", lambda a: a + 0.625, r(3, 5))
    case("power", lambda a: a.pow(2.5), p(3, 5))
    case("power_two", lambda a: a.pow(2), r(3, 5))
    case("power_three", lambda a: a.pow(3), r(3, 5))
    case("power_zero", lambda a: a.pow(0), r(5))
    case("clamp", lambda a: a.clamp(-0.5, 0.75), r(3, 5))
    case("clamp_low", lambda a: a.clamp(min=-0.25), r(3, 5))


def singles(r):
    p = lambda *shape: r(*shape).abs() + 0.1
    for name in ("neg", "abs", "relu", "exp", "sin", "cos", "tanh", "sigmoid"):
        case(name, getattr(torch, name), 2 * r(3, 7))
    for name in ("log", "sqrt", "rsqrt"):
        case(name, getattr(torch, name), p(3, 7))
    case("gelu", F.gelu, 2 * r(3, 7))
    case("gelu_tanh", lambda a: F.gelu(a, approximate="tanh"), 2 * r(3, 7))
    case("silu", F.silu, 2 * r(3, 7))
    case("softplus", F.softplus, 4 * r(3, 7))


def selections(r):
    flags = lambda *shape: (torch.rand(*shape) < 0.5).long()
    case("where", lambda a, b, m: torch.where(m.bool(), a, b), r(3, 5), r(5),
         others=(flags(3, 1),))
    case("where_wide", lambda a, b, m: torch.where(m.bool(), a, b), r(3, 1),
         r(1, 5), others=(flags(2, 3, 5),))
    case("masked_fill", lambda a, m: a.masked_fill(m.bool(), -0.5), r(3, 5),
         others=(flags(5),))
    case("tril", lambda a: a.tril(1), r(2, 3, 5))
    case("triu", lambda a: a.triu(-1), r(5, 3))


def reductions(r):
    case("sum", torch.sum, r(3, 5))
    case("mean", torch.mean, r(3, 5))
    for kind in ("sum", "mean"):
        f = getattr(torch, kind)
        case(f"{kind}_last", lambda a: f(a, -1), r(2, 3, 5))
        case(f"{kind}_first", lambda a: f(a, 0, keepdim=True), r(2, 3, 5))
        case(f"{kind}_ends", lambda a: f(a, (0, 2)), r(2, 3, 5))
    case("prod_last", lambda a: a.prod(-1), r(3, 5))
    case("prod_zero", lambda a: a.prod(-1), torch.tensor(
        [[0.5, 0.0, 2.0], [0.0, 3.0, 0.0], [1.5, -2.0, 0.25]]))
    case("max_last", lambda a: a.max(-1)[0], r(3, 5))
    case("max_middle", lambda a: a.max(1, keepdim=True)[0], r(2, 3, 4))
    case("min_first", lambda a: a.min(0)[0], r(4, 3))
    case("var_last", lambda a: a.var(-1, unbiased=True), r(3, 5))
    case("var_ends", lambda a: a.var((0, 2), unbiased=False, keepdim=True),
         r(2, 3, 5))
    case("topk", lambda a: a.topk(3)[0], r(3, 7))


def picks(r):
    i = lambda *n: torch.tensor(n)
    case("index_select", lambda a, n: a.index_select(1, n), r(3, 5),
         others=(i(4, 0, 0, 2),))
    case("index_select_rows", lambda a, n: a.index_select(0, n), r(4, 3),
         others=(i(3, 1, 3),))
    case("gather", lambda a, n: a.gather(1, n), r(3, 5),
         others=(torch.tensor([[4, 0, 0], [1, 1, 2]]),))
    case("gather_first", lambda a, n: a.gather(0, n), r(3, 4),
         others=(torch.tensor([[2, 0, 1, 1], [0, 0, 2, 1]]),))
    case("scatter_add", lambda a, s, n: a.scatter_add(1, n, s), r(3, 5),
         r(2, 4), others=(torch.tensor([[4, 0, 0, 2], [1, 1, 1, 3]]),))


def products(r):
    case("matmul", torch.matmul, r(3, 5), r(5, 2))
    case("matmul_turned", lambda a, b: a.t() @ b.t(), r(5, 3), r(2, 5))
    case("matmul_many", torch.matmul, r(3, 2, 4), r(3, 4, 3))
    case("matmul_one", torch.matmul, r(2, 3, 4), r(4, 2))
    case("matmul_wide", torch.matmul, r(2, 1, 2, 3), r(3, 3, 2))
    case("matmul_left", torch.matmul, r(2, 4), r(3, 4, 2))
    case("matmul_heads", lambda a, b: a.transpose(1, 2) @
         b.permute(0, 2, 3, 1), r(2, 3, 2, 3), r(2, 3, 2, 3))


def make(name, *parts):
    with torch.backends.mkldnn.flags(enabled=False):  # not everywhere bf16
        for part in parts:
            part(torch.randn)
    write(pathlib.Path(__file__).with_name(name))
    print(len(records), "records; computed in f32:", " ".join(stubs))


if __name__ == "__main__":
    make("ops.golden", views, pairs, singles, selections, reductions, picks,
         products)
