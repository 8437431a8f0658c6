#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a loader in a training step: batches of Fashion-MNIST from a loader against one resident batch.

Two ranks of one thread train the Fashion-MNIST example's network with AdamW and batches of 64. Lockstep uses
the example's data::Loader. PyTorch's DistributedDataParallel and Accelerate use torch's DataLoader over a
data set that converts a picture on access, in the rank itself and with one worker process for each rank.
The ratio compares the two steps of one round. All programs run in turn (rounds.py). Prints tables and writes
all figures to build/bench/loader.json.
"""
from rounds import Bench, parser_of
from step import step_us
from tables import print_table

STEPS = 60
RESIDENT = "resident batch"


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    return parser.parse_args()


def programs_of(bench):
    """Returns {(framework, loader): program}."""
    ranks, what = bench.options.ranks, ("--model", "cnn", "--steps", STEPS)
    programs = {
        ("lockstep", RESIDENT): bench.launch(ranks, "step_bench", *what),
        ("lockstep", "data::Loader"): bench.launch(ranks, "step_bench", *what, "--loader"),
    }
    for framework, peer in (("PyTorch DDP", "ddp"), ("Accelerate", "accelerate")):
        theirs = (ranks, "step_peers.py", *what, "--peer", peer)
        programs[framework, RESIDENT] = bench.torchrun(*theirs)
        programs[framework, "DataLoader"] = bench.torchrun(*theirs, "--workers", 0)
        programs[framework, "DataLoader, 1 worker"] = bench.torchrun(*theirs, "--workers", 1)
    return programs


def ratios_of(steps):
    """Returns {program: [loader step / resident step, ...]}, each of one round."""
    return {
        name: [with_loader / resident for with_loader, resident in zip(times, steps[f"{name.split(', ')[0]}, {RESIDENT}"])]
        for name, times in steps.items()
        if not name.endswith(RESIDENT)
    }


def main():
    bench = Bench("loader", parse_arguments())
    programs = {", ".join(names): program for names, program in programs_of(bench).items()}
    values = bench.measure("loader", programs, lambda name: {"step": step_us(bench, name, programs[name])})
    values["ratio"] = ratios_of(values["step"])
    print_table("us a step", values["step"])
    print_table("loader step / resident step", values["ratio"])
    bench.finish(values, ranks=bench.options.ranks)


if __name__ == "__main__":
    main()
