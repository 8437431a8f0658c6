#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step: Lockstep against PyTorch's DistributedDataParallel and Accelerate, and against computing alone.

Models: mlp (784-256-10), cnn (the Fashion-MNIST example), lm (a transformer of 10 million parameters),
each trained with AdamW on one resident batch of 64, 64 and 8 x 128, one thread a rank. Alone: as many
processes at once, which do not talk: the limit. Accelerate runs in its real form of two processes,
under torchrun with ACCELERATE_USE_CPU=true. Rounds go through all programs, forwards and backwards in
turn; the first is a warm-up and not counted. Prints tables and writes all figures to
build/bench/step.json.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from peers import ROOT, own_python, versions

STEPS = {"mlp": 1500, "cnn": 60, "lm": 8}
OURS = "lockstep"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--loader", action="store_true", help="cnn from a loader of Fashion-MNIST, beside the resident batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step (default 1)")
    parser.add_argument("--real-time", action="store_true", help="all programs under `chrt -r 1`")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="where lockstep and step_bench are")
    parser.add_argument("--peers-python", default=None, help="with torch and accelerate (default: build/bench-peers)")
    parser.add_argument("--output", default=str(ROOT / "build/bench/step.json"))
    return parser.parse_args()


def commands_of(options, model, python):
    """{program: command}."""
    binaries, ranks = Path(options.bin), str(options.ranks)
    what = ["--model", model, "--steps", str(STEPS[model]), "--accumulate", str(options.accumulate)]
    ours = [str(binaries / "lockstep"), "launch", "-n", ranks, str(binaries / "step_bench"), *what]
    theirs = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    theirs += [str(ROOT / "bench/step_peers.py"), *what, "--peer"]
    if options.loader and model == "cnn":
        return {
            OURS: [*ours, "--loader"],
            "resident batch": ours,
            "PyTorch DDP, DataLoader": [*theirs, "ddp", "--loader"],
            "resident batch, DDP": [*theirs, "ddp"],
            "Accelerate, DataLoader": [*theirs, "accelerate", "--loader"],
        }
    commands = {
        OURS: ours,
        "alone, C++": [*ours, "--alone"],
        "alone, Python": [*theirs, "alone"],
        "PyTorch DDP": [*theirs, "ddp"],
        "Accelerate": [*theirs, "accelerate"],
    }
    return {name: (["chrt", "-r", "1"] if options.real_time else []) + each for name, each in commands.items()}


def run(command):
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode != 0 or len(told) != 1:
        sys.exit(f"step: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return told[0]["us"]


def measure(commands, rounds):
    values = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name in list(commands) if number % 2 else list(reversed(commands)):
            us = run(commands[name])
            if number > 0:
                values[name].append(us)
        if sys.stderr.isatty():
            print(f"\r{number}/{rounds}\r", end="", file=sys.stderr, flush=True)
    return values


def print_table(model, values):
    print(f"\n{model + ', us a step':24}{'median':>10}{'min':>10}{'max':>10}{'to ours':>10}")
    ours = statistics.median(values[OURS])
    for name, times in values.items():
        row = [pick(times) for pick in (statistics.median, min, max)]
        print(f"{name:24}" + "".join(f"{value:10.0f}" for value in row) + f"{row[0] / ours:10.2f}", flush=True)


def main():
    options = parse_arguments()
    python = Path(options.peers_python) if options.peers_python else own_python()
    loads = [os.getloadavg()[0]]
    print(f"{options.rounds} rounds, {options.ranks} ranks, {os.cpu_count()} cores" + (", chrt -r 1" if options.real_time else ""))
    values = {}
    for model in options.models:
        values[model] = measure(commands_of(options, model, python), options.rounds)
        print_table(model, values[model])
    loads.append(os.getloadavg()[0])
    print(f"load {loads[0]:.1f} before and {loads[1]:.1f} after")
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "benchmark": "step",
        "ranks": options.ranks,
        "accumulate": options.accumulate,
        "real_time": options.real_time,
        "values": values,
        "versions": versions(python),
        "cores": os.cpu_count(),
        "load": loads,
        "machine": platform.platform(),
    }
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"all figures: {output}")


if __name__ == "__main__":
    main()
