#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures saving and loading a model with its Adam state on 2 ranks: Lockstep against Python's libraries, and cp.

Peers are torch.save, safetensors, torch.distributed.checkpoint and Accelerate's save_state. All write
to one disk, in turn (rounds.py), each in its own processes.

A save ends when every file and the folder are flushed (fsync): Lockstep does that itself before it commits,
for the peers the bench does it. A load ends when the call returns. "ready" ends when model and optimizer of
every rank have been written once in place, as the first training step does: mapped files are read only
then. "Warm" has the files in the page cache, "cold" has them dropped from it.

The limit of a save is `cp -r` of our files, with the same fsync. The limit of a load is to read the bytes of
our files into allocated memory, on every rank. Lockstep loads twice: with every checksum compared, as by
default, and, as the peers do, with none.

Prints tables and writes all times to build/bench/checkpoint.json.
"""
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from peers import ROOT
from rounds import Bench, json_lines, parser_of
from tables import print_table

OURS, COPY, READ = "lockstep", "cp -r, then fsync", "bytes to memory"
PEERS = {
    "torch": "torch.save, torch.load",
    "safetensors": "safetensors",
    "dcp": "torch.distributed.checkpoint",
    "accelerate": "Accelerate",
}
ROWS = ("save", "load_warm", "ready_warm", "load_cold", "ready_cold")
STALL = "async_stall"


def parse_arguments():
    parser = parser_of(__doc__, limit=600)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="bytes of fp32 parameters; Adam's are twice as many (default 1e9)")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="(default all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="a folder on the disk to measure (default build/bench)")
    options = parser.parse_args()
    if options.bytes < 10_000:
        parser.error("--bytes must be at least 10000")
    return options


def copy_seconds(saved, copy):
    """Returns the time of cp, until the disk has the copy."""
    subprocess.run(["cp", "-r", str(saved), str(copy)], check=True)  # Puts the source into the page cache.
    shutil.rmtree(copy)
    os.sync()
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(saved), str(copy)], check=True)
    for path in [*copy.rglob("*"), copy]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    return time.perf_counter() - began


def run_one(bench, name, program):
    """Returns {measurement: seconds} of one program, and removes its files from the disk."""
    scratch = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=bench.options.folder))
    program = replace(program, command=[*program.command, "--folder", str(scratch)])
    try:
        lines = json_lines(bench.run(name, program).output)
        measured = {line["measured"]: line["seconds"] for line in lines}
        if name == OURS:
            measured["cp"] = copy_seconds(scratch / "saved", scratch / "copy")
        return measured
    finally:
        shutil.rmtree(scratch)
        os.sync()


def rows_of(times):
    """Returns {row: {program: seconds}} from {measurement: {program: seconds}}: ours, our limit, the peers."""
    rows = {}
    for row in ROWS:
        what, _, cache = row.partition("_")
        ways = {", unchecked": f"{what}_unchecked_{cache}", ", mmap": f"{what}_mmap_{cache}"}
        found = {name + way: seconds for way, measured in ways.items() for name, seconds in times.get(measured, {}).items()}
        found[COPY if what == "save" else READ] = times["cp" if what == "save" else f"copy_{cache}"][OURS]
        found |= times[row]
        if what == "ready":
            del found[READ]  # The limit only reads.
        names = [name + way for name in (OURS, COPY, READ, *PEERS.values()) for way in ("", *ways)]
        rows[row] = {name: found[name] for name in names if name in found}
    return rows


def main():
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench("checkpoint", options)
    programs = {OURS: bench.launch(2, "checkpoint_bench", "--bytes", options.bytes)}
    for peer in options.peers:
        programs[PEERS[peer]] = bench.torchrun(2, "checkpoint_peers.py", "--peer", peer, "--bytes", options.bytes)
    print(f"2 ranks, {options.bytes / 1e9:g} GB of parameters + {2 * options.bytes / 1e9:g} GB of Adam state")
    times = bench.measure("checkpoint", programs, lambda name: run_one(bench, name, programs[name]))
    values = rows_of(times)
    for row, by_program in values.items():
        print_table(f"{row.replace('_', ', ')}: s", by_program)
    values[STALL] = times[STALL]
    print_table("an asynchronous save blocks the loop: s", values[STALL])
    bench.finish(values, bytes=options.bytes)


if __name__ == "__main__":
    main()
