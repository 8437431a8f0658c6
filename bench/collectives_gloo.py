# SPDX-License-Identifier: Apache-2.0
"""Times collectives over torch.distributed's Gloo, like collectives_bench.cpp; bench/collectives.py starts it by torchrun."""
import argparse
import json

import torch
import torch.distributed as dist
from timing import microseconds


def slowest(value):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    for size in options.bytes:
        full, other = torch.zeros(size // 4), torch.zeros(size // 4)
        half, part = torch.zeros(size // 2, dtype=torch.bfloat16), torch.zeros(size // 4 // ranks)
        operations = {
            "all_reduce": lambda: dist.all_reduce(full),
            "all_reduce_bf16": lambda: dist.all_reduce(half),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
            "all_gather": lambda: dist.all_gather_into_tensor(full, part),
            "all_to_all": lambda: dist.all_to_all_single(other, full),
            "broadcast": lambda: dist.broadcast(full, 0),
        }
        for name, operation in operations.items():
            us = microseconds(operation, options.seconds, slowest, dist.barrier)
            if dist.get_rank() == 0:
                print(json.dumps({"operation": name, "bytes": size, "us": us}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
