# SPDX-License-Identifier: Apache-2.0
"""The two models of models.h in PyTorch: same shapes, batch and optimizer."""
import torch_blas  # first
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, SEQUENCE, VOCABULARY = 128, 4, 4, 64, 65
MLP_WIDTH = 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((SEQUENCE, SEQUENCE), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        heads = (x.shape[0], SEQUENCE, HEADS, WIDTH // HEADS)
        q, k, v = (t.view(heads).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        score = (q @ k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5 + self.mask
        y = (score.softmax(3) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("at", torch.arange(SEQUENCE))

    def forward(self, tokens):
        x = self.blocks(self.tok(tokens) + self.pos(self.at))
        return self.head(self.norm(x)).flatten(0, 1)


def build(name, width=MLP_WIDTH):
    """The net, its data (8 batches), samples and tokens of a batch."""
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width),
                            nn.ReLU(), nn.Linear(width, 10))
        data = [(torch.randn(64, 784), torch.randint(0, 10, (64,))) for _ in range(8)]
        return net, data, 64, 1
    data = [(torch.randint(0, VOCABULARY, (16, SEQUENCE)),
             torch.randint(0, VOCABULARY, (16 * SEQUENCE,))) for _ in range(8)]
    return GPT(), data, 16, SEQUENCE


def make_optimizer(name, net):
    if name == "mlp":
        return torch.optim.SGD(net.parameters(), lr=0.1)
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


def peer_name():
    return "torch" + torch.__version__.split("+")[0]
