#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes losses.golden with PyTorch (Debian: apt-get install python3-torch).

The format is in records.py. Weights, which have no gradients, follow from
weights(), which tests/unit/losses_test.c has too.
"""
import pathlib

import torch
import torch.nn.functional as F

from records import case, write

torch.manual_seed(16)
torch.set_default_dtype(torch.float64)

r = torch.randn
REDUCTIONS = ["mean", "sum", "none"]


def weights(n):
    return torch.arange(n) % 5 * 0.375 + 0.25


def pairs():
    """A few differences are 0, and many beyond the edge."""
    a, b = 2 * r(3, 17), r(3, 17)
    b[0, :3] = a[0, :3]
    return a, b


def losses(how):
    targets = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    w5, w17 = weights(5), weights(17)
    options = dict(reduction=how)
    case(f"mse_{how}", lambda a, b: F.mse_loss(a, b, **options), *pairs())
    case(f"l1_{how}", lambda a, b: F.l1_loss(a, b, **options), *pairs())
    case(f"huber_{how}",
         lambda a, b: F.huber_loss(a, b, delta=0.7, **options), *pairs())
    case(f"smooth_{how}",
         lambda a, b: F.smooth_l1_loss(a, b, beta=0.4, **options), *pairs())
    case(f"smooth_zero_{how}",
         lambda a, b: F.smooth_l1_loss(a, b, beta=0.0, **options), r(3, 17),
         r(3, 17))  # at 0 PyTorch's slope is not l1_loss's
    bce = F.binary_cross_entropy_with_logits
    case(f"bce_{how}", lambda a, b: bce(a, b, **options), 9 * r(3, 17),
         torch.rand(3, 17))
    case(f"bce_weighted_{how}",
         lambda a, b: bce(a, b, weight=weights(3)[:, None], pos_weight=w17,
                          **options), 9 * r(3, 17), torch.rand(3, 17))
    case(f"kl_{how}", lambda a, b: F.kl_div(a, b, **options),
         r(3, 17).log_softmax(-1), r(3, 17).softmax(-1))
    case(f"kl_log_{how}", lambda a, b: F.kl_div(a, b, log_target=True,
                                                **options),
         r(3, 17).log_softmax(-1), r(3, 17).log_softmax(-1))
    case(f"entropy_{how}", lambda a, t: F.cross_entropy(a, t, **options),
         3 * r(7, 5), ints=(targets,))
    case(f"entropy_weighted_{how}",
         lambda a, t: F.cross_entropy(a, t, weight=w5, **options),
         3 * r(7, 5), ints=(targets,))
    case(f"entropy_all_{how}",
         lambda a, t: F.cross_entropy(a, t, weight=w5, ignore_index=2,
                                      label_smoothing=0.3, **options),
         3 * r(7, 5), ints=(targets,))
    case(f"entropy_smooth_{how}",
         lambda a, t: F.cross_entropy(a, t, ignore_index=2,
                                      label_smoothing=0.3, **options),
         3 * r(7, 5), ints=(targets,))


for how in REDUCTIONS:
    losses(how)
case("kl_batch", lambda a, b: F.kl_div(a, b, reduction="batchmean"),
     r(3, 17).log_softmax(-1), r(3, 17).softmax(-1))
write(pathlib.Path(__file__).with_name("losses.golden"))
