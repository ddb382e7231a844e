#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of a step of a tensor parallel GPT in PyTorch over gloo, against one
process.

tp_torch.py RANKS STEPS WIDTH LAYERS VOCABULARY BATCH
Sequences of 64 tokens, 4 heads, f32, fused AdamW. In turns, each rank takes a
step of the whole model alone, and the ranks one of the model that they share
(parallelize_module: q, k, v and up by columns, out and down by rows). Prints for
both a line tp,torch-MODE,RANKS,PARAMS,WALL_MS,CPU_MS,RATIO,LOSS with the median
time of a step on the slowest rank, the median over steps of the mean CPU time of a
rank, and that as a part of the CPU time of one process.
"""
import os
import socket
import statistics
import sys
import time

TOKENS, HEADS = 64, 4


def make_gpt(width, layers, vocabulary):
    import torch_blas  # first
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            h = self.norm1(x)
            q, k, v = (part(h).view(x.shape[0], TOKENS, -1, width // HEADS).transpose(1, 2)
                       for part in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape[0], TOKENS, -1))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(vocabulary, width)
            self.pos = nn.Embedding(TOKENS, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("at", torch.arange(TOKENS))

        def forward(self, tokens):
            x = self.blocks(self.tok(tokens) + self.pos(self.at))
            return self.head(self.norm(x)).flatten(0, 1)

    torch.manual_seed(1)
    net = GPT()
    for table in net.tok, net.pos:
        nn.init.normal_(table.weight, std=0.02)
    return net


def share(net, ranks):
    """Cuts the blocks over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in net.blocks:
        plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        plan.update({name: RowwiseParallel() for name in ("out", "down")})
        parallelize_module(block, mesh, plan)


class Side:
    """One of the two models, and the times of its steps."""

    def __init__(self, mode, ranks, size):
        import torch
        self.mode, self.times, self.loss = mode, [], 0.0
        self.net = make_gpt(*size)
        self.params = sum(p.numel() for p in self.net.parameters())
        if mode == "tp":
            share(self.net, ranks)
        kinds = {}  # one group has tensors of one kind
        for p in self.net.parameters():
            kinds.setdefault(type(p.data), []).append(p)
        self.adam = torch.optim.AdamW([{"params": p} for p in kinds.values()], lr=1e-3, fused=True)

    def step(self, x, y):
        from torch.nn import functional as F
        start, cpu = time.monotonic(), time.process_time()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.times.append(((time.monotonic() - start) * 1e3, (time.process_time() - cpu) * 1e3))
        self.loss = loss.item()


def work(rank, ranks, steps, size, batch, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0",
                      GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    sides = [Side(mode, ranks, size) for mode in ("one", "tp")]
    for step in range(steps):
        torch.manual_seed(1000 + step)  # the same batch on all ranks
        x = torch.randint(0, size[2], (batch, TOKENS))
        y = torch.randint(0, size[2], (batch * TOKENS,))
        for side in sides:
            dist.barrier()
            side.step(x, y)
    queue.put((rank, [(s.mode, s.params, s.times, s.loss) for s in sides]))
    dist.barrier()
    dist.destroy_process_group()


def report(ranks, got):
    one = None
    for i, (mode, params, _, loss) in enumerate(got[0][1]):
        times = [g[1][i][2][1:] for g in got]
        wall = statistics.median(max(t[0] for t in step) for step in zip(*times))
        cpu = statistics.median(sum(t[1] for t in step) / ranks for step in zip(*times))
        one = one or cpu
        print(f"tp,torch-{mode},{ranks},{params / 1e6:.1f}M,{wall:.1f},{cpu:.1f},{cpu / one:.3f},"
              f"{loss:.5f}", flush=True)


def main():
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    ranks, steps, *size, batch = (int(a) for a in sys.argv[1:])
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    workers = mp.spawn(work, (ranks, steps, size, batch, port, queue), ranks, join=False)
    while not workers.join():  # raises what a rank raised
        pass
    report(ranks, sorted(queue.get() for _ in range(ranks)))


if __name__ == "__main__":
    main()
