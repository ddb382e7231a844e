#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdp.c in PyTorch: the same GPT, by DDP or FSDP2 over gloo.

fsdp_torch.py RANKS ddp|fsdp2|one STEPS WIDTH LAYERS VOCABULARY BATCH
Prints for each step a line step,MODE,RANKS,STEP,WALL_MS,CPU_MS,TOKENS/S, with
the slowest rank's time and the mean CPU time of a rank, and then the line of
fsdp.c, the mode with "torch-" before it; what was moved is not known: "-".
AdamW is the fused one, the fastest that PyTorch has. Needs torch 2.6 or newer.
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
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            heads = (x.shape[0], TOKENS, HEADS, width // HEADS)
            q, k, v = (part.view(heads).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).split(width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
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


def wrap(net, mode, ranks):
    import torch
    if mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (ranks,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def pss_mb():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def work(rank, ranks, mode, size, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0",
                      GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F
    steps, width, layers, vocabulary, batch = size
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    net = make_gpt(width, layers, vocabulary)
    params = sum(p.numel() for p in net.parameters())
    net = wrap(net, mode, ranks)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    times, pss = [], 0.0
    for step in range(steps):
        torch.manual_seed(1000 + 100 * step + rank)
        dist.barrier()
        start, cpu = time.monotonic(), time.process_time()
        x = torch.randint(0, vocabulary, (batch, TOKENS))
        y = torch.randint(0, vocabulary, (batch * TOKENS,))
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if step == steps - 1:
            pss = pss_mb()
        adam.step()
        adam.zero_grad(set_to_none=True)
        times.append(((time.monotonic() - start) * 1e3, (time.process_time() - cpu) * 1e3))
    queue.put((rank, params, pss, times, loss.item()))
    dist.barrier()
    dist.destroy_process_group()


def report(mode, ranks, batch, got):
    tokens = batch * TOKENS * ranks
    wall = [max(column) for column in zip(*[[t[0] for t in g[3]] for g in got])]
    cpu = [sum(column) / ranks for column in zip(*[[t[1] for t in g[3]] for g in got])]
    for step, (w, c) in enumerate(zip(wall, cpu)):
        print(f"step,torch-{mode},{ranks},{step},{w:.1f},{c:.1f},{tokens / w * 1e3:.0f}")
    ms, host = statistics.median_high(wall[1:]), sum(g[2] for g in got)
    loss = sum(g[4] for g in got) / ranks
    print(f"fsdp,torch-{mode},{ranks},{got[0][1] / 1e6:.1f}M,{host / ranks:.1f},{host:.1f},"
          f"{ms:.1f},{statistics.median_high(cpu[1:]):.1f},{tokens / ms * 1e3:.0f},{loss:.5f},-",
          flush=True)


def main():
    if len(sys.argv) != 8:
        sys.exit(__doc__)
    ranks, mode, size = int(sys.argv[1]), sys.argv[2], [int(a) for a in sys.argv[3:]]
    if mode not in ("ddp", "fsdp2", "one") or (mode == "one" and ranks != 1):
        sys.exit(__doc__)
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    workers = mp.spawn(work, (ranks, mode, size, port, queue), ranks, join=False)
    while not workers.join():  # raises what a rank raised
        pass
    report(mode, ranks, size[4], sorted(queue.get() for _ in range(ranks)))


if __name__ == "__main__":
    main()
