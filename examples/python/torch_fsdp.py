# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP over Oarsong, on the CPU: each rank keeps a part of the
parameters. python3 -m oarsong.run -n 2 torch_fsdp.py (PyTorch 2.6 or later)"""
import os

os.environ.setdefault("USE_LIBUV", "0")  # where PyTorch has no libuv

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import oarsong.torch

oarsong.torch.share_memory()  # before tensors are made
dist.init_process_group("oarsong")
rank, size = dist.get_rank(), dist.get_world_size()


def train(net, batches):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for x in batches:
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))


mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
torch.manual_seed(1)
batches = torch.randn(10, 8 * size, 32)
net = make()
for layer in net:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
train(net, batches[:, rank * 8:(rank + 1) * 8])  # this rank's samples
alone = make()
train(alone, batches)  # one process with all samples
for name, parameter in net.named_parameters():
    whole = parameter.full_tensor()
    apart = (whole - alone.get_parameter(name)).abs().max().item()
    assert apart < 1e-5, (name, apart)
if rank == 0:
    print(f"{size} ranks have the parameters of one process")
dist.destroy_process_group()
