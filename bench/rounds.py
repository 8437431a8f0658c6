# SPDX-License-Identifier: Apache-2.0
"""Common code of the benches: alternating programs, time limits, facts about the machine, the report.

Rounds run all programs, in alternating order; the first is a warm-up and not counted. A program that
exceeds its time limit is killed with all its processes. A peer that did so, or that failed (torch's processes
sometimes do, at their exit), runs again, at most three times; the report and a line below the table say so. If
Lockstep's program fails, the bench fails.
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
    """What is run in turn with others, and whether it is a peer's."""

    command: list
    peer: bool = False
    environment: dict = field(default_factory=dict)


def parser_of(text, rounds=5, limit=120):
    """With the options that every bench has; for its own to be added."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"counted rounds (default {rounds})")
    parser.add_argument("--real-time", action="store_true", help="all programs under `chrt -r 1`")
    parser.add_argument("--limit", type=float, default=limit, help=f"seconds a program may take (default {limit})")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="where our programs are")
    parser.add_argument("--peers-python", type=Path, default=None, help="with the peers (default: build/bench-peers)")
    parser.add_argument("--output", type=Path, default=None, help="the report (default: build/bench/NAME.json)")
    return parser


def turns(names, rounds):
    """(round, place, name) of every run, in order; round 0 is the warm-up."""
    for number in range(rounds + 1):
        for place, name in enumerate(names if number % 2 else reversed(names)):
            yield number, place, name


def json_lines(output):
    """What a program has printed for its bench."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"')]


def cpu_model():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    told = [facts.get(name, "?").strip() for name in ("model name", "cpu family", "model")]
    return f"{told[0]}, family {told[1]}, model {told[2]}"


def first_line(*command):
    """What a tool says of itself; nothing where it is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None


class Bench:
    """One run of a bench, from its options to its report."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        if options.rounds < 1:
            sys.exit(f"{name}: --rounds must be at least 1; got {options.rounds}")
        self.prefix = ["chrt", "-r", "1"] if options.real_time else []
        if options.real_time and first_line(*self.prefix, "true") is None:
            sys.exit(f"{name}: chrt -r 1 is refused here (it takes root, CAP_SYS_NICE or an rtprio limit): nothing was measured")
        self.python = options.peers_python or own_python()
        self.hangs, self.failures = {}, {}  # {name: times}
        self.began = datetime.datetime.now().astimezone()
        self.load_before = os.getloadavg()[0]
        adopt_orphans()
        print(f"{name}: {options.rounds} rounds, {os.cpu_count()} cores" + (", chrt -r 1" if self.prefix else ""))

    def launch(self, ranks, program, *arguments):
        """Ours, under our launcher."""
        launcher = [str(self.options.bin / "lockstep"), "launch", "-n", str(ranks)]
        return Program([*launcher, str(self.options.bin / program), *map(str, arguments)])

    def torchrun(self, ranks, script, *arguments):
        """A peer of bench/, under PyTorch's launcher."""
        launcher = [str(self.python), "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        return Program([*launcher, str(ROOT / "bench" / script), *map(str, arguments)], peer=True)

    def run(self, name, program):
        """What became of it; ends the bench if it failed or hung, a peer if it did so once too often."""
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
        """{row: {name: [figure of each round]}}, where `figures_of(name)` runs it and returns {row: figure}."""
        values, names, began = {}, list(names), time.monotonic()
        for number, place, name in turns(names, self.options.rounds):
            self.say(f"round {number}/{self.options.rounds}, {place + 1}/{len(names)}, {title}: {name}")
            figures = figures_of(name)
            for row, figure in figures.items() if number > 0 else ():
                values.setdefault(row, {}).setdefault(name, []).append(figure)
        self.say("")
        if not sys.stderr.isatty():
            print(f"{self.name}: {title} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return {row: {name: by_name[name] for name in names if name in by_name} for row, by_name in values.items()}

    def say(self, what):
        """The line that tells how far it is, on a terminal."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what[:100]}", end="", file=sys.stderr, flush=True)

    def finish(self, values, **more):
        """Prints what there is to know of the run, and writes it with all figures."""
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
