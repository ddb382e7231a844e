# SPDX-License-Identifier: Apache-2.0
"""What the make_*.py write: a row of records.

Each is one line of text, "name ndim dims...", and then the numbers, row by
row, as little-endian doubles. Names of the operation cases are CASE.in0,
CASE.in1, ..., CASE.seed (the gradient the result is given), CASE.out and
CASE.grad0, ...
"""
import torch

records = []


def put(name, tensor):
    records.append((name, tensor.detach().double().contiguous()))


def write(path):
    with open(path, "wb") as f:
        for name, t in records:
            dims = "".join(f" {d}" for d in t.shape)
            f.write(f"{name} {t.dim()}{dims}\n".encode())
            f.write(t.numpy().astype("<f8").tobytes())


def read(path):
    """The tensors in a file, by name."""
    found = {}
    with open(path, "rb") as f:
        for line in f:
            name, _, *dims = line.split()
            shape = [int(d) for d in dims]
            count = torch.Size(shape).numel()
            numbers = torch.frombuffer(bytearray(f.read(8 * count)),
                                       dtype=torch.float64)
            found[name.decode()] = numbers.view(shape)
    return found


def case(name, fn, *inputs, ints=()):
    """inputs are float tensors with gradients; ints have none and come last."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = fn(*leaves, *ints)
    seed = torch.randn(out.shape)
    out.backward(seed)
    for i, t in enumerate(list(inputs) + list(ints)):
        put(f"{name}.in{i}", t)
    put(f"{name}.seed", seed)
    put(f"{name}.out", out)
    for i, t in enumerate(leaves):
        put(f"{name}.grad{i}", t.grad)
