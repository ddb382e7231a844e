# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own ways to train, over Oarsong: torch_train.py WHAT [cuda]

  mlp     DDP of two layers: as over gloo (oarsong alone on cuda)
  gpt     DDP of a small transformer: the same
  syncbn  a CNN with SyncBatchNorm: as one process with all samples; on the CPU,
          which PyTorch's own does not know, with one of ours, and as over gloo
  zero    ZeroRedundancyOptimizer: as the optimizer that it wraps
  fsdp    parameters in parts: as one process with all samples

Prints "WHAT is the same", or "skipped: why"."""
import os
import sys

os.environ.setdefault("USE_LIBUV", "0")  # where PyTorch has no libuv

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import oarsong.torch

what, device = (sys.argv[1:] + ["cpu"])[:2]
if device == "cuda":
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
dist.init_process_group("oarsong")
rank, size = dist.get_rank(), dist.get_world_size()
EACH = 4  # samples of a rank


def skip(why):
    print(f"skipped: {why}", flush=True)
    sys.exit(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool,
                          device=x.device).triu(1)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def gpt():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(50, 32), Block(32), Block(32),
                         nn.Linear(32, 50)).to(device)


class SyncNorm(nn.Module):
    """SyncBatchNorm for the CPU: sums of all ranks, with their gradients."""

    def __init__(self, features, group):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        from torch.distributed.nn.functional import all_reduce
        sums = torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3))])
        if self.group is not None:
            sums = all_reduce(sums, group=self.group)
        sums = sums / (x[:, 0].numel() * (size if self.group else 1))
        mean, square = sums.view(2, 1, -1, 1, 1)
        x = (x - mean) * (square - mean.square() + 1e-5).rsqrt()
        return x * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


def cnn():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
                         nn.Flatten(), nn.Linear(4 * 36, 10)).to(device)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10)).to(
        device)


def batches(make, samples):
    """Returns ten batches, of which this rank has `samples`."""
    torch.manual_seed(7)
    return [tuple(t.to(device)[samples] for t in make()) for _ in range(10)]


def tokens():
    text = torch.randint(50, (EACH * size, 9))
    return text[:, :-1], text[:, 1:]


def images():
    return torch.randn(EACH * size, 1, 8, 8), torch.randint(10, (EACH * size,))


def rows():
    return torch.randn(EACH * size, 16), torch.randint(10, (EACH * size,))


def train(net, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        out = net(x)
        nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]),
                                    y.reshape(-1)).backward()
        optimizer.step()


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def compare(ours, theirs, limit=1e-6):
    for (name, a), b in zip(ours, theirs):
        apart = (a - b).abs().max().item() / max(1, b.abs().max().item())
        assert apart < limit, (name, apart)


mine = slice(rank * EACH, (rank + 1) * EACH)
if what in ("mlp", "gpt"):
    data, nets = batches(tokens if what == "gpt" else rows, mine), []
    other = dist.new_group(backend="oarsong" if device == "cuda" else "gloo")
    for group in (None, other):
        nets.append(gpt() if what == "gpt" else mlp())
        wrapped = DistributedDataParallel(nets[-1], process_group=group)
        train(wrapped, sgd(wrapped), data)
    compare(nets[0].named_parameters(), nets[1].parameters())
elif what == "syncbn" and device == "cpu":
    nets = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo"), None):
        nets.append(cnn())
        nets[-1][1] = SyncNorm(4, group)
        if group is None:
            train(nets[-1], sgd(nets[-1]), batches(images, slice(None)))
        else:
            wrapped = DistributedDataParallel(nets[-1], process_group=group)
            train(wrapped, sgd(wrapped), batches(images, mine))
    compare(nets[0].named_parameters(), nets[1].parameters())
    compare(nets[0].named_parameters(), nets[2].parameters(), 1e-5)
elif what == "syncbn":
    alone, net = cnn(), nn.SyncBatchNorm.convert_sync_batchnorm(cnn())
    wrapped = DistributedDataParallel(net)
    train(wrapped, sgd(wrapped), batches(images, mine))
    train(alone, sgd(alone), batches(images, slice(None)))
    compare(net.named_parameters(), alone.parameters(), 1e-5)
elif what == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer
    data, nets = batches(rows, mine), []
    for part in (True, False):
        nets.append(mlp())
        wrapped = DistributedDataParallel(nets[-1])
        train(wrapped, ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.Adam, lr=0.01) if part else
            torch.optim.Adam(wrapped.parameters(), 0.01), data)
    compare(nets[0].named_parameters(), nets[1].parameters())
elif what == "fsdp":
    try:
        from torch.distributed.fsdp import fully_shard
    except (ImportError, ValueError):  # 1.13 with Python 3.11 says the latter
        skip("FSDP on the CPU needs PyTorch 2.6")
    net, alone = mlp(), mlp()
    mesh = dist.device_mesh.init_device_mesh(device, (size,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    train(net, sgd(net), batches(rows, mine))
    train(alone, sgd(alone), batches(rows, slice(None)))
    compare([(name, p.full_tensor()) for name, p in net.named_parameters()],
            alone.parameters(), 1e-5)
print(f"{what} is the same", flush=True)
dist.destroy_process_group()
