#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt2_torch: bench/gpt2's work by PyTorch: GPT-2 124M, fresh, on random tokens.

  gpt2_torch.py [--kind eager|compile|compile-cudnn|max-autotune] [--batch 64]
                [--context 1024] [--steps 25] [--peak 989]

Parameters in f32 under bf16 autocast, the vocabulary padded to 50304, a tied head,
attention by scaled_dot_product_attention, fused AdamW, clipping by norm 1; the host
waits once in five steps. Prints bench/gpt2's last line. Peak memory is what tensors
had, not what the allocator kept."""
import argparse
import contextlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

READ_EVERY, WARM_UP, BATCHES = 5, 5, 4


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok = nn.Embedding(args.vocabulary, args.width)
        self.pos = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.width // 64)
                                    for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        for table in (self.tok, self.pos):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens, target):
        x = self.tok(tokens) + self.pos.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tok.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def arguments():
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--kind", default="compile",
                       choices=("eager", "compile", "compile-cudnn", "max-autotune"))
    parse.add_argument("--batch", type=int, default=64)
    parse.add_argument("--context", type=int, default=1024)
    parse.add_argument("--layers", type=int, default=12)
    parse.add_argument("--width", type=int, default=768)
    parse.add_argument("--vocabulary", type=int, default=50304)
    parse.add_argument("--steps", type=int, default=25)
    parse.add_argument("--peak", type=float, default=989, help="TFLOP/s")
    return parse.parse_args()


def attention_of(kind):
    if kind != "compile-cudnn":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


def main():
    args = arguments()
    device = "cuda"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = GPT(args).to(device)
    adam = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                             weight_decay=0.1, fused=True)
    run = model
    if args.kind == "max-autotune":
        run = torch.compile(model, mode="max-autotune-no-cudagraphs")
    elif args.kind != "eager":
        run = torch.compile(model)
    shape = (args.batch, args.context)
    tokens = [torch.randint(args.vocabulary, shape, device=device) for _ in range(BATCHES)]
    targets = [torch.roll(x, -1) for x in tokens]

    def step(i):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = run(tokens[i % BATCHES], targets[i % BATCHES])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss

    times = []
    with attention_of(args.kind):
        start = time.perf_counter()
        for i in range(args.steps):
            loss = step(i)
            if (i + 1) % READ_EVERY:
                continue
            loss.item()
            if i >= WARM_UP:
                times.append((time.perf_counter() - start) / READ_EVERY)
            start = time.perf_counter()
    if not times:
        sys.exit("gpt2_torch: ten steps or more")
    took = statistics.median(times)
    rate = args.batch * args.context / took
    params = sum(p.numel() for p in model.parameters())
    work = 6 * params + 12 * args.layers * args.width * args.context
    print(f"gpt2,torch-{args.kind},cuda:0,bf16,{args.batch},{args.steps},{took * 1e3:.2f},"
          f"{rate:.0f},{100 * rate * work / (args.peak * 1e12):.1f},"
          f"{torch.cuda.max_memory_allocated() / 2**20:.0f}")


if __name__ == "__main__":
    main()
