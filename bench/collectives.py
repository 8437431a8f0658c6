#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of ranks of one host: Lockstep over shared memory, torch.distributed's Gloo, and OpenMPI.

Repeats each operation at each size in float32 (all_reduce_bf16: bfloat16), and reports the mean time on
the slowest rank. Bytes are those of the full tensor: an all-gather's result, a reduce-scatter's input.

Some rows have no peer. all_reduce_in_place uses a tensor from Group::empty. private_reduction is one rank's
part of that work on its own memory, which is the limit. memcpy copies the same number of bytes.

All programs run in turn (rounds.py). Prints tables and writes all figures to build/bench/collectives.json.
"""
import os
import subprocess
import sys

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import size_text, spread, text_of

OURS, GLOO, MPI = "lockstep", "gloo", "openmpi"
SIZES = (4096, 65536, 1 << 20, 16 << 20, 64 << 20)


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="ranks (default 2 and 4)")
    parser.add_argument("--bytes", type=int, nargs="+", default=list(SIZES), help="sizes (default 4 KB to 64 MB)")
    parser.add_argument("--seconds", type=float, default=0.1, help="approximate seconds of a measurement (default 0.1)")
    return parser.parse_args()


def compiled_mpi():
    """Compiles the OpenMPI program. Returns None if its compiler is missing."""
    program = ROOT / "build/bench/collectives_mpi"
    program.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench/collectives_mpi.cpp"
    try:
        subprocess.run(["mpicxx", "-std=c++20", "-O3", "-I", str(ROOT), "-o", str(program), str(source)], check=True)
    except FileNotFoundError:
        print("collectives: mpicxx is not installed (Debian: libopenmpi-dev); OpenMPI is skipped", file=sys.stderr)
        return None
    return program


def programs_of(bench, ranks, mpi):
    """Returns {name: program}."""
    seconds, sizes = bench.options.seconds, bench.options.bytes
    arguments = ("--seconds", seconds, "--bytes", *sizes)
    programs = {
        OURS: bench.launch(ranks, "collectives_bench", *arguments),
        GLOO: bench.torchrun(ranks, "collectives_gloo.py", *arguments),
    }
    if mpi:
        allowed = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        mpirun = ["mpirun", *allowed, "--oversubscribe", "-n", str(ranks)]
        programs[MPI] = Program([*mpirun, str(mpi), str(seconds), *map(str, sizes)], peer=True)
    return programs


def measure(bench, ranks, mpi):
    """Returns {operation: {bytes: {program: [microseconds, ...]}}}."""
    programs = programs_of(bench, ranks, mpi)

    def run(name):
        lines = json_lines(bench.run(name, programs[name]).output)
        return {(line["operation"], line["bytes"]): line["us"] for line in lines}

    values = {}
    for (operation, size), by_program in bench.measure(f"{ranks} ranks", programs, run).items():
        values.setdefault(operation, {})[size] = by_program
    return values


def cell(by_program, program):
    """Formats the median (least to most), and the ratio to ours."""
    if program not in by_program:
        return ""
    middle, least, most = map(text_of, spread(by_program[program]))
    ratio = ""
    if program != OURS:
        ratio = text_of(spread(by_program[program])[0] / spread(by_program[OURS])[0])
    return f"{middle} ({least} to {most}) {ratio:>6}"


def print_collectives(ranks, values):
    programs = dict.fromkeys(name for by_size in values.values() for by_program in by_size.values() for name in by_program)
    print(f"\n{ranks} ranks; us: median (least to most), and times ours")
    print(f"{'':30}" + "".join(f"{program:>40}" for program in programs))
    for operation, by_size in values.items():
        for size, by_program in by_size.items():
            row = [cell(by_program, program) for program in programs]
            print(f"{operation:22}{size_text(size):>8}" + "".join(f"{each:>40}" for each in row).rstrip(), flush=True)


def main():
    options = parse_arguments()
    bench = Bench("collectives", options)
    mpi = compiled_mpi()
    values = {}
    for ranks in options.ranks:
        values[ranks] = measure(bench, ranks, mpi)
        print_collectives(ranks, values[ranks])
    bench.finish(values)


if __name__ == "__main__":
    main()
