#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes adam.golden with PyTorch (Debian: apt-get install python3-torch).

More runs of Adam and AdamW from the parameters and over the gradients in
optim.golden, in the same form: see make_optim.py.
"""
import pathlib

import torch
from torch.optim import Adam, AdamW

from records import put, read, write

DTYPES = {"f32": torch.float32, "f64": torch.float64}
RUNS = {
    "amsgrad": (Adam, dict(lr=0.02, betas=(0.8, 0.3), amsgrad=True)),
    "amsgrad_w": (AdamW, dict(lr=0.02, betas=(0.8, 0.3), weight_decay=0.1,
                              amsgrad=True)),
    "beta1_zero": (Adam, dict(lr=0.01, betas=(0.0, 0.9))),
    "beta2_zero": (AdamW, dict(lr=0.01, betas=(0.9, 0.0))),
    "eps_zero": (Adam, dict(lr=0.01, eps=0.0)),
}

here = pathlib.Path(__file__)
given = read(here.with_name("optim.golden"))


def run(name, dtype, kind, options):
    params = [given[f"start.p{i}"].to(DTYPES[dtype], copy=True)
              .requires_grad_() for i in range(3)]
    optim = kind(params, **options)
    for step in range(len(given["grad.p0"])):
        for i, p in enumerate(params):
            p.grad = given[f"grad.p{i}"][step].to(DTYPES[dtype])
        optim.step()
    for i, p in enumerate(params):
        put(f"{name}.{dtype}.p{i}", p)
        for key, value in optim.state[p].items():
            put(f"{name}.{dtype}.p{i}.{key}", value)


for dtype in DTYPES:
    for name, (kind, options) in RUNS.items():
        run(name, dtype, kind, options)
write(here.with_name("adam.golden"))
