# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed gives by one backend: torch_ranks.py BACKEND FOLDER.

Writes one file for each rank: results of collectives and of training by
PyTorch's own DDP, to be compared with those of another backend.
"""
import datetime
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

backend, folder = sys.argv[1:]
if backend == "oarsong":
    import oarsong.torch
dist.init_process_group(backend, timeout=datetime.timedelta(seconds=120))
rank, size = dist.get_rank(), dist.get_world_size()
found = {}


def keep(name, value):
    """Notes a result: a tensor, or a list of them."""
    if isinstance(value, torch.Tensor):
        value = [value]
    found[name] = [torch.view_as_real(t).tolist() if t.is_complex()
                   else t.double().tolist() for t in value]


def mine(dtype=torch.float32, shape=(2, 3)):
    """This rank's numbers."""
    count = torch.Size(shape).numel()
    return (torch.arange(count).reshape(shape) + 10 * rank + 1).to(dtype)


def collectives():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int8,
                  torch.uint8, torch.int32, torch.int64):
        t = mine(dtype)
        try:
            dist.all_reduce(t)
        except RuntimeError:  # not every gloo has every dtype
            if backend == "oarsong":
                raise
            continue
        keep(f"all_reduce {dtype}", t)
    for op in ("SUM", "PRODUCT", "MIN", "MAX"):
        t = mine()
        dist.all_reduce(t, getattr(dist.ReduceOp, op))
        keep(f"all_reduce {op}", t)
    t = mine(torch.float32, (4, 4)).t()[1:3]  # not contiguous
    t = t.clone(memory_format=torch.preserve_format)
    dist.all_reduce(t)
    keep("all_reduce strided", t)
    t = mine()
    dist.broadcast(t, size - 1)
    keep("broadcast", t)
    t = mine()
    dist.reduce(t, 0)
    keep("reduce", t if rank == 0 else [])
    out = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(out, mine())
    keep("all_gather", out)
    out = [torch.zeros(2, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(), out, 0)
    keep("gather", out or [])
    t = torch.zeros(2, 3)
    dist.scatter(t, [mine() + r for r in range(size)] if rank == 0 else None, 0)
    keep("scatter", t)


def messages():
    after, before = (rank + 1) % size, (rank - 1) % size
    t = torch.zeros(2, 3)
    works = [dist.isend(mine(), after, tag=3), dist.irecv(t, before, tag=3)]
    for work in works:
        work.wait()
    keep("ring", t)
    if rank == 0:
        got = torch.zeros(size)
        for _ in range(size - 1):
            t = torch.zeros(1)
            got[dist.recv(t)] = t[0]
        keep("any source", got)
    else:
        dist.send(torch.tensor([float(rank)]), 0)


def groups_and_objects():
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    found["objects"] = everyone
    box = [rank * 100] if rank == 1 else [None]
    dist.broadcast_object_list(box, 1)
    found["object"] = box
    pair = dist.new_group([0, 1])
    t = mine()
    if rank < 2:
        dist.all_reduce(t, group=pair)
    keep("new_group", t)
    dist.barrier()
    work = dist.all_reduce(t := mine(), async_op=True)
    work.get_future().wait()
    keep("future", t)
    done = dist.all_reduce(t := mine(), async_op=True)
    done.wait()
    keep("future of what is done", done.get_future().wait()[0])


def train():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
                        nn.Flatten(), nn.Linear(4 * 36, 10))
    wrapped = DistributedDataParallel(net)
    optim = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for _ in range(10):
        loss = nn.functional.cross_entropy(wrapped(torch.randn(8, 1, 8, 8)),
                                           torch.randint(10, (8,)))
        optim.zero_grad()
        loss.backward()
        optim.step()
    keep("trained", [p.detach() for p in net.parameters()])


def past_gloo():
    """What gloo of PyTorch 1.13 does not have: compared with sums by hand."""
    if backend != "oarsong":
        return
    ones = torch.arange(2 * size, dtype=torch.float32)
    t = torch.zeros(2)
    dist.reduce_scatter(t, list(ones.view(size, 2).unbind()))
    assert t.tolist() == [size * 2 * rank, size * (2 * rank + 1)], t
    t = torch.zeros(size)
    dist.all_to_all_single(t, torch.full((size,), float(rank)))
    assert t.tolist() == list(range(size)), t
    parts = [torch.zeros(r + 1) for r in range(size)]
    dist.all_to_all(parts, [torch.full((rank + 1,), float(rank))
                            for _ in range(size)])
    assert [p.tolist() for p in parts] == [[r] * (r + 1) for r in range(size)]
    t = mine(torch.bfloat16)
    dist.all_reduce(t, dist.ReduceOp.AVG)
    t = torch.full((3,), complex(rank, 1))
    dist.all_reduce(t)
    assert t.tolist() == [complex(sum(range(size)), size)] * 3, t
    oarsong.torch.monitored_barrier()


def coalesced():
    """Many calls as one, by PyTorch 2's own manager."""
    if torch.__version__.startswith("1.") or backend != "oarsong":
        return
    if oarsong.torch._extension is None:  # the backend in Python lacks it
        return
    manager = dist.distributed_c10d._coalescing_manager
    parts = [mine(shape=(n,)) for n in (1, 5, 3)]
    with manager(async_ops=True) as batch:
        for t in parts:
            dist.all_reduce(t)
    batch.wait()
    for t in parts:
        each = sum(10 * r + 1 for r in range(size))
        assert t.tolist() == [each + size * i for i in range(len(t))], t
    cpu = torch.device("cpu")
    a, b = mine(shape=(3,)), torch.zeros(4, 4).t()[1:3]
    with manager(device=cpu, async_ops=True) as batch:
        dist.broadcast(a, 0)
        work = dist.broadcast(b.fill_(rank), 1, async_op=True)  # strided
    batch.wait()
    work.wait()
    assert a.tolist() == [1, 2, 3] and (b == 1).all(), (a, b)
    t = torch.zeros(3)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, mine(shape=(3,)), (rank + 1) % size),
        dist.P2POp(dist.irecv, t, (rank - 1) % size)])
    for work in works:
        work.wait()
    assert t[0] == 10 * ((rank - 1) % size) + 1, t
    try:
        with manager(device=cpu):
            dist.broadcast(mine(), size + 3)
        raise AssertionError("there is no such rank")
    except (RuntimeError, ValueError):
        pass


collectives()
messages()
groups_and_objects()
train()
past_gloo()
coalesced()
with open(os.path.join(folder, f"{backend}.{rank}"), "w") as file:
    json.dump(found, file)
