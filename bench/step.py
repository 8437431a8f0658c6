#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a training step: Lockstep, PyTorch's DistributedDataParallel, Accelerate, and computation alone.

Models are mlp (784-256-10), cnn (the Fashion-MNIST example) and lm (a transformer of 10 million parameters).
Each rank has one thread and trains with AdamW on one resident batch of 64, 64 or 8 x 128; mlp and lm also with
4 micro-batches a step. "Shared parameters" is AcceleratorOptions::shared_parameters, "ZeRO 1" and "ZeRO 2"
are AcceleratorOptions::zero. "Alone" is the limit: the same number of processes without communication. "One
process" is one of them with the machine to itself. Accelerate runs with two processes, under torchrun with
ACCELERATE_USE_CPU=true. All programs run in turn (rounds.py). Prints tables and writes all figures to
build/bench/step.json.
"""
from rounds import Bench, json_lines, parser_of
from tables import print_table

STEPS = {"mlp": 1500, "cnn": 60, "lm": 8}
ACCUMULATING = ("mlp", "lm")


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1, 4], help="micro-batches a step (default 1 and 4)")
    return parser.parse_args()


def programs_of(bench, model, accumulate):
    """Returns {name: program}; ours first."""
    ranks, steps = bench.options.ranks, max(STEPS[model] // accumulate, 2)
    what = ("--model", model, "--steps", steps, "--accumulate", accumulate)
    return {
        "lockstep": bench.launch(ranks, "step_bench", *what),
        "lockstep, shared parameters": bench.launch(ranks, "step_bench", *what, "--shared"),
        "lockstep, ZeRO 1": bench.launch(ranks, "step_bench", *what, "--zero", 1),
        "lockstep, ZeRO 2": bench.launch(ranks, "step_bench", *what, "--zero", 2),
        "alone, C++": bench.launch(ranks, "step_bench", *what, "--alone"),
        "one process, C++": bench.launch(1, "step_bench", *what, "--alone"),
        "alone, Python": bench.torchrun(ranks, "step_peers.py", *what, "--peer", "alone"),
        "PyTorch DDP": bench.torchrun(ranks, "step_peers.py", *what, "--peer", "ddp"),
        "Accelerate": bench.torchrun(ranks, "step_peers.py", *what, "--peer", "accelerate"),
    }


def step_us(bench, name, program):
    """Returns the microseconds of a step that one run reports."""
    (line,) = json_lines(bench.run(name, program).output)
    return line["us"]


def rows_of(options):
    """Yields (row, model, micro-batches)."""
    for accumulate in options.accumulate:
        for model in options.models:
            if accumulate == 1:
                yield model, model, 1
            elif model in ACCUMULATING:
                yield f"{model}, {accumulate} micro-batches", model, accumulate


def main():
    options = parse_arguments()
    bench = Bench("step", options)
    values = {}
    for row, model, accumulate in rows_of(options):
        programs = programs_of(bench, model, accumulate)
        values |= bench.measure(row, programs, lambda name: {row: step_us(bench, name, programs[name])})
        print_table(f"{row}: us a step", values[row])
    bench.finish(values, ranks=options.ranks)


if __name__ == "__main__":
    main()
