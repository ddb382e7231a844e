#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes mlp.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. Training runs are KIND.loss (one per step) and
KIND.NAME for each parameter after the last step; init.NAME is each parameter
before the first. The data follow from x_of and y_of below, which
tests/unit/mlp_cases.h has too.
"""
import pathlib

import torch
import torch.nn.functional as F

from records import case, put, write

STEPS, BATCH, SIZES = 10, 16, [20, 16, 16, 10]
RUNS = {
    "plain": dict(lr=0.1),
    "momentum": dict(lr=0.05, momentum=0.9),
    "nesterov": dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
}

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)


def cases():
    r = torch.randn
    case("add", lambda a, b: a + b, r(3, 5), r(3, 5))
    case("add_row", lambda a, b: a + b, r(7, 5), r(5))
    case("add_both", lambda a, b: a + b, r(3, 1, 5), r(7, 1))
    case("mul", lambda a, b: a * b, r(3, 1, 5), r(7, 1))
    case("mul_views", lambda a, b: a.t() * b, r(5, 3), r(3, 5))
    case("scale", lambda a: a * -1.75, r(11))
    case("relu", torch.relu, r(5, 7))
    case("relu_view", lambda a: torch.relu(a.t()), r(5, 7))
    case("sum", torch.sum, r(3, 5, 7))
    case("mean", torch.mean, r(3, 11))
    case("reshape", lambda a: a.reshape(7, -1) * a.reshape(7, -1), r(3, 7, 5))
    case("reshape_copy", lambda a: a.transpose(0, 2).reshape(5, -1), r(3, 7, 5))
    case("narrow", lambda a: a.narrow(1, 2, 3), r(3, 7))
    case("matmul", torch.matmul, r(3, 5), r(5, 7))
    case("matmul_views", lambda a, b: a.t() @ b.t(), r(5, 3), r(7, 5))
    case("linear", F.linear, r(5, 7), r(3, 7), r(3))
    case("linear_deep", F.linear, r(2, 5, 7), r(3, 7), r(3))
    case("linear_no_bias", F.linear, r(5, 7), r(3, 7))
    case("softmax", lambda a: torch.softmax(a, -1), 3 * r(3, 5, 7))
    case("cross_entropy", F.cross_entropy, 3 * r(7, 5),
         ints=(torch.tensor([0, 4, 2, 2, 1, 3, 0]),))


def x_of(step):
    i = torch.arange(BATCH * SIZES[0]) + step * BATCH * SIZES[0]
    return (((i * 7919 + 13) % 1009).double() / 504.5 - 1).view(BATCH, -1)


def y_of(step):
    i = torch.arange(BATCH) + step * BATCH
    return (i * 31 + 7) % 101 % SIZES[-1]


def mlp():
    layers = []
    for a, b in zip(SIZES, SIZES[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def train():
    start = mlp().state_dict()
    for name, value in start.items():
        put(f"init.{name}", value)
    for kind, options in RUNS.items():
        net = mlp()
        net.load_state_dict(start)
        optim = torch.optim.SGD(net.parameters(), **options)
        losses = []
        for step in range(STEPS):
            loss = F.cross_entropy(net(x_of(step)), y_of(step))
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(loss.item())
        put(f"{kind}.loss", torch.tensor(losses))
        for name, value in net.state_dict().items():
            put(f"{kind}.{name}", value)


cases()
train()
write(pathlib.Path(__file__).with_name("mlp.golden"))
