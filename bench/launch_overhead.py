#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a launcher costs: wall time of `lockstep launch -n 2 true` against torchrun doing the same.

Both start two processes that end at once, so all the time is the launcher's. Runs are interleaved,
which spreads what else the machine does over both; the first of each is a warm-up and not counted.
Prints a table and writes all times to build/bench/launch_overhead.json.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10, help="counted runs of each (default 10)")
    parser.add_argument("--ranks", type=int, default=2, help="processes a run starts (default 2)")
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/bin/lockstep"))
    parser.add_argument("--torchrun", default=None, help="default: the one beside this Python, else on the PATH")
    parser.add_argument("--output", default=str(ROOT / "build/bench/launch_overhead.json"))
    options = parser.parse_args()
    if options.repetitions < 1 or options.ranks < 1:
        parser.error("--repetitions and --ranks must be at least 1")
    beside = Path(sys.executable).parent / "torchrun"
    options.torchrun = options.torchrun or (str(beside) if beside.is_file() else shutil.which("torchrun"))
    if options.torchrun is None:
        parser.error("found no torchrun to compare with; try --torchrun PATH")
    return options


def timed(command):
    """Seconds the command took; ends the program with what it said if it failed."""
    began = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"launch_overhead: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def measure(commands, repetitions):
    """{name: [seconds, ...]}, one run of each in turn, and the other way round every second time."""
    times = {name: [] for name in commands}
    for repetition in range(repetitions + 1):
        order = list(commands) if repetition % 2 else list(reversed(commands))
        for name in order:
            seconds = timed(commands[name])
            if repetition > 0:
                times[name].append(seconds)
        if sys.stderr.isatty():
            print(f"\r{repetition}/{repetitions}\r", end="", file=sys.stderr, flush=True)
    return times


def print_table(commands, times):
    print(f"{'ms':24}{'median':>10}{'min':>10}{'max':>10}")
    for name in commands:
        row = [1000 * pick(times[name]) for pick in (statistics.median, min, max)]
        print(f"{name:24}" + "".join(f"{value:10.1f}" for value in row))
    ours, theirs = (statistics.median(times[name]) for name in commands)
    print(f"torchrun takes {theirs / ours:.1f} times as long as lockstep launch (medians)")


def main():
    options = parse_arguments()
    ranks = str(options.ranks)
    commands = {
        "lockstep launch": [options.lockstep, "launch", "-n", ranks, "true"],
        "torchrun": [options.torchrun, "--no-python", "--nproc-per-node", ranks, "true"],
    }
    print(f"{options.repetitions} runs each, {ranks} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    times = measure(commands, options.repetitions)
    print_table(commands, times)
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "benchmark": "launch_overhead",
        "commands": commands,
        "seconds": times,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "machine": platform.platform(),
    }
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"all times: {output}")


if __name__ == "__main__":
    main()
