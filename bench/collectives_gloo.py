# SPDX-License-Identifier: Apache-2.0
"""The same as collectives_bench.cpp over torch.distributed's Gloo; started by torchrun from bench/collectives.py."""
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
        whole, other = torch.zeros(size // 4), torch.zeros(size // 4)
        half, part = torch.zeros(size // 2, dtype=torch.bfloat16), torch.zeros(size // 4 // ranks)
        operations = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_reduce_bf16": lambda: dist.all_reduce(half),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "all_to_all": lambda: dist.all_to_all_single(other, whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
        }
        for name, operation in operations.items():
            us = microseconds(operation, options.seconds, slowest, dist.barrier)
            if dist.get_rank() == 0:
                print(json.dumps({"operation": name, "bytes": size, "us": us}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
