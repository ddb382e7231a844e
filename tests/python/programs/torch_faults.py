# SPDX-License-Identifier: Apache-2.0
"""Failures of torch.distributed over Oarsong: torch_faults.py KIND [FILE].
FILE takes the time at which rank 1 kills itself."""
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import oarsong.torch


def end():
    """Ends this process as a crash would."""
    time.sleep(0.2)  # the other waits already
    with open(sys.argv[2], "w") as file:
        file.write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def say(error):
    if os.path.exists(sys.argv[2]):
        with open(sys.argv[2]) as file:
            after = time.time() - float(file.read())
        print(f"said after {after:.3f} s: {error}", flush=True)


def mismatch():
    if rank == 0:
        dist.all_reduce(torch.ones(3))  # mark: reduce
    else:
        dist.broadcast(torch.ones(3), 1)  # mark: broadcast
        dist.barrier()  # the root of a broadcast need not wait


def kill():
    if rank == 1:
        end()
    try:
        dist.all_reduce(torch.ones(3))  # mark: kill
    except RuntimeError as error:
        say(error)


def wrong():
    for call in (lambda: dist.broadcast(torch.ones(3).to_sparse(), 0),
                 lambda: dist.all_reduce(torch.ones(3, dtype=torch.cfloat),
                                         dist.ReduceOp.MAX),
                 lambda: dist.all_to_all_single(torch.ones(3),
                                                torch.ones(3))):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            print(f"said: {error}", flush=True)
    dist.barrier()


# ---- inside the backward pass of PyTorch's DDP -------------------------------


def forward():
    """Returns a loss whose gradients are reduced in the backward pass."""
    net = DistributedDataParallel(nn.Linear(3, 1))
    net.module.weight.register_hook(lambda _: end() if ending else None)
    nets.append(net)  # its hooks go with it
    return net(torch.ones(2, 3)).sum()


def backward_kill():
    global ending
    ending = rank == 1
    loss = forward()
    try:
        loss.backward()  # mark: backward kill
    except RuntimeError as error:
        say(error)


def other_call():
    """What rank 1 does instead."""
    dist.broadcast(torch.ones(3), 1)  # mark: other call
    dist.barrier()


def backward_mismatch():
    loss = forward()
    if rank == 1:
        other_call()
    loss.backward()  # mark: backward


class Nest(torch.autograd.Function):
    """Backward passes within backward passes: from the 61st on, autograd runs
    them on threads that have no frames of Python."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            if ctx.depth > 1:
                nest(ctx.depth - 1)
            else:
                losses.pop().backward()  # mark: nested
        return gradient, None


def nest(depth):
    Nest.apply(torch.ones(1, requires_grad=True), depth).backward()


def backward_nested():
    losses.append(forward())
    if rank == 1:
        other_call()
    nest(61)


ending = False
losses, nets = [], []
dist.init_process_group("oarsong", timeout=datetime.timedelta(seconds=120))
rank = dist.get_rank()
dist.barrier()
try:
    globals()[sys.argv[1]]()
except RuntimeError as failure:
    print(f"said: {failure}", flush=True)
