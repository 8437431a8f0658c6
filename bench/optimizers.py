#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a step of each optimizer on a transformer of 10 million parameters: Lockstep against PyTorch and DeepSpeed.

One process with one thread and random gradients. Lockstep runs in two forms: "lockstep" with gradients in
flat buckets as in a prepared model, "lockstep, loose gradients" with each gradient in its own memory, as
autograd leaves them in one process. Peers are libtorch's C++ optimizers, torch.optim plain, fused and
foreach, and DeepSpeed's CPU optimizers, if they exist. All programs run in turn (rounds.py). Prints tables
and writes all figures to build/bench/optimizers.json.
"""
import subprocess
import sys

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import print_table

OPTIMIZERS = ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adafactor", "Lion", "LAMB")
FORMS = {"lockstep": "flat", "lockstep, loose gradients": "loose", "libtorch, C++": "torch"}
PEERS = {"torch.optim": "plain", "torch.optim, fused": "fused", "torch.optim, foreach": "foreach", "DeepSpeed": "deepspeed"}


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--steps", type=int, default=20, help="steps of a measurement (default 20)")
    return parser.parse_args()


def deepspeed_works(python):
    """Compiles DeepSpeed's optimizers, which it otherwise does at their first use. Returns whether it could."""
    text = "from deepspeed.ops import op_builder as b\nfor n in ('CPUAdam', 'CPUAdagrad', 'CPULion'): getattr(b, n + 'Builder')().load()"
    done = subprocess.run([str(python), "-c", text], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or "?").splitlines()[-1]
        print(f"optimizers: DeepSpeed's optimizers cannot be compiled: {last}; DeepSpeed is skipped", file=sys.stderr)
    return done.returncode == 0


def programs_of(bench):
    """Returns {name: program}; each program skips optimizers that it lacks."""
    what = ["--steps", str(bench.options.steps), "--optimizers", *bench.options.optimizers]
    ours, theirs = str(bench.options.bin / "optimizers_bench"), [str(bench.python), str(ROOT / "bench/optimizers_peers.py")]
    programs = {name: Program([ours, "--form", form, *what]) for name, form in FORMS.items()}
    for name, peer in PEERS.items():
        if peer != "deepspeed" or deepspeed_works(bench.python):
            programs[name] = Program([*theirs, "--peer", peer, *what], peer=True)
    return programs


def main():
    options = parse_arguments()
    bench = Bench("optimizers", options)
    programs = programs_of(bench)

    def run(name):
        return {line["optimizer"]: line["us"] for line in json_lines(bench.run(name, programs[name]).output)}

    values = bench.measure("optimizers", programs, run)
    for optimizer in options.optimizers:
        print_table(f"{optimizer}: us a step", values[optimizer])
    bench.finish(values, steps=options.steps)


if __name__ == "__main__":
    main()
