#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes nn.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. Parameters before the first step, images,
tokens and targets follow from number(), which tests/unit/nn_golden_test.c has
too. After ten steps of SGD: KIND.loss and KIND.NAME for each parameter and
buffer, or some of them.
"""
import math
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

from records import case, put, write

STEPS, BATCH = 10, 3
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, HIDDEN = 11, 8, 16, 2, 2, 32

torch.manual_seed(21)
torch.set_default_dtype(torch.float64)


def rms_norm(x, w):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-3).rsqrt() * w


def rotary(x, first=3, base=100.0):
    t, d = x.shape[-2:]
    speed = base ** (-torch.arange(0, d, 2) / d)
    angle = (torch.arange(t) + first)[:, None] * speed
    a, b = x.chunk(2, -1)
    c, s = angle.cos(), angle.sin()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def attention(q, k, v, causal=False, scale=None):
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def cases():
    r = torch.randn
    targets = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    tokens = torch.tensor([[2, 0, 2], [4, 2, 1]])
    case("softmax", lambda a: a.softmax(-1), 3 * r(3, 5, 19))
    case("softmax_over", lambda a: a.softmax(1), 3 * r(3, 5, 7))
    case("log_softmax", lambda a: a.log_softmax(0), 3 * r(5, 19))
    case("cross_entropy", F.cross_entropy, 3 * r(7, 5), ints=(targets,))
    case("cross_entropy_with",
         lambda a, t: F.cross_entropy(a, t, ignore_index=2,
                                      label_smoothing=0.1),
         3 * r(7, 5), ints=(targets,))
    case("mse", F.mse_loss, r(3, 5), r(3, 5))
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (19,), w, b, 1e-3),
         r(2, 5, 19), r(19), r(19))
    case("layer_norm_many", lambda x, w, b: F.layer_norm(x, (3,), w, b, 1e-3),
         r(67, 3), r(3), r(3))
    case("rms_norm", rms_norm, r(2, 5, 7), r(7))
    case("batch_norm", lambda x, w, b: F.batch_norm(
        x, None, None, w, b, True, 0.1, 1e-3), r(3, 4, 2, 5), r(4), r(4))
    case("conv2d", F.conv2d, r(2, 3, 7, 6), r(4, 3, 3, 2), r(4))
    case("conv2d_with", lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2),
                                                 (1, 2), 2),
         r(2, 4, 7, 6), r(6, 2, 3, 2), r(6))
    case("max_pool2d", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
         r(2, 3, 7, 6))
    case("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)),
         r(2, 3, 7, 6))
    case("embedding", lambda w, i: F.embedding(i, w), r(5, 3), ints=(tokens,))
    case("rotary", rotary, r(2, 5, 6))
    case("attention", attention, r(2, 3, 5), r(2, 7, 5), r(2, 7, 4))
    case("attention_causal", lambda q, k, v: attention(q, k, v, True, 0.7),
         r(1, 19, 6), r(1, 19, 6), r(1, 19, 21))
    by_batch = lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1,
                                            1e-3)
    case("batch_norm_flat", by_batch, r(7, 5), r(5), r(5))
    case("batch_norm_line", by_batch, r(3, 4, 5), r(4), r(4))
    case("batch_norm_box", by_batch, r(2, 3, 2, 3, 2), r(3), r(3))
    case("batch_norm_eval", lambda x, w, b: F.batch_norm(
        x, torch.full((4,), 0.25), torch.full((4,), 1.5), w, b, False, 0.1,
        1e-3), r(3, 4, 5), r(4), r(4))
    case("conv2d_point", F.conv2d, r(3, 5, 4, 7), r(3, 5, 1, 1), r(3))
    case("conv2d_point_alone", F.conv2d, r(1, 2, 3, 3), r(7, 2, 1, 1))
    case("conv2d_point_groups", lambda x, w, b: F.conv2d(x, w, b, groups=2),
         r(2, 6, 5, 3), r(4, 3, 1, 1), r(4))
    case("conv2d_point_sparse", lambda x, w, b: F.conv2d(x, w, b, (2, 1)),
         r(2, 3, 5, 4), r(2, 3, 1, 1), r(2))
    case("log_softmax_last", lambda a: a.log_softmax(-1), 3 * r(5, 19))


def number(i, which):
    return ((i * 7919 + which * 104729 + 13) % 1009).double() / 504.5 - 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.Module()
        self.attention.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = (p.view(n, t, HEADS, w // HEADS).transpose(1, 2)
                   for p in self.attention.qkv(self.norm1(x)).split(w, 2))
        if self.rotary:
            q, k = rotary(q, 0, 10000.0), rotary(k, 0, 10000.0)
        y = attention(q, k, v, True).transpose(1, 2).reshape(n, t, w)
        x = x + self.attention.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """tied: with rotary positions, and the token table as the head."""

    def __init__(self, tied):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = None if tied else nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = None if tied else nn.Linear(WIDTH, VOCABULARY, bias=False)
        for block in self.blocks:
            block.rotary = tied

    def forward(self, t):
        x = self.tok(t)
        if self.pos is not None:
            x = x + self.pos(torch.arange(t.shape[1]))
        x = self.norm(self.blocks(x)).flatten(0, 1)
        return x @ self.tok.weight.t() if self.head is None else self.head(x)


def cnn():
    def stage(a, b):
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                nn.MaxPool2d(2)]
    return nn.Sequential(*stage(2, 3), *stage(3, 6), nn.Flatten(),
                         nn.Linear(24, 5))


def tokens_of(step):
    i = torch.arange(BATCH * CONTEXT) + step * BATCH * CONTEXT
    return ((i * 31 + 7) % 101 % VOCABULARY).view(BATCH, CONTEXT)


def next_of(step):
    i = torch.arange(BATCH * CONTEXT) + step * BATCH * CONTEXT
    return (i * 17 + 3) % 97 % VOCABULARY


def images_of(step):
    return number(torch.arange(BATCH * 2 * 81), step).view(BATCH, 2, 9, 9)


def classes_of(step):
    return (torch.arange(BATCH) + step) % 5


def train(kind, net, x_of, y_of, lr, keep=None):
    for k, p in enumerate(net.parameters()):
        start = 0.3 * number(torch.arange(p.numel()), k).view(p.shape)
        p.data = start + 1 if p.dim() == 1 else start
    optim = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for step in range(STEPS):
        loss = F.cross_entropy(net(x_of(step)), y_of(step))
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    put(f"{kind}.loss", torch.tensor(losses))
    for name, value in net.state_dict().items():
        if keep is None or name in keep:
            put(f"{kind}.{name}", value)


cases()
train("cnn", cnn(), images_of, classes_of, 0.05)
train("gpt", GPT(False), tokens_of, next_of, 0.1)
train("tied", GPT(True), tokens_of, next_of, 0.1, ["tok.weight"])
write(pathlib.Path(__file__).with_name("nn.golden"))
