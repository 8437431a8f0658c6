#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a training step on GPUs: Lockstep against PyTorch and Accelerate.

Each rank has one GPU and trains GPT-2 small (124 million parameters) on 8 x 1024 tokens, with bf16 autocast and
AdamW (the peers' is fused). With one GPU PyTorch trains by itself, with several GPUs it uses
DistributedDataParallel over NCCL. All programs run in turn (rounds.py). Needs CUDA, and a torch built for
CUDA, for our programs and for the peers. Prints a table and writes all figures to build/bench/gpu.json.
"""
import subprocess
import sys
from dataclasses import replace

from rounds import Bench, json_lines, parser_of
from tables import print_table


def gpu_count():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def main():
    parser = parser_of(__doc__, limit=300)
    parser.add_argument("--steps", type=int, default=30, help="steps of a run (default 30)")
    options = parser.parse_args()
    ranks = gpu_count()
    if ranks == 0:
        sys.exit("gpu: nvidia-smi lists no GPU; expected one or more")
    bench = Bench("gpu", options)
    what = ("--model", "gpt2", "--precision", "bf16", "--steps", options.steps)
    theirs = (*what, "--device", "cuda", "--peer")
    programs = {
        "lockstep": bench.launch(ranks, "step_bench", *what),
        "PyTorch": bench.torchrun(ranks, "step_peers.py", *theirs, "alone" if ranks == 1 else "ddp"),
        "Accelerate": bench.torchrun(ranks, "step_peers.py", *theirs, "accelerate"),
    }
    programs = {name: replace(each, environment={"ACCELERATE_USE_CPU": "false"}) for name, each in programs.items()}

    def figures_of(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        return {"gpt2": line["us"]}

    values = bench.measure("gpt2", programs, figures_of)
    print_table("gpt2: us a step", values["gpt2"])
    bench.finish(values, ranks=ranks)


if __name__ == "__main__":
    main()
