#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes ops_more.golden, as make_ops.py makes ops.golden: cases of
tests/unit/ops_cases.h too."""
import torch
import torch.nn.functional as F

from make_ops import case, make

torch.manual_seed(5)


def singles(r):
    for name in ("sign", "floor", "ceil", "round", "expm1", "erf"):
        case(name, getattr(torch, name), 2 * r(3, 7))
    case("log1p", torch.log1p, 2 * r(3, 7).abs() - 0.7)
    case("leaky_relu", lambda a: F.leaky_relu(a, 0.1), r(3, 7))


def numbers(r):
    low, high = torch.tensor(-0.25), torch.tensor(0.5)
    case("minimum_scalar", lambda a: torch.minimum(a, high.to(a.dtype)),
         r(3, 5))
    case("maximum_scalar", lambda a: torch.maximum(a, low.to(a.dtype)),
         r(3, 5))
    case("maximum_scalar_equal",
         lambda a: torch.maximum(a, low.to(a.dtype)),
         torch.tensor([-1.0, -0.25, 2.0]))
    flags = lambda *shape: (torch.rand(*shape) < 0.5).long()
    number = lambda a: torch.tensor(1.5, dtype=a.dtype)
    case("where_scalar", lambda a, m: torch.where(m.bool(), a, number(a)),
         r(3, 5), others=(flags(3, 5),))
    case("where_scalar_wide", lambda a, m: torch.where(m.bool(), a, number(a)),
         r(3, 1), others=(flags(2, 3, 4),))


def along(r):
    case("max_with_index", lambda a: a.max(1)[0], r(2, 5, 3))
    case("min_with_index", lambda a: a.min(0, keepdim=True)[0], r(4, 3))
    case("sort_last", lambda a: a.sort(-1)[0], r(3, 7))
    case("sort_first", lambda a: a.sort(0, descending=True)[0], r(5, 2, 3))
    case("sort_middle", lambda a: a.sort(1)[0], r(2, 4, 3))
    case("sort_long", lambda a: a.sort(-1)[0], r(61))
    case("cumsum_last", lambda a: a.cumsum(-1), r(3, 5))
    case("cumsum_first", lambda a: a.cumsum(0), r(5, 3))
    case("cumsum_middle", lambda a: a.cumsum(1), r(2, 5, 3))
    case("flip", lambda a: a.flip(0, 2), r(2, 3, 5))
    case("flip_all", lambda a: a.flip(0, 1), r(3, 4))


make("ops_more.golden", singles, numbers, along)
