# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in shared memory: reductions in place, a training that
takes no new memory after its first steps, and children made by fork."""
import ctypes
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import oarsong as oar
import oarsong.torch

LARGE = 1 << 18
before = torch.zeros(LARGE)
oarsong.torch.share_memory()
dist.init_process_group("oarsong")
rank, size = dist.get_rank(), dist.get_world_size()


def shared(tensor):
    return bool(oar.lib.oar_shared_reachable(
        ctypes.c_void_p(tensor.data_ptr()), tensor.numel() * 4))


def placement():
    assert not shared(before) and not shared(torch.zeros(100))
    large = torch.full((LARGE,), float(rank))
    assert shared(large)
    dist.all_reduce(large)
    assert (large == sum(range(size))).all()
    stats = oarsong.torch.memory_stats()
    assert stats["used_bytes"] >= 4 * LARGE, stats
    del large
    for n in range(100):
        torch.empty(LARGE - n)
    after = oarsong.torch.memory_stats()
    assert after["allocations"] == stats["allocations"], (stats, after)
    assert after["used_bytes"] < stats["used_bytes"]
    torch.empty(LARGE).resize_(3 * LARGE).fill_(1)
    torch.empty(LARGE).share_memory_()
    heads = torch.randn(64, 64, 128)  # libraries below PyTorch take memory too
    assert torch.bmm(heads, heads.transpose(1, 2)).isfinite().all()


def child(tensor):
    """Returns what a child sees; what it writes must not be seen here."""
    pid = os.fork()
    if pid == 0:
        seen = int(tensor[0]) == 7
        tensor.fill_(9)
        made = torch.full((LARGE,), 5.0)
        os._exit(0 if seen and not shared(made) and made[-1] == 5 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forks():
    tensor = torch.full((LARGE,), 7.0)
    assert shared(tensor)
    assert child(tensor) == 0
    assert (tensor == 7).all(), "the child has written to its parent's memory"
    rows = torch.arange(LARGE, dtype=torch.float32).view(-1, 1024)
    loader = DataLoader(TensorDataset(rows), batch_size=64, num_workers=2,
                        multiprocessing_context="fork")
    assert torch.equal(torch.cat([batch for batch, in loader]), rows)


def train():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    wrapped = DistributedDataParallel(net)
    optim = torch.optim.Adam(wrapped.parameters(), 0.001)
    torch.manual_seed(2 + rank)
    for step in range(6):
        optim.zero_grad()
        wrapped(torch.randn(512, 256)).square().mean().backward()
        optim.step()
        if step == 2:
            stats = oarsong.torch.memory_stats()
    assert (oarsong.torch.memory_stats()["allocations"] ==
            stats["allocations"]), (stats, oarsong.torch.memory_stats())
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(flat, other) for other in everyone)


placement()
forks()
train()
oarsong.torch.share_memory(0)
assert not shared(torch.empty(LARGE))
print("memory is shared", flush=True)
