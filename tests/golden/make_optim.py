#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes optim.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. start.pI is parameter I before the first step,
grad.pI its gradients, one row a step (all of them exact in f32). A run is
RUN.DTYPE.pI, each parameter after the last step, and RUN.DTYPE.pI.STATE, what
the optimizer keeps for it. clip.* is clip_grad_norm_ on the gradients of the
first step; clip_value.* clip_grad_value_. schedule.NAME is the learning rate
that a scheduler gives before each step, starting from 1.
"""
import pathlib

import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as lr

from records import put, write

STEPS, SHAPES, DTYPES = 12, [(5, 3), (7,), ()], {"f32": torch.float32,
                                                 "f64": torch.float64}
RUNS = {
    "sgd": (SGD, dict(lr=0.1)),
    "sgd_decay": (SGD, dict(lr=0.1, weight_decay=0.03)),
    "momentum": (SGD, dict(lr=0.05, momentum=0.9)),
    "nesterov": (SGD, dict(lr=0.05, momentum=0.8, nesterov=True,
                           weight_decay=0.01)),
    "adam": (Adam, dict(lr=0.01)),
    "adam_decay": (Adam, dict(lr=0.02, betas=(0.8, 0.97), eps=1e-6,
                              weight_decay=0.05)),
    "adamw": (AdamW, dict()),
    "adamw_decay": (AdamW, dict(lr=0.02, betas=(0.7, 0.95), weight_decay=0.2)),
    "adamw_none": (AdamW, dict(lr=0.02, weight_decay=0.0)),
}
SCHEDULED = [4, 20, 0.1]  # cosine: warm-up, steps, final

torch.manual_seed(21)


def exact(*shape):
    return torch.randn(shape, dtype=torch.float32).double()


start = [exact(*s) for s in SHAPES]
# Sizes from 1e-3 to 1e1, so that eps and the roots matter.
grads = [exact(STEPS, *s) * (10.0 ** torch.linspace(-3, 1, STEPS)).float()
         .double().view(-1, *[1] * len(s)) for s in SHAPES]
grads = [g.float().double() for g in grads]


def run(name, dtype, make, skip=(), rate=None):
    params = [p.to(DTYPES[dtype], copy=True).requires_grad_() for p in start]
    optim = make(params)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = grads[i][step].to(DTYPES[dtype])
            if (i, step) in skip:
                p.grad = None
        if rate is not None:
            for g in optim.param_groups:
                g["lr"] = rate(step)
        optim.step()
    for i, p in enumerate(params):
        put(f"{name}.{dtype}.p{i}", p)
        for key, value in optim.state[p].items():
            if value is not None:
                put(f"{name}.{dtype}.p{i}.{key}", value)


def cosine(step):
    warmup, steps, final = SCHEDULED
    if step < warmup:
        return 0.05 * step / warmup
    part = torch.tensor((step - warmup) / (steps - warmup)).double()
    return 0.05 * float(final + (1 - final) * (1 + (part * torch.pi).cos()) / 2)


def runs():
    for i, (p, g) in enumerate(zip(start, grads)):
        put(f"start.p{i}", p)
        put(f"grad.p{i}", g)
    for dtype in DTYPES:
        for name, (kind, options) in RUNS.items():
            run(name, dtype, lambda ps: kind(ps, **options))
        # Groups: the second and third have their own rates and no decay.
        run("groups", dtype, lambda ps: AdamW([
            dict(params=ps[:1], lr=0.02, weight_decay=0.1),
            dict(params=ps[1:2], lr=0.01, weight_decay=0.0),
            dict(params=ps[2:], lr=0.06, weight_decay=0.2)]))
        # Parameter 1 has no gradient in steps 0, 1 and 5.
        run("skip", dtype, lambda ps: AdamW(ps, lr=0.02),
            skip={(1, 0), (1, 1), (1, 5)})
        run("scheduled", dtype, lambda ps: AdamW(ps), rate=cosine)


def clips():
    for name, limit in [("clip", 0.5), ("clip_not", 1e3)]:
        params = [p.clone().requires_grad_() for p in start]
        for i, p in enumerate(params):
            p.grad = grads[i][-1].clone()
        put(f"{name}.norm", torch.nn.utils.clip_grad_norm_(params, limit))
        for i, p in enumerate(params):
            put(f"{name}.p{i}", p.grad)
    params = [p.clone().requires_grad_() for p in start]
    for i, p in enumerate(params):
        p.grad = grads[i][-1].clone()
    torch.nn.utils.clip_grad_value_(params, 0.75)
    for i, p in enumerate(params):
        put(f"clip_value.p{i}", p.grad)


def schedules():
    for name, make in {
        "linear": lambda o: lr.LinearLR(o, 1.0, 0.2, total_iters=15),
        "cosine": lambda o: lr.CosineAnnealingLR(o, 15, eta_min=0.1),
        "step": lambda o: lr.StepLR(o, step_size=4, gamma=0.3),
    }.items():
        optim = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule = make(optim)
        rates = []
        for _ in range(16):
            rates.append(optim.param_groups[0]["lr"])
            optim.step()
            schedule.step()
        put(f"schedule.{name}", torch.tensor(rates, dtype=torch.float64))


runs()
clips()
schedules()
write(pathlib.Path(__file__).with_name("optim.golden"))
