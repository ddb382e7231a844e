# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DDP over Oarsong: python3 -m oarsong.run -n 2 torch_ddp.py

Two lines differ from a program for gloo: the import, and the name of the
backend. share_memory() is a third, which spares copies."""
import os

os.environ.setdefault("USE_LIBUV", "0")  # where PyTorch has no libuv

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import oarsong.torch

oarsong.torch.share_memory()  # before tensors are made
dist.init_process_group("oarsong")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same model everywhere
net = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(),
                                            nn.Linear(256, 1)))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
torch.manual_seed(1 + rank)  # other samples on each rank
for step in range(20):
    x = torch.randn(64, 32)
    loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()  # gradients are averaged over all ranks
    optimizer.step()
dist.all_reduce(loss := loss.detach())
if rank == 0:
    print(f"{size} ranks, loss {loss.item() / size:.3f}")
dist.destroy_process_group()
