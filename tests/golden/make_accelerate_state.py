#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes accelerate_state/ and accelerate_model/, for import_accelerate_test.cpp and
save_model_test.cpp: output of Accelerate's save_state and save_model.

Run with torch and accelerate installed (made with torch 2.13.0 and accelerate 1.15.0):

    python tests/golden/make_accelerate_state.py

accelerate_state/<case>/ is a folder of save_state after two updates, without random_states_0.pkl,
which is large and never read; `converted` beside it holds what the command made of its pickles, and
after.safetensors the weights two updates later. A gradient is 0.5 * weight + 0.125 * update, so that
any program can take the same steps. The command is taken from import_accelerate.cpp's text.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent.parent / "lockstep/accelerator/training_state/import_accelerate.cpp"


def filled(shape, dtype=torch.float32):
    """Element i is (37 * i + 11) % 256 - 128, which all the dtypes used here hold exactly."""
    count = torch.Size(shape).numel()
    return ((37 * torch.arange(count) + 11) % 256 - 128).to(dtype).reshape(shape)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 2)
        for i, parameter in enumerate(self.parameters()):
            parameter.data = filled(parameter.shape) / 64 + i


CASES = {
    "adam": (
        lambda net: torch.optim.Adam(net.parameters(), lr=0.1),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    ),
    "adamw": (
        lambda net: torch.optim.AdamW(net.named_parameters(), lr=0.1, amsgrad=True),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    ),
    "sgd": (
        lambda net: torch.optim.SGD(
            [
                {"params": [net.fc.weight, net.out.weight], "weight_decay": 0.01},
                {"params": [net.fc.bias, net.out.bias, net.norm.weight, net.norm.bias], "lr": 0.2},
            ],
            lr=0.1,
            momentum=0.9,
        ),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    ),
}


def update(net, optimizer, number):
    for parameter in net.parameters():
        parameter.grad = 0.5 * parameter.detach() + 0.125 * number
    optimizer.step()


def conversion():
    text = SOURCE.read_text()
    text = text[text.index("kConversion =") :]
    return "".join(re.findall(r'R"\((.*?)\)"', text[: text.index(";\n\n")], re.DOTALL))


def make_state(case, make_optimizer, make_scheduler):
    folder = HERE / "accelerate_state" / case
    shutil.rmtree(folder, ignore_errors=True)
    net = Net()
    accelerator = Accelerator(cpu=True)
    optimizer = make_optimizer(net)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, make_scheduler(optimizer))
    for number in range(2):
        update(net, optimizer, number)
        scheduler.step(1.0) if case == "sgd" else scheduler.step()
    accelerator.save_state(folder)
    (folder / "random_states_0.pkl").unlink()
    for number in range(2, 4):
        update(net, optimizer, number)

    converted = folder / "converted"
    converted.mkdir()
    command = conversion().replace("python -c", f"{sys.executable} -c") + f"'{folder}'"
    subprocess.run(command, shell=True, check=True)
    for made in [*folder.glob("*.json"), folder / "optimizer.safetensors"]:
        made.rename(converted / made.name)
    after = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    save_file(after, folder / "after.safetensors")
    accelerator.free_memory()


class Tied(torch.nn.Module):
    """Tied weights, one that is not contiguous, buffers, several dtypes."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.embed.weight.data = filled((8, 4))
        self.register_buffer("positions", torch.arange(6))
        self.block = torch.nn.Linear(5, 4)
        self.block.weight.data = filled((5, 4), torch.bfloat16).t()
        self.block.bias.data = filled((4,), torch.float64)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


def make_model(name, max_shard_size):
    folder = HERE / "accelerate_model" / name
    shutil.rmtree(folder, ignore_errors=True)
    Accelerator(cpu=True).save_model(Tied(), folder, max_shard_size=max_shard_size)


if __name__ == "__main__":
    for case, (make_optimizer, make_scheduler) in CASES.items():
        make_state(case, make_optimizer, make_scheduler)
    make_model("whole", "10GB")
    make_model("shards", "0.1KB")
