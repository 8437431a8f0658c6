#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the start and end of a job: `lockstep launch` against torchrun and `accelerate launch`.

Jobs, each of 2 ranks by default:
  nothing   a program that ends at once (true), so that the launcher takes all the time
  script    an empty Python script, the same for all three
  ready     ranks that join at a barrier over Gloo: until the last one has passed it ("ready"), and to
            the end of the job ("ready_end"). Our ranks are a native program; the peers' ranks must be
            Python. The ranks also read their launcher's peak memory.

accelerate starts only one process on CPUs. It therefore runs with --multi_gpu and
ACCELERATE_USE_CPU=true, and the bench checks the number of ranks. All three launchers run each job in turn
(rounds.py). Prints tables and writes all figures to build/bench/launch.json.
"""
import sys
import tempfile

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import print_table

OURS, TORCHRUN, ACCELERATE = "lockstep launch", "torchrun", "accelerate launch"
JOBS = ("nothing", "script", "ready")
MEASURED = {
    "nothing": "ms to the end of `true`",
    "script": "ms to the end of an empty script",
    "ready": "ms until all ranks have joined",
    "ready_end": "ms to the end of that job",
    "launcher_peak_kib": "KiB the launcher takes at most",
}


def parse_arguments():
    parser = parser_of(__doc__, rounds=10)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error("--ranks must be at least 1")
    return options


def programs_of(bench, script):
    """Returns {(job, launcher): program}."""
    ranks, python = str(bench.options.ranks), str(bench.python)
    ours = [str(bench.options.bin / "lockstep"), "launch", "-n", ranks]
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    accelerate = [python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", ranks]
    accelerate += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    ready = str(ROOT / "bench/launch_ready.py")
    return {
        ("nothing", OURS): Program([*ours, "true"]),
        ("nothing", TORCHRUN): Program([*torchrun, "--no-python", "true"], peer=True),
        ("nothing", ACCELERATE): Program([*accelerate, "--no_python", "true"], peer=True),
        ("script", OURS): Program([*ours, script], environment={"LOCKSTEP_PYTHON": python}),
        ("script", TORCHRUN): Program([*torchrun, script], peer=True),
        ("script", ACCELERATE): Program([*accelerate, script], peer=True),
        ("ready", OURS): Program([*ours, str(bench.options.bin / "launch_ready")]),
        ("ready", TORCHRUN): Program([*torchrun, ready, "torch"], peer=True),
        ("ready", ACCELERATE): Program([*accelerate, ready, "accelerate"], peer=True),
    }


def figures_of(job, ended, ranks):
    """Returns {measurement: value} of one run."""
    if job != "ready":
        return {job: 1000 * ended.seconds}
    lines = json_lines(ended.output)
    if [line["ranks"] for line in lines] != [ranks] * ranks:
        sys.exit(f"launch: not all ranks joined; expected {ranks} ranks:\n{ended.output}{ended.errors}")
    return {
        "ready": 1000 * (max(line["ready"] for line in lines) - ended.began),
        "ready_end": 1000 * ended.seconds,
        "launcher_peak_kib": max(line["launcher_peak_kib"] for line in lines),
    }


def measure(bench, job, programs):
    def run(launcher):
        return figures_of(job, bench.run(launcher, programs[job, launcher]), bench.options.ranks)

    return bench.measure(job, (OURS, TORCHRUN, ACCELERATE), run)


def main():
    options = parse_arguments()
    bench = Bench("launch", options)
    values = {}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        programs = programs_of(bench, script.name)
        for job in JOBS:
            values |= measure(bench, job, programs)
    for what, title in MEASURED.items():
        print_table(title, values[what])
    bench.finish(values, ranks=options.ranks)


if __name__ == "__main__":
    main()
