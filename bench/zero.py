#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ZeRO: Lockstep's stages against DeepSpeed's, PyTorch's FSDP2 and data parallelism.

Models, batches and optimizer are those of step.py, with one thread a rank, in fp32. Each run reports the
time of a step, the peak resident memory of a rank (with its runtime, which for the peers is Python), and the
seconds from launch to exit. As the peer of stage 2, FSDP2 keeps parameters from forward to backward. As the
peer of stage 3, it gathers them twice, block by block. DeepSpeed runs with DS_ACCELERATOR=cpu and torch's
fused AdamW. All programs run in turn (rounds.py). Prints tables and writes all figures to
build/bench/zero.json.
"""
from rounds import Bench, json_lines, parser_of
from tables import print_table

STEPS = {"mlp": 600, "lm": 6}


def parse_arguments():
    parser = parser_of(__doc__, limit=240)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    return parser.parse_args()


def programs_of(bench, model):
    """Returns {name: program}; data parallel first."""
    ranks = bench.options.ranks
    what = ("--model", model, "--steps", STEPS[model])
    programs = {"lockstep, data parallel": bench.launch(ranks, "step_bench", *what)}
    for stage in (1, 2, 3):
        programs[f"lockstep, ZeRO {stage}"] = bench.launch(ranks, "step_bench", *what, "--zero", stage)
    for stage in (1, 2, 3):
        program = bench.torchrun(ranks, "step_peers.py", *what, "--peer", "deepspeed", "--zero", stage)
        program.environment["DS_ACCELERATOR"] = "cpu"
        programs[f"DeepSpeed, ZeRO {stage}"] = program
    for stage in (2, 3):
        programs[f"FSDP2, as ZeRO {stage}"] = bench.torchrun(
            ranks, "step_peers.py", *what, "--peer", "fsdp2", "--zero", stage
        )
    programs["PyTorch DDP"] = bench.torchrun(ranks, "step_peers.py", *what, "--peer", "ddp")
    return programs


def figures_of(bench, model, name, program):
    """Returns the figures that one run reports, and its time."""
    ended = bench.run(name, program)
    (line,) = json_lines(ended.output)
    return {
        f"{model}: us a step": line["us"],
        f"{model}: MiB at most": line["peak_mib"],
        f"{model}: s from launch to exit": ended.seconds,
    }


def main():
    options = parse_arguments()
    bench = Bench("zero", options)
    values = {}
    for model in options.models:
        programs = programs_of(bench, model)
        measured = bench.measure(model, programs, lambda name: figures_of(bench, model, name, programs[name]))
        for row, by_name in measured.items():
            print_table(row, by_name)
        values |= measured
    bench.finish(values, ranks=options.ranks)


if __name__ == "__main__":
    main()
