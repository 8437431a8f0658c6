#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tensor parallelism: one GPT divided among the ranks by Lockstep, and by torch's parallelize_module over Gloo.

Both divide the same layers by the same styles, on CPUs with one thread for each rank, and train with the same optimizer.
The step is the median of a run's updates. Both print the same loss, else the bench fails. One process that computes the
whole model shows what there is to divide. Prints a table and writes all figures to build/bench/tensor_parallel.json.
"""
import sys

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import print_table

ALONE = "one process alone"
SCRIPT = str(ROOT / "bench/tensor_parallel_peers.py")


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks that divide the model (default 2)")
    parser.add_argument("--steps", type=int, default=12, help="updates of a run (default 12)")
    parser.add_argument("--width", type=int, default=384, help="width of the model (default 384: 12 million parameters)")
    return parser.parse_args()


def programs_of(bench):
    """Returns {name: program}; ours first."""
    ranks, python = str(bench.options.ranks), str(bench.python)
    what = [SCRIPT, "--steps", str(bench.options.steps), "--width", str(bench.options.width)]
    own = {"PYTHONPATH": str(bench.package), "PYTHONDONTWRITEBYTECODE": "", "LOCKSTEP_PYTHON": python}
    launch = [str(bench.options.bin / "lockstep"), "launch", "-n", ranks]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    return {
        "lockstep": Program([*launch, *what, "--by", "lockstep"], environment=own),
        "torch's parallelize_module": Program([*torchrun, *what, "--by", "torch"], peer=True),
        ALONE: Program([python, *what, "--by", "nobody"], peer=True, environment={"OMP_NUM_THREADS": "1"}),
    }


def main():
    options = parse_arguments()
    bench = Bench("tensor_parallel", options)
    programs, losses = programs_of(bench), {}

    def figures(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        losses[name] = line["loss"]
        return {"step": line["ms"]}

    values = bench.measure("tensor_parallel", programs, figures)
    if len(set(losses.values())) != 1:
        sys.exit(f"tensor_parallel: the losses differ: {losses}; expected equal ones")
    print_table("ms a step", values["step"])
    bench.finish(values, ranks=options.ranks, steps=options.steps, width=options.width)


if __name__ == "__main__":
    main()
