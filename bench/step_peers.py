# SPDX-License-Identifier: Apache-2.0
"""The same as step_bench.cpp in PyTorch: alone, with DistributedDataParallel or with Accelerate, as told."""
import argparse
import gzip
import itertools
import json
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """examples/fashion_mnist/net.h"""

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
    """examples/char_lm/model.h"""

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
    def __init__(self, vocabulary=256, context=128, layers=12, heads=8, width=256):
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers))

    def forward(self, text):
        x = self.characters(text) + self.places(torch.arange(text.size(1)))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.characters.weight)


def model_and_batch(name):
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        return net, torch.randn(64, 784), torch.randint(10, (64,))
    if name == "cnn":
        return Net(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    text = torch.randint(256, (8, 128))
    return CharModel(), text, text


def fashion_mnist(root="/usr/share/datasets/fashion-mnist"):
    """The training set as tensors, normalised as ours is."""

    def numbers(name, header):
        with gzip.open(f"{root}/{name}.gz") as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = numbers("train-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    return images, numbers("train-labels-idx1-ubyte", 8).long()


class Pictures(torch.utils.data.Dataset):
    """What a data set of pictures is to most: one at a time, made into numbers when it is asked for."""

    def __init__(self):
        self.images, self.labels = fashion_mnist()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return (self.images[index].float() / 255 - 0.2860) / 0.3530, self.labels[index]


def picture_loader(sampler=None):
    """With a worker process, as torch's DataLoader is used where reading takes time."""
    return torch.utils.data.DataLoader(
        Pictures(), batch_size=64, shuffle=sampler is None, sampler=sampler, num_workers=1, persistent_workers=True
    )


def endless(loader):
    while True:
        yield from loader


def cross_entropy(scores, target):
    return functional.cross_entropy(scores.flatten(0, -2), target.flatten())


def microseconds(step, steps):
    for _ in range(min(max(steps // 5, 3), 50)):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) * 1e6 / steps


def plain_step(net, optimizer, batches, accumulate, no_sync):
    def step():
        for i in range(accumulate):
            data, target = next(batches)
            with no_sync(i):
                cross_entropy(net(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def accelerate_step(options, net, optimizer, batches):
    from accelerate import Accelerator  # Importing it costs the other peers nothing.

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate)
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    model, optimizer = accelerator.prepare(net, optimizer)
    if options.loader:
        batches = iter(endless(accelerator.prepare(picture_loader())))

    def step():
        for _ in range(options.accumulate):
            data, target = next(batches)
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(data), target))
                optimizer.step()
                optimizer.zero_grad()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=("alone", "ddp", "accelerate"))
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--loader", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, data, target = model_and_batch(options.model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    batches = itertools.repeat((data, target))
    if options.peer == "accelerate":
        step = accelerate_step(options, net, optimizer, batches)
    else:
        no_sync = lambda i: torch.enable_grad()  # noqa: E731
        if options.peer == "ddp":
            torch.distributed.init_process_group("gloo")
            net = nn.parallel.DistributedDataParallel(net)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
            last = options.accumulate - 1
            no_sync = lambda i: torch.enable_grad() if i == last else net.no_sync()  # noqa: E731
            if options.loader:
                ranks = torch.utils.data.DistributedSampler(Pictures())
                batches = iter(endless(picture_loader(ranks)))
        step = plain_step(net, optimizer, batches, options.accumulate, no_sync)
    us = microseconds(step, options.steps)
    if torch.distributed.is_initialized():
        slowest = torch.tensor([us])
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
        us = slowest.item()
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"us": us}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


main()
