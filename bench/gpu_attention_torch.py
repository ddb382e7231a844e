#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_attention.c in PyTorch, by FlashAttention-2 and by cuDNN.

gpu_attention_torch.py [SEQUENCES HEADS POSITIONS WIDTH CAUSAL]
"""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROUNDS, WARM_UP = 18, 3
USUAL = [(64, 12, 1024, 64, 1), (64, 12, 1024, 64, 0), (32, 12, 1024, 128, 1), (32, 12, 1024, 128, 0)]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def make_heads(outer, heads, t, d, seed):
    torch.manual_seed(seed)
    one = torch.randn(1, t, heads, d, device="cuda", dtype=torch.bfloat16)
    return one.repeat(outer, 1, 1, 1)


def main():
    shapes = [tuple(int(x) for x in sys.argv[1:6])] if len(sys.argv) == 6 else USUAL
    for outer, heads, t, d, causal in shapes:
        leaves = [make_heads(outer, heads, t, d, i).requires_grad_() for i in (1, 2, 3)]
        seed = make_heads(outer, heads, t, d, 4).transpose(1, 2)
        flop = 4 * t * t * d * heads * outer / (2 if causal else 1) * 1e-9
        for name, backend in BACKENDS.items():
            ahead, behind = [], []
            with sdpa_kernel(backend):
                for _ in range(ROUNDS):
                    event = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
                    q, k, v = (x.transpose(1, 2) for x in leaves)
                    event[0].record()
                    out = scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
                    event[1].record()
                    torch.autograd.grad(out, leaves, seed)
                    event[2].record()
                    event[2].synchronize()
                    ahead.append(event[0].elapsed_time(event[1]))
                    behind.append(event[1].elapsed_time(event[2]))
            a, b = (sorted(x[WARM_UP:])[(ROUNDS - WARM_UP) // 2] for x in (ahead, behind))
            shape = f"{outer}x{heads}x{t}x{d}" + (" causal" if causal else "")
            print(f"attention,{name},{shape},{a:.3f},{flop / a:.0f},{b:.3f},{2.5 * flop / b:.0f}", flush=True)


main()
