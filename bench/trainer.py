#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures transformers.Trainer, unmodified: with Lockstep as `accelerate` (`lockstep launch --alias`), and with Accelerate.

A small GPT-2 from a configuration is fine-tuned on CPUs; each rank has one thread. The step is the median of a run's
updates, the job is the time from launch to exit. Both print the same loss, else the bench fails. One process without a
launcher shows what the program itself takes: its imports, and computing alone. The peers' Python needs transformers and
accelerate. Prints a table and writes all figures to build/bench/trainer.json.
"""
import sys

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import print_table

ALONE = "one process alone"
SCRIPT = str(ROOT / "bench/trainer_peers.py")


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--steps", type=int, default=40, help="updates of a run (default 40)")
    return parser.parse_args()


def programs_of(bench):
    """Returns {name: program}; ours first."""
    ranks, python, what = str(bench.options.ranks), str(bench.python), [SCRIPT, "--steps", str(bench.options.steps)]
    own = {"PYTHONPATH": str(bench.package), "PYTHONDONTWRITEBYTECODE": "", "LOCKSTEP_PYTHON": python}
    launch = [str(bench.options.bin / "lockstep"), "launch", "--alias", "-n", ranks]
    return {
        "lockstep": Program([*launch, *what], environment=own),
        "Accelerate, by torchrun": Program(
            [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *what], peer=True
        ),
        ALONE: Program([python, *what], peer=True, environment={"OMP_NUM_THREADS": "1"}),
    }


def main():
    options = parse_arguments()
    bench = Bench("trainer", options)
    programs, losses = programs_of(bench), {}

    def figures(name):
        ended = bench.run(name, programs[name])
        (line,) = json_lines(ended.output)
        if name != ALONE:  # Its batches are others.
            losses[name] = line["loss"]
        return {"step": line["ms"], "job": ended.seconds}

    values = bench.measure("trainer", programs, figures)
    if len(set(losses.values())) != 1:
        sys.exit(f"trainer: the losses differ: {losses}; expected equal ones")
    print_table("ms a step", values["step"])
    print_table("s from launch to exit", values["job"])
    bench.finish(values, ranks=options.ranks, steps=options.steps)


if __name__ == "__main__":
    main()
