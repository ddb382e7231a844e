#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train.c in PyTorch.

train_torch.py mlp|gpt [SECONDS|memory]        prints lines as train.c does
train_torch.py mlp|gpt bf16 [SECONDS]          parameters in bf16, without masters; and
                                               in f32, under torch.autocast
train_torch.py mlp|gpt --device cuda [SECONDS] on a GPU: eager, and compiled with
                                               mode="reduce-overhead" (graphs);
                                               a further word names one of them
"""
import os
import sys
import time

import torch_blas  # first
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


def time_blocks(name, mode, step, batch, sequence, seconds):
    """Blocks of steps between two waits for the GPU, as train.c has them."""
    block, times, host = 50, [], []
    for i in range(30):
        step(i)
    torch.cuda.synchronize()
    end = time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end:
        start = time.monotonic_ns()
        for i in range(block):
            step(i)
        host.append((time.monotonic_ns() - start) * 1e-3 / block)
        torch.cuda.synchronize()
        times.append((time.monotonic_ns() - start) * 1e-3 / block)
    times.sort()
    host.sort()
    p50 = times[len(times) // 2]
    print(f"train,{peer_name()}-cuda,{name},{mode},1,{batch},{len(times) * block},{p50:.1f},"
          f"{times[len(times) // 10]:.1f},{batch / p50 * 1e6:.1f},"
          f"{batch * sequence / p50 * 1e6:.1f},{host[len(host) // 2]:.1f}", flush=True)


def time_on_gpu(name, seconds, modes):
    loss_of = nn.CrossEntropyLoss()
    for mode in modes:
        net, data, batch, sequence = build(name)
        net = net.cuda()
        data = [(x.cuda(), y.cuda()) for x, y in data]
        if name == "mlp":
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
        else:
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

        def loss_at(x, y):
            return loss_of(net(x), y)

        forward = loss_at if mode == "eager" else torch.compile(loss_at, mode=mode)

        def step(i):
            loss = forward(*data[i % 8])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        time_blocks(name, mode, step, batch, sequence, seconds)


def time_steps(peer, name, step, batch, sequence, seconds):
    for i in range(10):
        step(i)
    times, end = [], time.monotonic() + seconds
    while len(times) < 10 or time.monotonic() < end:
        start = time.monotonic_ns()
        step(len(times))
        times.append((time.monotonic_ns() - start) * 1e-3)
    times.sort()
    p50 = times[len(times) // 2]
    print(f"train,{peer},{name},plain,1,{batch},{len(times)},{p50:.1f},"
          f"{times[len(times) // 10]:.1f},{batch / p50 * 1e6:.1f},"
          f"{batch * sequence / p50 * 1e6:.1f}", flush=True)


def time_bf16(name, seconds):
    loss_of = nn.CrossEntropyLoss()
    for mode in "bf16", "autocast":
        net, data, batch, sequence = build(name)
        if mode == "bf16":
            net = net.bfloat16()
            data = [(x.bfloat16() if x.is_floating_point() else x, y) for x, y in data]
        optimizer = make_optimizer(name, net)

        def step(i):
            x, y = data[i % 8]
            with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
                logits = net(x)
            loss = loss_of(logits.float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        try:
            time_steps(f"{peer_name()}-{mode}", name, step, batch, sequence, seconds)
        except RuntimeError as why:  # not every build multiplies bf16 everywhere
            print(f"{peer_name()}-{mode}: {why}", file=sys.stderr)


def main():
    name = sys.argv[1]
    if sys.argv[2] == "bf16":
        return time_bf16(name, float(sys.argv[3]) if len(sys.argv) > 3 else 3)
    if len(sys.argv) > 3 and sys.argv[2] == "--device":
        return time_on_gpu(name, float(sys.argv[4]) if len(sys.argv) > 4 else 3,
                           sys.argv[5:] or ("eager", "reduce-overhead"))
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
    time_steps(peer, name, step, batch, sequence, float(sys.argv[2]))


main()
