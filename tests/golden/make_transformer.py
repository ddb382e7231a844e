#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes transformer.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. Masks of bools follow from shows(), which
tests/unit/transformer_test.c has too.
"""
import math
import pathlib

import torch
import torch.nn.functional as F

from records import case, write

torch.manual_seed(16)
torch.set_default_dtype(torch.float64)

r = torch.randn


def shows(*shape):
    """Hides every third place, but never a whole row."""
    i = torch.arange(math.prod(shape)).view(shape)
    return i * 7 % 3 != 0


def attention(q, k, v, mask=None, causal=False):
    """Fewer heads of k and v serve several of q's, side by side."""
    if q.dim() > 2:
        share = q.shape[-3] // k.shape[-3]
        k = k.repeat_interleave(share, -3)
        v = v.repeat_interleave(share, -3)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    if causal:
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v


def inputs(t=5, s=7, heads=4, few=4):
    return r(2, heads, t, 3), r(2, few, s, 3), r(2, few, s, 2)


case("bool", lambda q, k, v: attention(q, k, v, shows(2, 4, 5, 7)), *inputs())
case("bool_shared", lambda q, k, v: attention(q, k, v, shows(5, 7)), *inputs())
case("bool_keys", lambda q, k, v: attention(q, k, v, shows(2, 1, 1, 7)),
     *inputs())
case("bool_flat", lambda q, k, v: attention(q, k, v, shows(5, 7)), r(5, 3),
     r(7, 3), r(7, 2))
case("added", attention, *inputs(), r(2, 4, 5, 7))
case("added_shared", attention, *inputs(), r(4, 5, 7))
case("added_keys", attention, *inputs(), r(2, 1, 1, 7))
case("added_rows", attention, *inputs(), r(5, 1))
case("added_blocks", attention, r(1, 2, 35, 3), r(1, 2, 35, 3),
     r(1, 2, 35, 2), r(35, 35))
case("both", lambda q, k, v, m: attention(q, k, v, m, True), *inputs(7, 7),
     r(7, 7))
case("grouped", attention, *inputs(few=2))
case("one_key_head", lambda q, k, v: attention(q, k, v, None, True),
     *inputs(few=1))
case("grouped_masked", attention, *inputs(few=2), r(2, 4, 5, 7))
case("grouped_blocks", lambda q, k, v: attention(q, k, v, None, True),
     r(1, 4, 35, 3), r(1, 2, 35, 3), r(1, 2, 35, 2))
case("deep", attention, r(2, 3, 2, 4, 3), r(2, 3, 1, 5, 3), r(2, 3, 1, 5, 2),
     r(3, 1, 4, 5))
case("padding", lambda w, i: F.embedding(i, w, padding_idx=2), r(5, 3),
     ints=(torch.tensor([[2, 0, 2], [4, 2, 1]]),))
write(pathlib.Path(__file__).with_name("transformer.golden"))
