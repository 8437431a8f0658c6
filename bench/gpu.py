#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a training step on GPUs: Lockstep against PyTorch and Accelerate.

Each rank has one GPU and trains GPT-2 small (124 million parameters) on 8 x 1024 tokens, with bf16 autocast and
AdamW (the peers' is fused), in C++ and in Python. With one GPU PyTorch trains by itself, with several GPUs it uses
DistributedDataParallel over NCCL. All programs run in turn (rounds.py). Needs CUDA, and a torch built for
CUDA, for our programs and for the peers. Prints a table and writes all figures to build/bench/gpu.json.
"""
import subprocess
import sys
from dataclasses import replace

from rounds import Bench, json_lines, parser_of
from tables import print_table


def gpu_names():
    """Returns the name of each GPU."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.CalledProcessError):
        return []


def main():
    parser = parser_of(__doc__, limit=300)
    parser.add_argument("--steps", type=int, default=30, help="steps of a run (default 30)")
    options = parser.parse_args()
    gpus = gpu_names()
    ranks = len(gpus)
    if ranks == 0:
        sys.exit("gpu: nvidia-smi lists no GPU; expected one or more")
    bench = Bench("gpu", options)
    what = ("--model", "gpt2", "--precision", "bf16", "--steps", options.steps)
    theirs = (*what, "--device", "cuda", "--peer")
    programs = {
        "lockstep": bench.launch(ranks, "step_bench", *what),
        "lockstep (Python)": bench.launch_python(ranks, "step_peers.py", *theirs, "lockstep"),
        "PyTorch": bench.torchrun(ranks, "step_peers.py", *theirs, "alone" if ranks == 1 else "ddp"),
        "Accelerate": bench.torchrun(ranks, "step_peers.py", *theirs, "accelerate"),
    }
    if not (bench.package / "lockstep").is_dir():
        print(f"without the Python package: {bench.package} lacks it; it is built with -DLOCKSTEP_BUILD_PYTHON=ON")
        del programs["lockstep (Python)"]
    on_gpu = {"ACCELERATE_USE_CPU": "false"}
    programs = {name: replace(each, environment={**each.environment, **on_gpu}) for name, each in programs.items()}

    def figures_of(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        return {"gpt2": line["us"]}

    values = bench.measure("gpt2", programs, figures_of)
    print_table("gpt2: us a step", values["gpt2"])
    bench.finish(values, ranks=ranks, gpu=gpus[0])


if __name__ == "__main__":
    main()
