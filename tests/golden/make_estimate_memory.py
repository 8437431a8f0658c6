#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens of `lockstep estimate-memory`: small models, and the memory that accelerate and DeepSpeed estimate for them.

    python tests/golden/make_estimate_memory.py accelerate   # accelerate 1.15, safetensors, torch
    python tests/golden/make_estimate_memory.py deepspeed    # deepspeed 0.19.8, torch

The first writes estimate_memory/<model>.safetensors and estimate_memory/accelerate.json, by what
`accelerate estimate-memory` calls once it has a model (it takes none but from the Hub); the second
estimate_memory/deepspeed.json, by DeepSpeed's own two functions.
"""
import itertools
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "estimate_memory"


def models():
    import torch
    from torch import nn

    class Tree(nn.Module):
        """Parameters of its own, of inner modules, and of leaves; a buffer of integers, one of floats."""

        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 3, 40))
            self.register_buffer("positions", torch.arange(5))
            self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool))
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2))
            self.head = nn.Linear(8, 10, bias=False)

    torch.manual_seed(1)
    convolutions = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 7))
    return {
        "convolutions": convolutions,
        "tree": Tree(),
        "half": nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)).to(torch.bfloat16),
        "alone": nn.Linear(9, 5),
    }


def write_accelerate():
    import accelerate
    import torch
    from accelerate.commands import estimate
    from accelerate.utils import calculate_maximum_sizes
    from safetensors.torch import save_file

    FOLDER.mkdir(exist_ok=True)
    cases = {}
    dtypes = ["float32", "float16", "int8", "int4"]
    for name, model in models().items():
        save_file(model.state_dict(), FOLDER / f"{name}.safetensors")
        (FOLDER / f"{name}.safetensors").chmod(0o644)
        # The command builds models in float32, for any saved dtype.
        model = model.to(torch.float32)
        estimate.create_empty_model = lambda *_, model=model, **__: model
        arguments = type("Arguments", (), {})()
        arguments.model_name, arguments.library_name = name, None
        arguments.trust_remote_code, arguments.dtypes = False, dtypes
        rows = {row[0]: row[1:] for row in estimate.gather_data(arguments)}
        rows["bfloat16"] = [*rows["float16"][:2], estimate.estimate_training_usage(
            rows["float32"][1], "bfloat16")]
        own = [sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()]
        cases[name] = {
            "rows": {
                dtype: {"largest_layer": layer, "total": total, "training": training}
                for dtype, (layer, total, training) in rows.items()},
            "largest": calculate_maximum_sizes(model)[1][1],
            "parameters": sum(p.numel() for p in model.parameters()),
            "largest_own_parameters": max(own),
        }
    write("accelerate.json", {"made_by": f"accelerate {accelerate.__version__}", "models": cases})


def write_deepspeed():
    import deepspeed
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

    cases = []
    sizes = [(1, 1), (1000, 70), (123_457, 12_345), (7_000_000_000, 131_072_000), (10**13, 10**11)]
    for (parameters, layer), ranks, hosts in itertools.product(sizes, (1, 2, 3, 8), (1, 2, 3, 7)):
        common = {"total_params": parameters, "num_gpus_per_node": ranks, "num_nodes": hosts}
        case = {"parameters": parameters, "largest_layer": layer, "ranks_per_host": ranks, "hosts": hosts}
        case["zero2"] = [zero2(**common, cpu_offload=offload)[:2] for offload in (False, True)]
        case["zero3"] = [
            zero3(**common, largest_layer_params=layer, cpu_offload=optimizer,
                  cpu_offload_params=params, zero_init=init)[:2]
            for (optimizer, params), init in itertools.product(
                ((False, False), (True, False), (True, True)), (True, False))]
        cases.append(case)
    write("deepspeed.json", {"made_by": f"deepspeed {deepspeed.__version__}", "cases": cases})


def write(name, value):
    """A line for each case or model."""
    parts = []
    for key, part in value.items():
        if isinstance(part, dict):
            part = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in part.items()) + "\n}"
        elif isinstance(part, list):
            part = "[\n" + ",\n".join(map(json.dumps, part)) + "\n]"
        else:
            part = json.dumps(part)
        parts.append(f"{json.dumps(key)}: {part}")
    (FOLDER / name).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    {"accelerate": write_accelerate, "deepspeed": write_deepspeed}[sys.argv[1]]()
