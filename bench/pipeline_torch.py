#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipeline.c in PyTorch: the same GPT in stages, by torch.distributed.pipelining
over gloo.

pipeline_torch.py RANKS one|gpipe|1f1b|interleaved|zb_v MICRO STEPS WIDTH LAYERS VOCABULARY BATCH
Prints pipeline,torch-KIND,RANKS,STAGES,MICRO,WALL_MS,STEP_MS,TOKENS/S,LOSS, with
the medians over steps of the slowest rank's time of a step, with and without the
optimizer. Blocks are dealt evenly; the embedding is in the first stage, the head in
the last. AdamW is the fused one, the fastest that PyTorch has. Needs torch 2.6 or newer.
"""
import os
import socket
import statistics
import sys
import time

TOKENS, HEADS = 64, 4
CHUNKS = {"one": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2, "zb_v": 2}


def make_stage(index, stages, width, layers, vocabulary):
    """Stage `index` of the model: its share of the blocks, and what is at its end."""
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

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            first, end = index * layers // stages, (index + 1) * layers // stages
            if index == 0:
                self.tok = nn.Embedding(vocabulary, width)
                self.pos = nn.Embedding(TOKENS, width)
                for table in self.tok, self.pos:
                    nn.init.normal_(table.weight, std=0.02)
                self.register_buffer("at", torch.arange(TOKENS))
            self.blocks = nn.Sequential(*[Block() for _ in range(first, end)])
            if index == stages - 1:
                self.norm = nn.LayerNorm(width)
                self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, x):
            if index == 0:
                x = self.tok(x) + self.pos(self.at)
            x = self.blocks(x)
            return self.head(self.norm(x)) if index == stages - 1 else x

    torch.manual_seed(1 + index)
    return Stage()


def loss_of(logits, target):
    from torch.nn import functional as F
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def own_stages(kind, rank, ranks):
    """The indices of a rank's stages, and how many there are in all."""
    if CHUNKS[kind] == 1:
        return [rank], ranks
    if kind == "zb_v":
        return [rank, 2 * ranks - 1 - rank], 2 * ranks
    return [rank, rank + ranks], 2 * ranks


def make_step(kind, micro, modules, index, stages, x, y):
    """A function that runs forward and backward of a batch, and returns the loss."""
    import torch
    from torch.distributed import pipelining as p

    def alone():
        losses = []
        for part, target in zip(x.chunk(micro), y.chunk(micro)):
            loss = loss_of(modules[0](part), target) / micro
            loss.backward()
            losses.append(loss.item())
        return sum(losses)

    if kind == "one":
        return alone
    held = [p.PipelineStage(m, i, stages, torch.device("cpu")) for m, i in zip(modules, index)]
    if CHUNKS[kind] == 1:
        schedule = (p.ScheduleGPipe if kind == "gpipe" else p.Schedule1F1B)(
            held[0], micro, loss_fn=loss_of)
    else:
        schedule = (p.ScheduleZBVZeroBubble if kind == "zb_v" else p.ScheduleInterleaved1F1B)(
            held, micro, loss_fn=loss_of)

    def piped():
        losses = []
        inputs = (x,) if 0 in index else ()
        if stages - 1 in index:
            schedule.step(*inputs, target=y, losses=losses)
        else:
            schedule.step(*inputs)
        return sum(loss.item() for loss in losses) / micro

    return piped


def work(rank, ranks, kind, size, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0",
                      GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(ranks))
    import torch
    import torch.distributed as dist
    micro, steps, width, layers, vocabulary, batch = size
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    index, stages = own_stages(kind, rank, ranks)
    modules = [make_stage(i, stages, width, layers, vocabulary) for i in index]
    torch.manual_seed(1000)
    x = torch.randint(0, vocabulary, (batch, TOKENS))
    y = torch.randint(0, vocabulary, (batch, TOKENS))
    step = make_step(kind, micro, modules, index, stages, x, y)
    adam = torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=1e-3, fused=True)
    times, loss = [], 0.0
    for _ in range(steps):
        dist.barrier()
        start = time.monotonic()
        loss = step()
        stepped = time.monotonic()
        adam.step()
        adam.zero_grad(set_to_none=True)
        times.append(((time.monotonic() - start) * 1e3, (stepped - start) * 1e3))
    queue.put((rank, times, loss))
    dist.barrier()
    dist.destroy_process_group()


def main():
    if len(sys.argv) != 9:
        sys.exit(__doc__)
    ranks, kind, size = int(sys.argv[1]), sys.argv[2], [int(a) for a in sys.argv[3:]]
    if kind not in CHUNKS or (kind == "one" and ranks != 1):
        sys.exit(__doc__)
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    workers = mp.spawn(work, (ranks, kind, size, port, queue), ranks, join=False)
    while not workers.join():  # raises what a rank raised
        pass
    got = sorted(queue.get() for _ in range(ranks))
    wall, step = (statistics.median_high(
        [max(column) for column in zip(*[[t[which] for t in g[1]] for g in got])][1:])
        for which in (0, 1))
    micro, batch = size[0], size[5]
    print(f"pipeline,torch-{kind},{ranks},{ranks * CHUNKS[kind]},{micro},{wall:.2f},{step:.2f},"
          f"{batch * TOKENS / wall * 1e3:.0f},{max(g[2] for g in got):.5f}", flush=True)


if __name__ == "__main__":
    main()
