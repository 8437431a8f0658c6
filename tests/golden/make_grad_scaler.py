#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes grad_scaler.json: the states of torch.amp.GradScaler on the CPU, for lockstep/precision's test.

Run with torch installed (made with torch 2.13.0):

    python tests/golden/make_grad_scaler.py

A step's letter is its gradient: `.` finite, `i` an infinity, `n` a NaN; `=` sets the scale
to 1000 in update(). After each step: [scale, growth tracker, whether the optimizer stepped].
"""

import json
import pathlib

import torch

CASES = {
    "defaults": ({}, "..i.n...=.i"),
    "grows": (dict(init_scale=8.0, growth_interval=3), ".........i....n......"),
    "every step": (dict(init_scale=1.0, growth_interval=1), "....i..."),
    "odd factors": (dict(init_scale=1000.0, growth_factor=1.5, backoff_factor=0.3, growth_interval=2), "..i...nn....=..i.."),
    "at the top": (dict(init_scale=2.0**126, growth_interval=1), "......i.."),
    "to the bottom": (dict(init_scale=1.0), "i" * 12),
}


def run(options, steps):
    scaler = torch.amp.GradScaler("cpu", **options)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    trace = []
    for letter in steps:
        scaler.scale(torch.zeros(()))
        bad = {"i": float("inf"), "n": float("nan")}.get(letter, 1.0)
        parameter.grad = torch.tensor([1.0, bad])
        before = parameter.detach().clone()
        scaler.step(optimizer)
        stepped = not torch.equal(parameter.detach(), before)
        scaler.update(1000.0 if letter == "=" else None)
        trace.append([scaler.get_scale(), scaler.state_dict()["_growth_tracker"], stepped])
        with torch.no_grad():
            parameter.zero_()
    return trace


def main():
    cases = [
        {"name": name, "options": options, "steps": steps, "trace": run(options, steps)}
        for name, (options, steps) in CASES.items()
    ]
    golden = f'{{"made_by":"tests/golden/make_grad_scaler.py, torch {torch.__version__}",\n"cases":[\n'
    golden += ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n"
    pathlib.Path(__file__).with_name("grad_scaler.json").write_text(golden)


if __name__ == "__main__":
    main()
