# SPDX-License-Identifier: Apache-2.0
"""Defines the models of the benches' peers; the same as in models.h and examples/fashion_mnist/net.h."""
import math

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """Is the network of examples/fashion_mnist/net.h."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    """Is a transformer block: causal attention, then a two-layer MLP, each with a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, places, width = x.shape
        qkv = self.attention(self.norm1(x)).reshape(batch, places, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, places, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class CharModel(nn.Module):
    """Is the transformer of examples/char_lm/model.h, by default with 10 million parameters."""

    def __init__(self, vocabulary=256, context=128, layers=12, heads=8, width=256):
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers))

    def forward(self, text):
        x = self.characters(text) + self.places(torch.arange(text.size(1), device=text.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.characters.weight)


def model_and_batch(name):
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        return net, torch.randn(64, 784), torch.randint(10, (64,))
    if name == "cnn":
        return Net(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    if name == "gpt2":
        text = torch.randint(50304, (8, 1024))
        return CharModel(50304, 1024, 12, 12, 768), text, text
    text = torch.randint(256, (8, 128))
    return CharModel(), text, text
