#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures torch's own DDP and FSDP2 over the backend "lockstep" of torch.distributed, and over Gloo.

A step trains an MLP of three layers with SGD on one resident batch of 64, on CPUs; each rank has one thread. "Alone" is
the same step of the same model without communication. All programs run in turn (rounds.py), under `lockstep launch`.
Prints a table and writes all figures to build/bench/torch_distributed.json.
"""
from rounds import Bench, json_lines, parser_of
from tables import print_table

SCRIPT = "torch_distributed_peers.py"


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--width", type=int, default=256, help="of each layer (default 256)")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of a run (default 200)")
    return parser.parse_args()


def main():
    options = parse_arguments()
    bench = Bench("torch_distributed", options)
    what = ("--width", options.width, "--steps", options.steps)
    programs = {
        name: bench.launch_python(options.ranks, SCRIPT, "--backend", backend, *what)
        for name, backend in (("lockstep", "lockstep"), ("Gloo", "gloo"), ("alone", "none"))
    }

    def step_us(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        return line

    values = bench.measure("steps", programs, step_us)
    for wrapper, by_backend in values.items():
        print_table(f"a step of {wrapper}, us", by_backend)
    bench.finish(values, ranks=options.ranks, width=options.width)


if __name__ == "__main__":
    main()
