#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of ranks of one host: Lockstep over shared memory against torch.distributed's Gloo and OpenMPI.

Each operation back to back for a while at each size, float32 (all_reduce_bf16: bfloat16); counted is
what one takes on the slowest rank. Bytes are those of the whole tensor: of an all-gather's result,
of a reduce-scatter's input. Two rows have no peer: all_reduce_in_place is that of a tensor from
Group::empty, private_reduction the work of one rank of it on memory of its own, which is its limit.
Rounds go through all programs, forwards and backwards in turn; the first is a warm-up and not
counted. Prints tables and writes all figures to build/bench/collectives.json.
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

OURS, GLOO, MPI = "lockstep", "gloo", "openmpi"
SIZES = (4096, 65536, 1 << 20, 16 << 20, 64 << 20)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="ranks (default 2 and 4)")
    parser.add_argument("--bytes", type=int, nargs="+", default=list(SIZES), help="sizes (default 4 KB to 64 MB)")
    parser.add_argument("--seconds", type=float, default=0.1, help="a measurement takes about so long (default 0.1)")
    parser.add_argument("--real-time", action="store_true", help="all programs under `chrt -r 1`")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="where lockstep and collectives_bench are")
    parser.add_argument("--peers-python", default=None, help="with torch and accelerate (default: build/bench-peers)")
    parser.add_argument("--output", default=str(ROOT / "build/bench/collectives.json"))
    return parser.parse_args()


def compiled_mpi():
    """The OpenMPI program, or nothing where its compiler is missing."""
    program = ROOT / "build/bench/collectives_mpi"
    program.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench/collectives_mpi.cpp"
    try:
        subprocess.run(["mpicxx", "-std=c++20", "-O3", "-o", str(program), str(source)], check=True)
    except FileNotFoundError:
        print("no mpicxx here (Debian: libopenmpi-dev): OpenMPI is left out", file=sys.stderr)
        return None
    return program


def commands_of(options, ranks, python, mpi):
    """{program: command}."""
    sizes = [str(size) for size in options.bytes]
    seconds = str(options.seconds)
    real_time = ["chrt", "-r", "1"] if options.real_time else []
    binaries = Path(options.bin)
    ours = [str(binaries / "lockstep"), "launch", "-n", str(ranks), str(binaries / "collectives_bench")]
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    gloo = [*torchrun, str(ROOT / "bench/collectives_gloo.py")]
    commands = {
        OURS: [*real_time, *ours, "--seconds", seconds, "--bytes", *sizes],
        GLOO: [*real_time, *gloo, "--seconds", seconds, "--bytes", *sizes],
    }
    if mpi:
        allowed = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        mpirun = ["mpirun", *allowed, "--oversubscribe", "-n", str(ranks)]
        commands[MPI] = [*real_time, *mpirun, str(mpi), seconds, *sizes]
    return commands


def run(command):
    """{(operation, bytes): microseconds}."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"collectives: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    return {(line["operation"], line["bytes"]): line["us"] for line in lines}


def measure(commands, rounds):
    """{program: {(operation, bytes): [microseconds, ...]}}."""
    values = {program: {} for program in commands}
    for number in range(rounds + 1):
        for program in list(commands) if number % 2 else list(reversed(commands)):
            for key, us in run(commands[program]).items():
                if number > 0:
                    values[program].setdefault(key, []).append(us)
        if sys.stderr.isatty():
            print(f"\r{number}/{rounds}\r", end="", file=sys.stderr, flush=True)
    return values


def text_of(size):
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def cell(times, ours):
    if not times:
        return f"{'':28}"
    middle = statistics.median(times)
    spread = f"({min(times):.4g} to {max(times):.4g})"
    ratio = f" {middle / ours:5.1f}" if ours else "      "
    return f"{middle:9.4g} {spread:>18}"[:28] + ratio


def print_table(values, ranks, sizes):
    print(f"\n{ranks} ranks; us: median (least to most), and times ours")
    print(f"{'':30}" + "".join(f"{program:>34}" for program in values))
    for operation in dict.fromkeys(key[0] for key in values[OURS]):
        for size in sizes:
            ours = values[OURS][operation, size]
            row = [cell(ours, None)]
            for program in list(values)[1:]:
                row.append(cell(values[program].get((operation, size)), statistics.median(ours)))
            print(f"{operation:22}{text_of(size):>8}" + "".join(f"{each:>34}" for each in row))


def main():
    options = parse_arguments()
    python = Path(options.peers_python) if options.peers_python else own_python()
    mpi = compiled_mpi()
    loads = [os.getloadavg()[0]]
    print(f"{options.rounds} rounds, {os.cpu_count()} cores" + (", chrt -r 1" if options.real_time else ""))
    report = {}
    for ranks in options.ranks:
        values = measure(commands_of(options, ranks, python, mpi), options.rounds)
        print_table(values, ranks, options.bytes)
        report[ranks] = {
            program: [{"operation": key[0], "bytes": key[1], "us": times} for key, times in rows.items()]
            for program, rows in values.items()
        }
    loads.append(os.getloadavg()[0])
    print(f"load {loads[0]:.1f} before and {loads[1]:.1f} after")
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps(
            {
                "benchmark": "collectives",
                "real_time": options.real_time,
                "ranks": report,
                "versions": versions(python),
                "cores": os.cpu_count(),
                "load": loads,
                "machine": platform.platform(),
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    print(f"all figures: {output}")


if __name__ == "__main__":
    main()
