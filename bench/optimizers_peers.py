# SPDX-License-Identifier: Apache-2.0
"""Times torch.optim (plain, fused or foreach) or DeepSpeed's CPU optimizers, like optimizers_bench.cpp."""
import argparse
import json

import torch
from models import CharModel
from timing import step_microseconds

TORCH_OPTIONS = {
    "AdamW": {},
    "Adam": {},
    "SGD": {"momentum": 0.9},
    "Adagrad": {},
    "RMSprop": {},
    "Adafactor": {},
}
FUSED = ("AdamW", "Adam", "SGD", "Adagrad")


def of_torch(name, parameters, how):
    """Returns None if torch lacks the optimizer, or this form of it."""
    if name not in TORCH_OPTIONS or (how == "fused" and name not in FUSED):
        return None
    return getattr(torch.optim, name)(parameters, **TORCH_OPTIONS[name], **({} if how == "plain" else {how: True}))


def of_deepspeed(name, parameters):
    """Returns None if DeepSpeed lacks the optimizer for CPUs."""
    # Imported here, so that the other peers do not load it.
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
