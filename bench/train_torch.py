#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train.c in PyTorch.

train_torch.py mlp|gpt [SECONDS|memory]   prints lines as train.c does
"""
import os
import sys
import time

import torch
from torch import nn

from models_torch import build, make_optimizer, peer_name

torch.set_num_threads(1)


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
    net, data, batch, sequence = build(name)
    before = resident_kib()
    optimizer = make_optimizer(name, net)
    peer = peer_name()
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
