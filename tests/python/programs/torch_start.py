# SPDX-License-Identifier: Apache-2.0
"""Says the sum of all ranks' numbers, under any launcher."""
import torch
import torch.distributed as dist

import oarsong.torch

dist.init_process_group("oarsong")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}",
      flush=True)
dist.destroy_process_group()
