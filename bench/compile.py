#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the compilation of a user's source: lockstep/lockstep.h and torch/torch.h against torch/torch.h alone.

Each source includes the headers and has an empty main(). The flags are a user's: -O3 -DNDEBUG -std=c++20 (CMake's
Release), or those of --flags. The figures are user CPU seconds of the compiler, so other processes affect them
less than elapsed time. The ratio compares the two sources of one round. `--narrow` also measures the headers that
docs/headers.md lists, each alone and beside torch/torch.h. All sources are compiled in turn (rounds.py). Prints
tables and writes all figures to build/bench/compile.json.
"""
import json
import resource
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from peers import ROOT
from rounds import Bench, Program, first_line, parser_of
from tables import print_table

TORCH, LOCKSTEP = "torch/torch.h", "lockstep/lockstep.h"
ALONE = "torch/torch.h alone"
NARROW = (
    "lockstep/fwd.h",
    "lockstep/base/program/run_main.h",
    "lockstep/launcher/job/launch.h",
    "lockstep/schedule/warmup_schedules.h",
    "lockstep/comm/group.h",
    "lockstep/optim/rules/adam.h",
    "lockstep/data/loader/loader.h",
    "lockstep/accelerator/accelerator.h",
    "lockstep/engine/engine.h",
    LOCKSTEP,
)


def parse_arguments():
    parser = parser_of(__doc__, limit=600)
    parser.add_argument("--compilers", nargs="+", default=["g++", "clang++-14"], help="default: g++ clang++-14, if installed")
    parser.add_argument("--flags", default="-O3 -DNDEBUG -std=c++20", help="default: %(default)s")
    parser.add_argument("--narrow", action="store_true", help="also measure single headers")
    parser.set_defaults(peers_python=Path(sys.executable))  # There are no peers.
    options = parser.parse_args()
    options.compilers = [compiler for compiler in options.compilers if shutil.which(compiler)]
    if not options.compilers:
        parser.error("none of --compilers is installed")
    return options


def include_flags(build):
    """Returns the definitions and include folders of a program that uses Lockstep, as CMake passes them."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if entry["file"].endswith("examples/fashion_mnist/main.cpp"):
            words = shlex.split(entry["command"])
            pairs = zip([None, *words], words)
            return [word for before, word in pairs if "-isystem" in (before, word) or word.startswith(("-D", "-I"))]
    sys.exit(f"compile: {build}/compile_commands.json has no examples/fashion_mnist/main.cpp; expected a build folder with the examples")


def sources_of(narrow):
    """Returns {name: headers}."""
    sources = {ALONE: [TORCH], "with lockstep.h": [TORCH, LOCKSTEP]}
    for header in NARROW if narrow else ():
        name = header.removeprefix("lockstep/")
        sources[f"only {name}"] = [header]
        if header != LOCKSTEP:
            sources[f"with {name}"] = [TORCH, header]
    return sources


def programs_of(options, folder):
    """Returns {"compiler: headers": program}."""
    flags = [*include_flags(options.bin.parent), *options.flags.split()]
    programs = {}
    for number, (name, headers) in enumerate(sources_of(options.narrow).items()):
        source = folder / f"source_{number}.cpp"
        source.write_text("".join(f"#include <{header}>\n" for header in headers) + "int main() {}\n", encoding="utf-8")
        for compiler in options.compilers:
            programs[f"{compiler}: {name}"] = Program([compiler, *flags, "-c", str(source), "-o", str(folder / "object.o")])
    return programs


def cpu_seconds(bench, name, program):
    """Returns the user CPU time of a program and of all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    bench.run(name, program)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def ratios_of(seconds):
    """Returns {"compiler: headers": [seconds / seconds with torch/torch.h alone, ...]}, each of one round."""
    return {
        name: [time / alone for time, alone in zip(times, seconds[f"{name.split(': ')[0]}: {ALONE}"])]
        for name, times in seconds.items()
        if not name.endswith(f": {ALONE}")
    }


def main():
    options = parse_arguments()
    bench = Bench("compile", options)
    with tempfile.TemporaryDirectory() as folder:
        programs = programs_of(options, Path(folder))
        values = bench.measure("compile", programs, lambda name: {"seconds": cpu_seconds(bench, name, programs[name])})
    values["ratio"] = ratios_of(values["seconds"])
    print_table("CPU seconds", values["seconds"])
    print_table("seconds / seconds with torch/torch.h", values["ratio"])
    bench.finish(values, flags=options.flags, compilers={name: first_line(name, "--version") for name in options.compilers})


if __name__ == "__main__":
    main()
