#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What starting and ending a job costs: `lockstep launch` against torchrun and `accelerate launch`.

Jobs, each of 2 ranks unless told otherwise:
  nothing   a program that ends at once (true): all the time is the launcher's
  script    an empty Python script, the same for all three
  ready     ranks that meet at a barrier over Gloo: until the last one is past it ("ready"), and to
            the end of the job ("ready_end"). Ours is a native program; the peers' is Python, as theirs
            must be. The most memory each launcher has taken by then is read by its ranks.

accelerate starts one process on CPUs unless it takes them for several GPUs: it runs with --multi_gpu
and ACCELERATE_USE_CPU=true, and the number of ranks is checked. Runs are interleaved, forwards and
backwards in turn; the first of each is a warm-up and not counted. Prints tables and writes all
figures to build/bench/launch.json.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, own_python, versions

OURS = "lockstep launch"
TORCHRUN = "torchrun"
ACCELERATE = "accelerate launch"
MEASURED = {
    "nothing": "ms to the end of `true`",
    "script": "ms to the end of an empty script",
    "ready": "ms until all ranks have met",
    "ready_end": "ms to the end of that job",
    "launcher_peak_kib": "KiB the launcher takes at most",
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10, help="counted runs of each (default 10)")
    parser.add_argument("--ranks", type=int, default=2, help="processes a run starts (default 2)")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="where lockstep and launch_ready are")
    parser.add_argument("--peers-python", default=None, help="with torch and accelerate (default: build/bench-peers)")
    parser.add_argument("--output", default=str(ROOT / "build/bench/launch.json"))
    options = parser.parse_args()
    if options.repetitions < 1 or options.ranks < 1:
        parser.error("--repetitions and --ranks must be at least 1")
    return options


def commands_of(options, python, script):
    """{(job, launcher): command}."""
    binaries = Path(options.bin)
    ranks = str(options.ranks)
    ours = [str(binaries / "lockstep"), "launch", "-n", ranks]
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    accelerate = [str(python), "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", ranks]
    accelerate += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    ready = str(ROOT / "bench/launch_ready.py")
    return {
        ("nothing", OURS): [*ours, "true"],
        ("nothing", TORCHRUN): [*torchrun, "--no-python", "true"],
        ("nothing", ACCELERATE): [*accelerate, "--no_python", "true"],
        ("script", OURS): [*ours, script],
        ("script", TORCHRUN): [*torchrun, script],
        ("script", ACCELERATE): [*accelerate, script],
        ("ready", OURS): [*ours, str(binaries / "launch_ready")],
        ("ready", TORCHRUN): [*torchrun, ready, "torch"],
        ("ready", ACCELERATE): [*accelerate, ready, "accelerate"],
    }


def run(job, command, ranks, environment):
    """{measurement: value} of one run; ends the program if it failed."""
    began = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    seconds = time.monotonic() - began
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    expected = [ranks] * (ranks if job == "ready" else 0)
    if done.returncode != 0 or [line["ranks"] for line in told] != expected:
        sys.exit(f"launch: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if job != "ready":
        return {job: 1000 * seconds}
    return {
        "ready": 1000 * (max(line["ready"] for line in told) - began),
        "ready_end": 1000 * seconds,
        "launcher_peak_kib": max(line["launcher_peak_kib"] for line in told),
    }


def measure(commands, options, python):
    """{measurement: {launcher: [value, ...]}}, one run of each in turn, and back every second time."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "LOCKSTEP_PYTHON": str(python)}
    values = {what: {} for what in MEASURED}
    for repetition in range(options.repetitions + 1):
        order = list(commands) if repetition % 2 else list(reversed(commands))
        for job, launcher in order:
            measured = run(job, commands[job, launcher], options.ranks, environment)
            if repetition > 0:
                for what, value in measured.items():
                    values[what].setdefault(launcher, []).append(value)
        if sys.stderr.isatty():
            print(f"\r{repetition}/{options.repetitions}\r", end="", file=sys.stderr, flush=True)
    return values


def print_tables(values):
    for what, title in MEASURED.items():
        print(f"\n{title:36}{'median':>10}{'min':>10}{'max':>10}{'to ours':>10}")
        ours = statistics.median(values[what][OURS])
        for launcher in (OURS, TORCHRUN, ACCELERATE):
            row = [pick(values[what][launcher]) for pick in (statistics.median, min, max)]
            print(f"{launcher:36}" + "".join(f"{value:10.1f}" for value in row) + f"{row[0] / ours:10.1f}")


def main():
    options = parse_arguments()
    python = Path(options.peers_python) if options.peers_python else own_python()
    loads = [os.getloadavg()[0]]
    print(f"{options.repetitions} runs each, {options.ranks} ranks, {os.cpu_count()} cores")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        commands = commands_of(options, python, script.name)
        values = measure(commands, options, python)
    loads.append(os.getloadavg()[0])
    print_tables(values)
    print(f"load {loads[0]:.1f} before and {loads[1]:.1f} after")
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "benchmark": "launch",
        "commands": {f"{job}, {launcher}": command for (job, launcher), command in commands.items()},
        "values": values,
        "versions": versions(python),
        "cores": os.cpu_count(),
        "load": loads,
        "machine": platform.platform(),
    }
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"all figures: {output}")


if __name__ == "__main__":
    main()
