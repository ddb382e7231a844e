# SPDX-License-Identifier: Apache-2.0
"""Compares what gpu_truth.c wrote with PyTorch on the same GPU.

    gpu_truth_torch.py FOLDER LAYERS WIDTH VOCABULARY BATCH CONTEXT STEPS WARM

f32 without TF32: logits to 1e-4 and gradients of all parameters to 1e-3, each
relative to the largest; and the losses of bf16 training, which may be as far from
PyTorch's f32 as PyTorch's own bf16 is: with autocast, or with bf16 parameters and
f32 masters, as ours are, whichever is farther. Prints a line for each; returns 1
if one is missed.
"""
import sys

import numpy
import torch
from torch.nn import functional as F

BATCHES = 4


def read_params(folder):
    flat, at, params = numpy.fromfile(folder + "/params.f32", "<f4"), 0, {}
    for line in open(folder + "/params"):
        name, *dims = line.split()
        dims = [int(d) for d in dims]
        count = int(numpy.prod(dims))
        params[name] = torch.tensor(flat[at:at + count].reshape(dims), device="cuda")
        at += count
    return params


def forward(p, x, layers, heads):
    def norm(name, a):
        return F.layer_norm(a, a.shape[-1:], p[name + ".weight"].to(a.dtype),
                            p[name + ".bias"].to(a.dtype))

    def linear(name, a):
        return F.linear(a, p[name + ".weight"], p[name + ".bias"])

    n, t = x.shape
    h = p["tok.weight"][x] + p["pos.weight"][:t]
    width = h.shape[-1]
    for i in range(layers):
        b = f"blocks.{i}."
        q, k, v = (a.view(n, t, heads, width // heads).transpose(1, 2) for a in
                   linear(b + "attention.qkv", norm(b + "norm1", h)).split(width, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = a.transpose(1, 2).reshape(n, t, width)
        h = h + linear(b + "attention.out", a)
        a = F.gelu(linear(b + "up", norm(b + "norm2", h)), approximate="tanh")
        h = h + linear(b + "down", a)
    return F.linear(norm("norm", h), p["tok.weight"]).view(n * t, -1)


def train(kind, start, x, y, layers, heads, steps, warm):
    master = {k: v.clone().requires_grad_() for k, v in start.items()}
    adam = torch.optim.AdamW(master.values(), lr=6e-4, betas=(0.9, 0.95), eps=1e-8,
                             weight_decay=0.1)
    losses = []
    for step in range(steps):
        i = step % BATCHES
        p = master
        if step < warm:
            adam.param_groups[0]["lr"] = 6e-4 * (step + 1) / warm
        if kind == "master":
            p = {k: v if "norm" in k else v.bfloat16() for k, v in master.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "autocast"):
            loss = F.cross_entropy(forward(p, x[i], layers, heads).float(), y[i])
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(master.values(), 1.0)
        adam.step()
        losses.append(loss.item())
    return numpy.array(losses)


def relative(ours, theirs):
    return float(numpy.abs(ours - theirs).max() / max(numpy.abs(theirs).max(), 1e-30))


def main():
    folder, layers, width, vocabulary, batch, context, steps, warm = sys.argv[1:9]
    layers, width, batch, context, steps, warm = (
        int(v) for v in (layers, width, batch, context, steps, warm))
    heads = max(1, width // 64)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    tokens = torch.tensor(numpy.fromfile(folder + "/tokens.i64", "<i8"), device="cuda")
    tokens = tokens.view(BATCHES, 2, batch, context)
    x, y = list(tokens[:, 0]), [t.reshape(-1) for t in tokens[:, 1]]
    params = read_params(folder)
    failed = 0

    def line(what, got, most):
        nonlocal failed
        failed += not got <= most
        print(f"{what}: {got:.3g} (at most {most:.3g}){'' if got <= most else ' MISSED'}")

    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    logits = forward(leaves, x[0], layers, heads)
    F.cross_entropy(logits, y[0]).backward()
    ours = numpy.fromfile(folder + "/logits.f32", "<f4")
    theirs = logits.detach().cpu().numpy().reshape(-1)
    line("f32 logits, relative", relative(ours, theirs), 1e-4)
    flat, at, worst, where = numpy.fromfile(folder + "/grads.f32", "<f4"), 0, 0.0, ""
    for name, leaf in leaves.items():
        theirs = leaf.grad.cpu().numpy().reshape(-1)
        far = relative(flat[at:at + theirs.size], theirs)
        at += theirs.size
        if far >= worst:
            worst, where = far, name
    line(f"f32 gradients of {len(leaves)} parameters, relative, worst {where}", worst, 1e-3)
    exact = train("f32", params, x, y, layers, heads, steps, warm)
    cast = train("autocast", params, x, y, layers, heads, steps, warm)
    master = train("master", params, x, y, layers, heads, steps, warm)
    f32 = numpy.loadtxt(folder + "/f32.losses")
    bf16 = numpy.loadtxt(folder + "/bf16.losses")
    print(f"losses from {exact[0]:.4f} to {exact[-1]:.4f}; autocast {abs(cast - exact).max():.3g}, "
          f"bf16 parameters {abs(master - exact).max():.3g} from f32")
    far = abs(f32 - exact).argmax()
    print(f"farthest at step {far}: PyTorch f32 {exact[far]:.4f}, autocast {cast[far]:.4f}, bf16 "
          f"parameters {master[far]:.4f}; ours f32 {f32[far]:.4f}, bf16 {bf16[far]:.4f}")
    line(f"f32 losses of {steps} steps, from PyTorch's", abs(f32 - exact).max(), 1e-2)
    most = max(abs(cast - exact).max(), abs(master - exact).max())
    line(f"bf16 losses of {steps} steps, from PyTorch's f32", abs(bf16 - exact).max(), most)
    line("bf16 losses, mean, from PyTorch's f32", abs(bf16 - exact).mean(),
         max(abs(cast - exact).mean(), abs(master - exact).mean()))
    sys.exit(1 if failed else 0)


main()
