#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes narrow.json: losses of DeepSpeed's engine with bfloat16 parameters, for lockstep/engine/setup/sixteen_bit_parameters_test.cpp.

Run with deepspeed 0.19.8 installed, and a compiler for its CPU Adam:

    DS_BUILD_OPS=0 pip install torch deepspeed ninja
    DS_ACCELERATOR=cpu python tests/golden/make_narrow.py

A list of {"config": a complete ds_config.json, "losses": one an update, the mean over its micro-steps}. The model and
the batches are those of lockstep/engine/test_engine.h. In stage 0 DeepSpeed's Adam counts one step too many.
"""

import copy
import json
import os
import pathlib

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")

import deepspeed  # noqa: E402
import torch  # noqa: E402

UPDATES = 5
MICRO_STEPS = 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 16)
        self.head = torch.nn.Linear(16, 2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float) + 1).reshape(p.shape) / 2)

    def forward(self, x):
        return self.head(torch.tanh(self.fc(x.to(self.fc.weight.dtype))))


def batch(step):
    return torch.sin(torch.arange(24, dtype=torch.float) * (step + 2)).reshape(4, 6)


def config(stage, sums=None, on_host=False, bf16=None, wire=None):
    data_types = {"param_dtype": "bf16"}
    if sums:
        data_types["grad_accum_dtype"] = sums
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if on_host:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    whole = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICRO_STEPS,
        "gradient_clipping": 0,
        "bf16": {"enabled": True, **(bf16 or {})},
        "data_types": data_types,
        # Its own Adam for a GPU needs one; that of the CPU is for offloading.
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0, "torch_adam": not on_host}},
        "zero_optimization": zero,
    }
    if wire:
        whole["communication_data_type"] = wire
    return whole


def losses(values):
    net = Net()
    engine, _, _, _ = deepspeed.initialize(model=net, config=copy.deepcopy(values), model_parameters=net.parameters())
    means = []
    for update in range(UPDATES):
        mean = 0
        for micro_step in range(MICRO_STEPS):
            loss = engine(batch(update * MICRO_STEPS + micro_step)).float().square().mean()
            engine.backward(loss)
            engine.step()
            mean += loss.item() / MICRO_STEPS
        means.append(mean)
    return means


def main():
    torch.set_num_threads(1)
    masters = {"bf16_master_weights_and_grads": True}
    configs = [config(1, "fp32", wire="fp32")]
    for stage in (1, 2, 3):
        configs += [config(stage, sums, on_host) for sums in ("bf16", "fp32") for on_host in (False, True)]
        configs.append(config(stage, on_host=True, bf16=masters))
        configs.append(config(stage, on_host=True, bf16={**masters, "bf16_optimizer_states": True}))
    found = [{"config": values, "losses": losses(values)} for values in configs]
    path = pathlib.Path(__file__).with_name("narrow.json")
    path.write_text("[\n " + ",\n ".join(json.dumps(each) for each in found) + "\n]\n")


if __name__ == "__main__":
    main()
