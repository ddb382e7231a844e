# SPDX-License-Identifier: Apache-2.0
"""One rank of compare-torch, under `oarsong run`:
torch_backends.py gloo|oarsong|oarsong-shared|bindings SECONDS LARGE_BYTES

Prints one line for each figure: torch,BACKEND,WHAT,VALUE,UNIT (rank 0)."""
import os
import sys
import time

os.environ.setdefault("USE_LIBUV", "0")  # Debian builds PyTorch without it

import torch_blas  # first
import torch
import torch.distributed as dist

from models_torch import build, make_optimizer

backend, seconds, large_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])


def median_of(call, agree):
    """Median time of a call in seconds, over as many as fit into `seconds`."""
    for _ in range(5):
        call()
    start = time.monotonic()
    call()
    times = []
    for _ in range(agree(int(seconds / max(time.monotonic() - start, 1e-6)))):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[len(times) // 2] / 1e9


def bindings():
    """The Python package alone, without torch.distributed."""
    import oarsong as oar
    group = oar.init()

    def agree(count):
        box = torch.tensor([min(max(count, 10), 20000)])
        group.broadcast(box)
        return int(box)
    small = oar.Span(torch.zeros(2))
    large = oar.Span(oar.shared_array(large_bytes), "f32")
    return [("all_reduce 8 B", median_of(lambda: group.all_reduce(small), agree) * 1e6, "us"),
            (f"all_reduce {large_bytes} B",
             median_of(lambda: group.all_reduce(large), agree) * 1e3, "ms")], group.rank


def training(name, agree):
    """Samples/s of all ranks together, by PyTorch's DDP."""
    torch.manual_seed(1234)
    net, data, batch, _ = build(name)
    net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer, loss_of = make_optimizer(name, net), torch.nn.CrossEntropyLoss()

    def step(turn=[0]):
        x, y = data[turn[0] % len(data)]
        turn[0] += 1
        optimizer.zero_grad(set_to_none=True)
        loss_of(net(x), y).backward()
        optimizer.step()
    return batch * dist.get_world_size() / median_of(step, agree)


def by_torch():
    if backend != "gloo":
        import oarsong.torch
        if backend == "oarsong-shared":
            oarsong.torch.share_memory()
    dist.init_process_group(backend.split("-")[0])

    def agree(count):
        box = torch.tensor([min(max(count, 10), 20000)])
        dist.broadcast(box, 0)
        return int(box)
    small, large = torch.zeros(2), torch.zeros(large_bytes // 4)
    found = [("all_reduce 8 B", median_of(lambda: dist.all_reduce(small), agree) * 1e6, "us"),
             (f"all_reduce {large_bytes} B",
              median_of(lambda: dist.all_reduce(large), agree) * 1e3, "ms")]
    for name in ("mlp", "gpt"):
        found.append((f"ddp {name}", training(name, agree), "samples/s"))
    return found, dist.get_rank()


figures, rank = bindings() if backend == "bindings" else by_torch()
if rank == 0:
    for what, value, unit in figures:
        print(f"torch,{backend},{what},{value:.2f},{unit}", flush=True)
