# SPDX-License-Identifier: Apache-2.0
"""Loads Fashion-MNIST by torch's DataLoader, for the peers of bench/loader.py."""
import gzip

import torch


def fashion_mnist(root="/usr/share/datasets/fashion-mnist"):
    """Returns the training set as tensors of bytes, and its labels."""

    def numbers(name, header):
        with gzip.open(f"{root}/{name}.gz") as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = numbers("train-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    return images, numbers("train-labels-idx1-ubyte", 8).long()


class Pictures(torch.utils.data.Dataset):
    """Converts one picture on each access, as most data sets do, with our normalisation."""

    def __init__(self):
        self.images, self.labels = fashion_mnist()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return (self.images[index].float() / 255 - 0.2860) / 0.3530, self.labels[index]


def picture_loader(workers, sharded):
    """Returns shuffled batches of 64: this rank's if `sharded`, else all, which Accelerate shards."""
    pictures = Pictures()
    sampler = torch.utils.data.DistributedSampler(pictures) if sharded else None
    return torch.utils.data.DataLoader(
        pictures, batch_size=64, shuffle=not sharded, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )


def endless(loader):
    while True:
        yield from loader
