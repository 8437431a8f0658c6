# SPDX-License-Identifier: Apache-2.0
"""The same as optimizers_bench.cpp with torch.optim, plain, fused or foreach, or DeepSpeed's CPU optimizers; an argument selects it."""
import argparse
import json

import torch
from models import CharModel
from timing import step_microseconds

OF_TORCH = {
    "AdamW": {},
    "Adam": {},
    "SGD": {"momentum": 0.9},
    "Adagrad": {},
    "RMSprop": {},
    "Adafactor": {},
}
FUSED = ("AdamW", "Adam", "SGD", "Adagrad")


def of_torch(name, parameters, how):
    """Nothing where torch has it not, or not so."""
    if name not in OF_TORCH or (how == "fused" and name not in FUSED):
        return None
    return getattr(torch.optim, name)(parameters, **OF_TORCH[name], **({} if how == "plain" else {how: True}))


def of_deepspeed(name, parameters):
    """Nothing where DeepSpeed has none for CPUs."""
    # Importing it costs the other peers nothing.
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.lion import DeepSpeedCPULion

    makers = {
        "AdamW": lambda: DeepSpeedCPUAdam(parameters, weight_decay=1e-2),
        "Adam": lambda: DeepSpeedCPUAdam(parameters, adamw_mode=False),
        "Adagrad": lambda: DeepSpeedCPUAdagrad(parameters),
        "Lion": lambda: DeepSpeedCPULion(parameters),
    }
    return makers[name]() if name in makers else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=("plain", "fused", "foreach", "deepspeed"))
    parser.add_argument("--optimizers", nargs="+")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in options.optimizers:
        parameters = list(CharModel().parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        if options.peer == "deepspeed":
            optimizer = of_deepspeed(name, parameters)
        else:
            optimizer = of_torch(name, parameters, options.peer)
        if optimizer:
            us = step_microseconds(optimizer.step, options.steps)
            print(json.dumps({"optimizer": name, "us": us}), flush=True)


if __name__ == "__main__":
    main()
