#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The two models of train.c in PyTorch: same shapes, batch and optimizer.

train_torch.py mlp|gpt [SECONDS|memory]   prints lines as train.c does
"""
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
WIDTH, HEADS, LAYERS, SEQUENCE, VOCABULARY = 128, 4, 4, 64, 65


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((SEQUENCE, SEQUENCE), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        heads = (x.shape[0], SEQUENCE, HEADS, WIDTH // HEADS)
        q, k, v = (t.view(heads).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        score = (q @ k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5 + self.mask
        y = (score.softmax(3) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("at", torch.arange(SEQUENCE))

    def forward(self, tokens):
        x = self.blocks(self.tok(tokens) + self.pos(self.at))
        return self.head(self.norm(x)).flatten(0, 1)


def build(name):
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024),
                            nn.ReLU(), nn.Linear(1024, 10))
        data = [(torch.randn(64, 784), torch.randint(0, 10, (64,))) for _ in range(8)]
        return net, lambda: torch.optim.SGD(net.parameters(), lr=0.1), data, 64, 1
    net = GPT()
    data = [(torch.randint(0, VOCABULARY, (16, SEQUENCE)),
             torch.randint(0, VOCABULARY, (16 * SEQUENCE,))) for _ in range(8)]
    return net, lambda: torch.optim.AdamW(net.parameters(), lr=1e-3), data, 16, SEQUENCE


def resident_kib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def peak_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def main():
    name = sys.argv[1]
    net, make_optimizer, data, batch, sequence = build(name)
    before = resident_kib()
    optimizer = make_optimizer()
    peer = "torch" + torch.__version__.split("+")[0]
    loss_of = nn.CrossEntropyLoss()

    def step(i):
        x, y = data[i % 8]
        loss = loss_of(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if sys.argv[2] == "memory":
        forget_peak()
        step(0)
        end, peak = resident_kib(), peak_kib()
        for i in 1, 2:
            step(i)
        print(f"memory,{peer},{name},{end - before},{peak - before},"
              f"{resident_kib() - before}")
        return
    for i in range(10):
        step(i)
    times, end = [], time.monotonic() + float(sys.argv[2])
    while len(times) < 10 or time.monotonic() < end:
        start = time.monotonic_ns()
        step(len(times))
        times.append((time.monotonic_ns() - start) * 1e-3)
    times.sort()
    p50 = times[len(times) // 2]
    print(f"train,{peer},{name},plain,1,{batch},{len(times)},{p50:.1f},"
          f"{times[len(times) // 10]:.1f},{batch / p50 * 1e6:.1f},"
          f"{batch * sequence / p50 * 1e6:.1f}")


main()
