# SPDX-License-Identifier: Apache-2.0
"""Prints how many pages a step takes from the system that makes tensors of a
few MiB and frees them, as the forward and backward of a training do."""
import resource

import torch

import oarsong.torch

STEPS = 10


def step():
    kept = [torch.ones(1 << 20) for _ in range(4)]
    return sum(float(tensor[0]) for tensor in kept)


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


for _ in range(2 * STEPS):  # malloc needs a few to find places for all
    step()
before = faults()
for _ in range(STEPS):
    step()
print((faults() - before) // STEPS)
