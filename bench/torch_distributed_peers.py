# SPDX-License-Identifier: Apache-2.0
"""Times a step of torch's DDP and FSDP2 over a backend of torch.distributed, or without any, for torch_distributed.py."""
import argparse
import json
import os

import torch
import torch.distributed as dist
from timing import step_microseconds
from torch import nn
from torch.distributed.fsdp import fully_shard

import lockstep  # noqa: F401  # Registers the backend.


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("lockstep", "gloo", "none"), required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    return parser.parse_args()


def time_of(wrap, width, steps):
    """Returns the microseconds of a step of the model that `wrap` returns."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, target = torch.randn(64, width), torch.randn(64, width)

    def step():
        nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step_microseconds(step, steps)


def sharded(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    is_first = os.environ["RANK"] == "0"
    if options.backend == "none":
        alone = time_of(lambda model: model, options.width, options.steps)
        if is_first:
            print(json.dumps({"DDP": alone}))
        return
    dist.init_process_group(options.backend)
    times = {
        "DDP": time_of(nn.parallel.DistributedDataParallel, options.width, options.steps),
        "FSDP2": time_of(sharded, options.width, options.steps),
    }
    if is_first:
        print(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
