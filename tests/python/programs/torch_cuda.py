# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Oarsong with tensors on a GPU that the ranks share:
every collective, with numbers that were computed by hand."""
import torch
import torch.distributed as dist

import oarsong.torch

if not torch.cuda.is_available():
    print("skipped: no GPU")
    raise SystemExit
torch.cuda.set_device(0)
dist.init_process_group("oarsong")
rank, size = dist.get_rank(), dist.get_world_size()
total = sum(range(1, size + 1))


def full(count, value, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype, device="cuda")


def same(name, tensor, values):
    wanted = torch.as_tensor(values, dtype=tensor.dtype)
    assert torch.equal(tensor.cpu(), wanted.expand_as(tensor)), (name, tensor)


for count in (1, 1000, 1 << 20):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
        t = full(count, rank + 1, dtype)
        dist.all_reduce(t)
        same(f"all_reduce {dtype}", t, total)
    t = full(count, rank + 1)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    same("max", t, size)
    dist.broadcast(t := full(count, rank), 1)
    same("broadcast", t, 1)
    dist.reduce(t := full(count, rank + 1), 0)
    same("reduce", t, total if rank == 0 else rank + 1)
    out = full(count * size, 0)
    dist.all_gather_into_tensor(out, full(count, rank))
    same("all_gather", out.view(size, -1), torch.arange(size).view(-1, 1))
    parts = [full(count, 0) for _ in range(size)]
    dist.all_gather(parts, full(count, rank))
    same("all_gather list", torch.stack(parts),
         torch.arange(size).view(-1, 1))
    dist.reduce_scatter_tensor(t := full(count, 0), out)
    same("reduce_scatter", t, size * rank)
    dist.all_to_all_single(t := full(count * size, 0),
                           full(count * size, rank))
    same("all_to_all", t.view(size, -1), torch.arange(size).view(-1, 1))
work = dist.all_reduce(t := full(5, rank + 1), async_op=True)
work.wait()
same("after wait", t * 2, 2 * total)  # ordered on the stream
t = torch.zeros(4, 6, device="cuda").t()[1:3].fill_(rank + 1)  # strided
dist.all_reduce(t)
same("strided", t, total)
if rank == 0:
    dist.send(full(7, 3), 1)
elif rank == 1:
    dist.recv(t := full(7, 0), 0)
    same("recv", t, 3)
works = dist.batch_isend_irecv([
    dist.P2POp(dist.isend, full(3, rank), (rank + 1) % size),
    dist.P2POp(dist.irecv, t := full(3, -1), (rank - 1) % size)])
for work in works:
    work.wait()
same("batch", t, (rank - 1) % size)
dist.barrier()
torch.cuda.synchronize()
print("cuda is the same", flush=True)
dist.destroy_process_group()
