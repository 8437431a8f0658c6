# SPDX-License-Identifier: Apache-2.0
"""Common code of the benches: alternating programs, time limits, facts about the machine, the report.

Rounds run all programs, in alternating order; the first round is a warm-up and not counted. A program that
exceeds its time limit is killed with all its processes. A peer that exceeds it or fails (torch's processes
sometimes fail at their exit) runs again, at most three times; the report and a line below the table mention
it. If Lockstep's program fails, the bench fails.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from peers import ROOT, own_python, versions
from processes import adopt_orphans, run

MOST_REPEATS = 3


@dataclass(frozen=True)
class Program:
    """Holds a command that runs in turn with others; `peer`: it is not Lockstep's."""

    command: list
    peer: bool = False
    environment: dict = field(default_factory=dict)


def parser_of(text, rounds=5, limit=120):
    """Returns a parser with the options that every bench has. A bench adds its own."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"counted rounds (default {rounds})")
    parser.add_argument("--real-time", action="store_true", help="all programs under `chrt -r 1`")
    parser.add_argument("--limit", type=float, default=limit, help=f"seconds a program may take (default {limit})")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="Lockstep's programs (default build/release/bin)")
    parser.add_argument("--peers-python", type=Path, default=None, help="a Python with the peers (default: build/bench-peers)")
    parser.add_argument("--output", type=Path, default=None, help="the report (default: build/bench/NAME.json)")
    return parser


def turns(names, rounds):
    """Yields (round, place, name) of every run, in order; round 0 is the warm-up."""
    for number in range(rounds + 1):
        for place, name in enumerate(names if number % 2 else reversed(names)):
            yield number, place, name


def json_lines(output):
    """Returns the JSON objects that a program has printed for its bench."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"')]


def cpu_model():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    names = [facts.get(name, "?").strip() for name in ("model name", "cpu family", "model")]
    return f"{names[0]}, family {names[1]}, model {names[2]}"


def first_line(*command):
    """Returns the first line that a tool prints. Returns None if the tool is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None


class Bench:
    """Runs a bench, from its options to its report."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        if options.rounds < 1:
            sys.exit(f"{name}: --rounds must be at least 1; got {options.rounds}")
        self.prefix = ["chrt", "-r", "1"] if options.real_time else []
        if options.real_time and first_line(*self.prefix, "true") is None:
            sys.exit(f"{name}: chrt -r 1 is refused; expected root, CAP_SYS_NICE or an rtprio limit; omit --real-time")
        self.python = options.peers_python or own_python()
        self.hangs, self.failures = {}, {}  # {name: times}
        self.began = datetime.datetime.now().astimezone()
        self.load_before = os.getloadavg()[0]
        # The Python package of the build whose programs are measured.
        self.package = options.bin.resolve().parent / "python"
        adopt_orphans()
        print(f"{name}: {options.rounds} rounds, {os.cpu_count()} cores" + (", chrt -r 1" if self.prefix else ""))

    def launch(self, ranks, program, *arguments):
        """Returns a program of Lockstep's, under its launcher."""
        launcher = [str(self.options.bin / "lockstep"), "launch", "-n", str(ranks)]
        return Program([*launcher, str(self.options.bin / program), *map(str, arguments)])

    def launch_python(self, ranks, script, *arguments):
        """Returns a script in bench/ that uses our Python package, under our launcher."""
        launcher = [str(self.options.bin / "lockstep"), "launch", "-n", str(ranks), str(self.python)]
        # With bytecode, as pip installs it.
        environment = {"PYTHONPATH": str(self.package), "PYTHONDONTWRITEBYTECODE": ""}
        return Program([*launcher, str(ROOT / "bench" / script), *map(str, arguments)], environment=environment)

    def torchrun(self, ranks, script, *arguments):
        """Returns a peer in bench/, under PyTorch's launcher."""
        launcher = [str(self.python), "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        return Program([*launcher, str(ROOT / "bench" / script), *map(str, arguments)], peer=True)

    def run(self, name, program):
        """Returns the result of a program. Ends the bench if it fails or hangs; a peer may do so MOST_REPEATS times."""
        environment = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **program.environment}
        command = [*self.prefix, *program.command]
        for _ in range(1 + (MOST_REPEATS if program.peer else 0)):
            try:
                ended = run(command, environment, self.options.limit)
            except subprocess.TimeoutExpired:
                self.hangs[name] = self.hangs.get(name, 0) + 1
                fault = f"did not end within {self.options.limit:g} s"
                continue
            if ended.code == 0:
                return ended
            self.failures[name] = self.failures.get(name, 0) + 1
            fault = f"ended with {ended.code}:\n{ended.output}{ended.errors}"
        sys.exit(f"{self.name}: {' '.join(command)} {fault}")

    def measure(self, title, names, figures_of):
        """Returns {row: {name: [figure of each round]}}. `figures_of(name)` runs a program and returns {row: figure}."""
        values, names, began = {}, list(names), time.monotonic()
        for number, place, name in turns(names, self.options.rounds):
            self.show_progress(f"round {number}/{self.options.rounds}, {place + 1}/{len(names)}, {title}: {name}")
            figures = figures_of(name)
            for row, figure in figures.items() if number > 0 else ():
                values.setdefault(row, {}).setdefault(name, []).append(figure)
        self.show_progress("")
        if not sys.stderr.isatty():
            print(f"{self.name}: {title} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return {row: {name: by_name[name] for name in names if name in by_name} for row, by_name in values.items()}

    def show_progress(self, what):
        """Shows the current run, on a terminal."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what[:100]}", end="", file=sys.stderr, flush=True)

    def finish(self, values, **more):
        """Prints facts about the run, and writes them with all figures."""
        load_after = os.getloadavg()[0]
        print(f"\nload {self.load_before:.1f} before and {load_after:.1f} after")
        for name, times in self.hangs.items():
            print(f"{name} hung, was killed after {self.options.limit:g} s and run again: {times} times")
        for name, times in self.failures.items():
            print(f"{name} failed and was run again: {times} times")
        report = {
            "benchmark": self.name,
            "real_time": self.options.real_time,
            "command": sys.argv,
            "date": self.began.isoformat(timespec="seconds"),
            "rounds": self.options.rounds,
            **more,
            "values": values,
            "hangs": self.hangs,
            "failures": self.failures,
            "versions": {
                "lockstep": first_line("git", "describe", "--always", "--dirty"),
                "openmpi": (first_line("mpirun", "--version") or "").rpartition(" ")[2],
                **versions(self.python),
            },
            "cores": os.cpu_count(),
            "cpu": cpu_model(),
            "load": [self.load_before, load_after],
            "machine": platform.platform(),
        }
        real_time = "_real_time" if self.options.real_time else ""
        output = self.options.output or ROOT / f"build/bench/{self.name}{real_time}.json"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"all figures: {output}")
