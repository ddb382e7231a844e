# SPDX-License-Identifier: Apache-2.0
"""Calls by torch.distributed.rpc (TensorPipe) between two processes, for
bench/compare-rpc.

  rpc_torch.py PORT CALLS BYTES

Prints a line "NAME,FIGURE" for each of sync_us (8 bytes there and back by rpc_sync,
median), async_us (the same by rpc_async and wait), calls (a second, 64 outstanding)
and gb (BYTES there and back, GB/s each way)."""
import os
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as processes

OUTSTANDING = 64


def echo(tensor):
    return tensor


def median_us(count, body):
    took = []
    for _ in range(count):
        began = time.perf_counter()
        body()
        took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)


def calls_a_second(small, calls):
    began, pending, made = time.perf_counter(), [], 0
    while made < calls or pending:
        while made < calls and len(pending) < OUTSTANDING:
            pending.append(rpc.rpc_async("rank1", echo, (small,)))
            made += 1
        pending.pop(0).wait()
    return made / (time.perf_counter() - began)


def lead(calls, size):
    small, large = torch.zeros(8, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)

    def sync(tensor=small):
        rpc.rpc_sync("rank1", echo, (tensor,))

    median_us(calls // 10 + 1, sync)
    print(f"sync_us,{median_us(calls, sync):.2f}", flush=True)
    wait = median_us(calls, lambda: rpc.rpc_async("rank1", echo, (small,)).wait())
    print(f"async_us,{wait:.2f}", flush=True)
    print(f"calls,{calls_a_second(small, 4 * calls):.0f}", flush=True)
    us = median_us(5, lambda: sync(large))
    print(f"gb,{2e-3 * size / us:.3f}", flush=True)


def run(rank, port, calls, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        lead(calls, size)
    rpc.shutdown()


if __name__ == "__main__":
    processes.spawn(run, (sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), nprocs=2)
