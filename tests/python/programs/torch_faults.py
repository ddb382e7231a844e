# SPDX-License-Identifier: Apache-2.0
"""Failures of torch.distributed over Oarsong: torch_faults.py KIND."""
import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist

import oarsong.torch

dist.init_process_group("oarsong", timeout=datetime.timedelta(seconds=120))
rank = dist.get_rank()
dist.barrier()
try:
    if sys.argv[1] == "mismatch":
        if rank == 0:
            dist.all_reduce(torch.ones(3))  # mark: reduce
        else:
            dist.broadcast(torch.ones(3), 1)  # mark: broadcast
    elif sys.argv[1] == "kill":
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(3))  # mark: kill
    elif sys.argv[1] == "wrong":
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
except RuntimeError as error:
    print(f"said: {error}", flush=True)
