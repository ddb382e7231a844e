#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fsdp.golden with PyTorch's FSDP2 over gloo on two ranks (Debian sid:
apt-get install python3-torch libopenblas0-pthread). Made with 2.14.1.

A GPT is trained in f64 by AdamW, gradients clipped to a norm of 1. KIND is
"plain", or "tied" for one whose head is the token table:
KIND.start.NAME and KIND.end.NAME are its parameters before the first step and
after the last, KIND.loss and KIND.norm the mean loss and the norm before
clipping of each step. The batch follows from x_of and y_of, which
tests/parallel/golden_fsdp.h has too; the ranks divide its rows. One
process trains the same, and must come to the same numbers.
"""
import os
import pathlib
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from records import put, write

STEPS, BATCH, CONTEXT, VOCABULARY, WIDTH, HEADS, LAYERS = 10, 12, 6, 13, 8, 2, 3
RANKS, LIMIT, LR = 2, 1.0, 1e-2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(x).split(WIDTH, -1))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS)**0.5
        later = torch.ones(t, t).triu(1).bool()
        y = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tok.weight if tied else nn.Parameter(
            torch.randn(VOCABULARY, WIDTH))  # norms of gradients are above 1

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(CONTEXT))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def x_of(step):
    i = torch.arange(BATCH * CONTEXT) + step * BATCH * CONTEXT
    return ((i * 7919 + 13) % 1009 % VOCABULARY).view(BATCH, CONTEXT)


def y_of(step):
    i = torch.arange(BATCH * CONTEXT) + step * BATCH * CONTEXT
    return ((i * 31 + 7) % 101 % VOCABULARY).view(BATCH, CONTEXT)


def make(kind):
    """The same numbers in every process; norms are not all 1 and 0."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(60)
    net = GPT(kind == "tied")
    with torch.no_grad():
        for value in net.parameters():
            if value.dim() == 1:
                value += 0.2 * torch.randn(value.shape)
    return net


def train(net, rank, ranks):
    """The losses of this rank's rows and the norms."""
    rows = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    optim = torch.optim.AdamW(net.parameters(), lr=LR)
    losses, norms = [], []
    for step in range(STEPS):
        loss = F.cross_entropy(net(x_of(step)[rows]),
                               y_of(step)[rows].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
        optim.step()
        optim.zero_grad()
        losses.append(loss.detach())
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor")
                     else norm)
    return torch.stack(losses), torch.stack(norms).detach()


def train_sharded(rank, kind, port, queue):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      GLOO_SOCKET_IFNAME="lo", USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    net = make(kind)
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    losses, norms = train(net, rank, RANKS)
    dist.all_reduce(losses)
    end = {name: value.full_tensor().detach().numpy()
           for name, value in net.named_parameters()}
    if rank == 0:
        queue.put(((losses / RANKS).numpy(), norms.numpy(), end))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(kind):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    workers = mp.spawn(train_sharded, (kind, port, queue), RANKS, join=False)
    losses, norms, end = queue.get()
    while not workers.join():
        pass
    return (torch.from_numpy(losses), torch.from_numpy(norms),
            {name: torch.from_numpy(value) for name, value in end.items()})


def main():
    for kind in "plain", "tied":
        net = make(kind)
        for name, value in net.named_parameters():
            put(f"{kind}.start.{name}", value.clone())
        losses, norms, end = on_ranks(kind)
        alone = train(net, 0, 1)
        apart = [(losses - alone[0]).abs().max(), (norms - alone[1]).abs().max()]
        for name, value in net.named_parameters():
            apart.append((end[name] - value).abs().max())
        assert max(apart) < 1e-11, f"two ranks and one are {max(apart)} apart"
        put(f"{kind}.loss", losses)
        put(f"{kind}.norm", norms)
        for name, value in end.items():
            put(f"{kind}.end.{name}", value)
        print(f"{kind}: loss {losses[0]:.6f} to {losses[-1]:.6f}, norms "
              f"{norms.min():.3f} to {norms.max():.3f}, one process is "
              f"{max(apart):.1e} apart")
    write(pathlib.Path(__file__).with_name("fsdp.golden"))


if __name__ == "__main__":
    main()
