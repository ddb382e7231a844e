# SPDX-License-Identifier: Apache-2.0
"""Compares what gpu_truth.c wrote with PyTorch on the same GPU.

    gpu_truth_torch.py LAYERS WIDTH VOCABULARY BATCH CONTEXT STEPS WARM FOLDER...

f32 without TF32: logits to 1e-4 and gradients of all parameters to 1e-3, each
relative to the largest. bf16: how far logits, gradients and the losses of a training
are from PyTorch's f32, which may be as far as PyTorch's own bf16 is: with autocast,
or with bf16 parameters and f32 masters, as ours are, whichever is farther. Where two
trainings part, chance decides how far: with several folders, of other seeds, medians
are compared. Prints a line for each; returns 1 if one is missed.
"""
import sys

import numpy
import torch
from torch.nn import functional as F

BATCHES = 4
KINDS = ("ours", "autocast", "bf16 parameters")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read_params(folder):
    flat, at, params = numpy.fromfile(folder + "/params.f32", "<f4"), 0, {}
    for line in open(folder + "/params"):
        name, *dims = line.split()
        dims = [int(d) for d in dims]
        count = int(numpy.prod(dims))
        params[name] = torch.tensor(flat[at:at + count].reshape(dims), device=DEVICE)
        at += count
    return params


def read_gradients(path, like):
    flat, at, found = numpy.fromfile(path, "<f4"), 0, {}
    for name, p in like.items():
        found[name] = flat[at:at + p.numel()]
        at += p.numel()
    return found


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


def outcome(kind, master, x, y, layers, heads):
    """Logits and the loss of one batch, of which master then has the gradients."""
    p = master
    if kind == "bf16 parameters":
        p = {k: v if "norm" in k else v.bfloat16() for k, v in master.items()}
    with torch.autocast(DEVICE, torch.bfloat16, enabled=kind == "autocast"):
        logits = forward(p, x, layers, heads).float()
        loss = F.cross_entropy(logits, y)
    loss.backward()
    return logits, loss


def first_batch(kind, params, x, y, layers, heads):
    """Its logits and gradients, on the host."""
    master = {k: v.clone().requires_grad_() for k, v in params.items()}
    logits, _ = outcome(kind, master, x, y, layers, heads)
    return (logits.detach().cpu().numpy().reshape(-1),
            {k: v.grad.cpu().numpy().reshape(-1) for k, v in master.items()})


def train(kind, params, x, y, layers, heads, steps, warm):
    master = {k: v.clone().requires_grad_() for k, v in params.items()}
    adam = torch.optim.AdamW(master.values(), lr=6e-4, betas=(0.9, 0.95), eps=1e-8,
                             weight_decay=0.1)
    losses = []
    for step in range(steps):
        i = step % BATCHES
        if step < warm:
            adam.param_groups[0]["lr"] = 6e-4 * (step + 1) / warm
        adam.zero_grad()
        _, loss = outcome(kind, master, x[i], y[i], layers, heads)
        torch.nn.utils.clip_grad_norm_(master.values(), 1.0)
        adam.step()
        losses.append(loss.item())
    return numpy.array(losses)


def relative(ours, theirs):
    return float(numpy.abs(ours - theirs).max() / max(numpy.abs(theirs).max(), 1e-30))


def distance(ours, theirs):
    """Of all numbers together: the root of the squares, relative."""
    return float(numpy.linalg.norm(ours - theirs) / max(numpy.linalg.norm(theirs), 1e-30))


def joined(gradients):
    return numpy.concatenate(list(gradients.values()))


class Report:
    def __init__(self):
        self.failed = False

    def line(self, what, got, most):
        self.failed |= not got <= most
        missed = "" if got <= most else " MISSED"
        print(f"{what}: {got:.3g} (at most {most:.3g}){missed}")

    def line_bf16(self, what, by_kind):
        """by_kind: of each of KINDS a figure for each folder."""
        ours, cast, master = (float(numpy.median(by_kind[kind])) for kind in KINDS)
        print(f"{what}, by folders: " + "; ".join(
            f"{kind} " + ", ".join(f"{v:.3g}" for v in by_kind[kind]) for kind in KINDS))
        self.line(f"{what}, median", ours, max(cast, master))


def main():
    layers, width, _, batch, context, steps, warm = (int(v) for v in sys.argv[1:8])
    heads = max(1, width // 64)
    report = Report()
    if DEVICE == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.enable_cudnn_sdp(False)
    figures = {}

    def note(what, kind, figure):
        figures.setdefault(what, {k: [] for k in KINDS})[kind].append(figure)

    for folder in sys.argv[8:]:
        tokens = torch.tensor(numpy.fromfile(folder + "/tokens.i64", "<i8"), device=DEVICE)
        tokens = tokens.view(BATCHES, 2, batch, context)
        x, y = list(tokens[:, 0]), [t.reshape(-1) for t in tokens[:, 1]]
        params = read_params(folder)
        logits, grads = first_batch("f32", params, x[0], y[0], layers, heads)
        ours = numpy.fromfile(folder + "/f32.logits", "<f4")
        report.line("f32 logits, relative", relative(ours, logits), 1e-4)
        ours = read_gradients(folder + "/f32.grads", params)
        far = {name: relative(ours[name], grads[name]) for name in params}
        worst = max(far, key=far.get)
        report.line(f"f32 gradients of {len(far)} parameters, relative, worst {worst}",
                    far[worst], 1e-3)
        half = {kind: first_batch(kind, params, x[0], y[0], layers, heads)
                for kind in KINDS[1:]}
        half["ours"] = (numpy.fromfile(folder + "/bf16.logits", "<f4"),
                        read_gradients(folder + "/bf16.grads", params))
        for kind, (out, found) in half.items():
            note("bf16 logits", kind, distance(out, logits))
            note("bf16 gradients", kind, distance(joined(found), joined(grads)))
        times = {name: distance(half["ours"][1][name], grads[name]) /
                 max(distance(half[kind][1][name], grads[name]) for kind in KINDS[1:])
                 for name in params}
        ranked = sorted(times, key=times.get)
        print("bf16 gradients of single parameters, ours by PyTorch's distance: "
              f"{times[ranked[0]]:.2f} ({ranked[0]}) to {times[ranked[-1]]:.2f} "
              f"({ranked[-1]}), median {times[ranked[len(ranked) // 2]]:.2f}")
        exact = train("f32", params, x, y, layers, heads, steps, warm)
        f32 = numpy.loadtxt(folder + "/f32.losses")
        report.line(f"f32 losses of {steps} steps, from {exact[0]:.3f} to {exact[-1]:.3f}",
                    abs(f32 - exact).max(), 1e-2)
        losses = {kind: train(kind, params, x, y, layers, heads, steps, warm)
                  for kind in KINDS[1:]}
        losses["ours"] = numpy.loadtxt(folder + "/bf16.losses")
        for kind, loss in losses.items():
            note("bf16 losses, farthest", kind, abs(loss - exact).max())
            note("bf16 losses, mean", kind, abs(loss - exact).mean())
    for what, by_kind in figures.items():
        report.line_bf16(what, by_kind)
    sys.exit(report.failed)


main()
