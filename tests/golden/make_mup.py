#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mup.json: parameters and rates of the Python package mup for a model wider than its base, for
lockstep/optim/rules/mup_test.cpp.

    pip install torch mup  # made with mup 1.0.0
    python tests/golden/make_mup.py

Parameters come from the formula of make_optimizers.py, by position; inputs and targets too.
"""

import json
import pathlib
import sys

import mup
import torch
from make_optimizers import numbers

STEPS = 5
OPTIMIZERS = {
    "MuAdam": (mup.MuAdam, {"lr": 0.02, "weight_decay": 0.1}),
    "MuAdamW": (mup.MuAdamW, {"lr": 0.02, "weight_decay": 0.1}),
    "MuSGD": (mup.MuSGD, {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}),
}


class Net(torch.nn.Module):
    """Three widths, of which the second grows half as fast as the first; an embedding; one bias that stays."""

    def __init__(self, width):
        super().__init__()
        self.table = torch.nn.Embedding(5, width)
        self.hidden = torch.nn.Linear(width, width // 2 + 4)
        self.back = torch.nn.Linear(width // 2 + 4, width, bias=False)
        self.out = mup.MuReadout(width, 3, output_mult=2.0)

    def forward(self, ids):
        x = self.table(ids)
        return self.out(torch.tanh(self.back(torch.tanh(self.hidden(x)))))


def rounded(tensor):
    return [float(f"{v:.7g}") for v in tensor.detach().double().flatten().tolist()]


def run(make, options):
    net = Net(24)
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(numbers(p.shape, 3 * k, 5, 11, 16).float())
    mup.set_base_shapes(net, Net(8), delta=Net(16))
    rescaled = [rounded(p) for p in net.parameters()]
    optimizer = make(net.parameters(), **options)
    names = {id(p): name for name, p in net.named_parameters()}
    groups = [
        {"lr": g["lr"], "weight_decay": g["weight_decay"], "parameters": sorted(names[id(p)] for p in g["params"])}
        for g in optimizer.param_groups
        if g["params"]
    ]
    ids = torch.arange(20) % 5
    losses = []
    for t in range(STEPS):
        target = numbers((20, 3), t, 7, 18, 8).float()
        loss = (net(ids) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"groups": groups, "rescaled": rescaled, "losses": losses, "end": [rounded(p) for p in net.parameters()]}


def main():
    torch.set_num_threads(1)
    cases = {name: run(*case) for name, case in OPTIMIZERS.items()}
    text = ",\n".join(f'"{name}":{json.dumps(case, separators=(",", ":"))}' for name, case in cases.items())
    made_by = f'"made_by":"tests/golden/make_mup.py, mup 1.0.0, torch {torch.__version__}"'
    pathlib.Path(__file__).with_name("mup.json").write_text(f'{{{made_by},"cases":{{\n{text}\n}}}}\n')


if __name__ == "__main__":
    sys.exit(main())
