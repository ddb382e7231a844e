#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes layers.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py; the cases are those of
tests/unit/conv_norm_test.c, by name.
"""
import pathlib

import torch
import torch.nn.functional as F

from records import case, write

torch.manual_seed(8)
torch.set_default_dtype(torch.float64)


def convolutions(r):
    case("conv1d", F.conv1d, r(2, 3, 9), r(4, 3, 2), r(4))
    case("conv1d_with", lambda x, w, b: F.conv1d(x, w, b, 2, 3, 2, 2),
         r(2, 4, 9), r(6, 2, 3), r(6))
    case("conv1d_point", F.conv1d, r(2, 3, 5), r(4, 3, 1), r(4))
    case("conv_transpose1d", F.conv_transpose1d, r(2, 3, 5), r(3, 4, 2), r(4))
    case("conv_transpose1d_with",
         lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 2, 2, 2),
         r(2, 4, 5), r(4, 3, 3), r(6))
    case("conv_transpose2d", F.conv_transpose2d, r(2, 3, 4, 5), r(3, 4, 3, 2),
         r(4))
    case("conv_transpose2d_with",
         lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), 2,
                                            (1, 2)),
         r(2, 4, 4, 3), r(4, 3, 3, 2), r(6))
    case("conv_transpose2d_point", F.conv_transpose2d, r(2, 3, 4, 5),
         r(3, 4, 1, 1), r(4))
    # One number a window, and rows that no window reaches.
    case("conv_transpose2d_far",
         lambda x, w: F.conv_transpose2d(x, w, None, 1, 0, (1, 2), 1, 3),
         r(2, 3, 3, 2), r(3, 4, 1, 1))


def pools(r):
    case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3),
         r(2, 3, 7))
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
         r(2, 3, 7, 6))
    case("adaptive_avg_pool2d_one", lambda x: F.adaptive_avg_pool2d(x, 1),
         r(2, 3, 5, 6))
    case("adaptive_avg_pool2d_more",
         lambda x: F.adaptive_avg_pool2d(x, (5, 7)), r(1, 2, 3, 4))


def norms(r):
    norm = lambda x, w, b: F.group_norm(x, 3, w, b, 1e-3)
    case("group_norm", norm, r(2, 6, 3, 5), r(6), r(6))
    case("group_norm_flat", norm, r(4, 9), r(9), r(9))
    case("group_norm_line", norm, r(2, 3, 11), r(3), r(3))
    case("group_norm_bare", lambda x: F.group_norm(x, 2, None, None, 1e-3),
         r(2, 4, 7))


for part in (convolutions, pools, norms):
    part(torch.randn)
write(pathlib.Path(__file__).with_name("layers.golden"))
