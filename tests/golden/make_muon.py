#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes muon.json: parameters after steps of torch.optim's and DeepSpeed's Muon, and of the latter's Adam, for
lockstep/optim/rules/muon_test.cpp.

Run with DeepSpeed (made with 0.19.8 and torch 2.13.0; it computes "gram" in fp32 without a GPU):

    DS_ACCELERATOR=cpu python tests/golden/make_muon.py

Parameters and gradients come from the formulas of make_optimizers.py. DeepSpeed 0.19.8 has no step for the kernels
of convolutions outside of ZeRO (it fails), so there are none.
"""

import json
import logging
import pathlib

import deepspeed
import torch
from deepspeed.runtime.zero.muon import original_muon
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
from make_optimizers import numbers

MATRICES = [(6, 10), (10, 6), (5, 5), (8, 125)]
OTHERS = [(7,), (3, 4)]
STEPS = 10


def deepspeeds(method, compute):
    """Returns a function that makes the optimizer of matrices and other parameters."""

    def make(matrices, others):
        original_muon.ns_compute_dtype = lambda ns_method="gram": compute
        return MuonWithAuxAdam([
            {"params": matrices, "use_muon": True, "lr": 0.02, "weight_decay": 0.1, "ns_method": method},
            {"params": others, "use_muon": False, "lr": 0.003, "weight_decay": 0.1},
        ])

    return make


def torchs(**options):
    return lambda matrices, others: torch.optim.Muon(matrices, lr=0.02, **options)


CASES = {
    "DeepSpeedStandard": deepspeeds("standard", torch.bfloat16),
    "DeepSpeedGram": deepspeeds("gram", torch.float32),
    "Torch": torchs(),
    "TorchAsAdamW": torchs(adjust_lr_fn="match_rms_adamw", momentum=0.8, weight_decay=0.3),
    "TorchPlainMomentum": torchs(nesterov=False),
}


def run(make):
    shapes = MATRICES + OTHERS
    parameters = [torch.nn.Parameter(numbers(shape, 3 * k, 5, 11, 4).float()) for k, shape in enumerate(shapes)]
    optimizer = make(parameters[: len(MATRICES)], parameters[len(MATRICES) :])
    for t in range(STEPS):
        for k, p in enumerate(parameters):
            p.grad = (numbers(shapes[k], 13 * t + 29 * k, 7, 18, 8) + 1 / 16).float()
        optimizer.step()
    return [[float(f"{v:.7g}") for v in p.detach().double().flatten().tolist()] for p in parameters]


def main():
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True
    lines = [
        f'"made_by":"tests/golden/make_muon.py, deepspeed {deepspeed.__version__}, torch {torch.__version__}"',
        f'"shapes":{json.dumps(MATRICES + OTHERS)},"matrices":{len(MATRICES)},"steps":{STEPS}',
        '"cases":{\n'
        + ",\n".join(f'"{name}":{json.dumps(run(make), separators=(",", ":"))}' for name, make in CASES.items())
        + "\n}",
    ]
    pathlib.Path(__file__).with_name("muon.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
