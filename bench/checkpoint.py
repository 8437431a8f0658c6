#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a model with its Adam state on 2 ranks: ours against Python's, and cp.

Against torch.save, safetensors, torch.distributed.checkpoint and Accelerate's save_state, on one
disk, in rounds that go through all of them, forwards and backwards in turn, each in processes of its
own; a warm-up round before the first is not counted. A save counts until the disk has every
file and the folder (fsync): ours does that itself before it commits, for the others the bench does
it. A load counts until model and optimizer of every rank have their values; "warm" with the files in
the page cache, "cold" with them dropped from it. The limits: for a save `cp -r` of our files, with
the same fsync; for a load the bytes of our files read into memory that is there, by every rank. Ours
loads twice: with every checksum compared, as by default, and, as the peers do, with none.

Prints a table and writes all times to build/bench/checkpoint.json. Peers run in build/bench-peers,
made when missing from the package index (LOCKSTEP_PIP_INDEX_URL), or in a Python of your own.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, own_python, versions

PEERS = ("torch", "safetensors", "dcp", "accelerate")
OURS = "lockstep"
# Ours, what limits it, and every peer's name for the same.
COMPARED = {
    "save": ("cp -r + fsync", ("save",)),
    "load_warm": ("bytes to memory", ("load_warm", "load_mmap_warm")),
    "load_cold": ("bytes to memory", ("load_cold", "load_mmap_cold")),
}
STALL = "async_stall"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="of fp32 parameters; Adam's are twice as much (default 1e9)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds before them (default 1)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which of {','.join(PEERS)} (default all)")
    parser.add_argument("--peers-python", default=None, help="with torch, accelerate and safetensors (default: build/bench-peers)")
    parser.add_argument("--folder", default=str(ROOT / "build/bench"), help="on the disk to be measured (default build/bench)")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="where lockstep and checkpoint_bench are")
    parser.add_argument("--lockstep", default=None, help="another lockstep than the one of --bin")
    parser.add_argument("--output", default=str(ROOT / "build/bench/checkpoint.json"))
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    if not set(options.peers) <= set(PEERS):
        parser.error(f"--peers takes some of {','.join(PEERS)}")
    if options.rounds < 1 or options.warm_ups < 0 or options.bytes < 10_000:
        parser.error("--rounds must be at least 1, --warm-ups 0, --bytes at least 10000")
    options.lockstep = options.lockstep or str(Path(options.bin) / "lockstep")
    return options


def run(command):
    """{measurement: seconds} that a program has printed; ends ours with what it said if it failed."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"checkpoint: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"measured"')]
    return {line["measured"]: line["seconds"] for line in lines}


def copy_seconds(saved, copy):
    """Of cp, until the disk has the copy."""
    subprocess.run(["cp", "-r", str(saved), str(copy)], check=True)  # So that what is read is in memory.
    shutil.rmtree(copy)
    os.sync()
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(saved), str(copy)], check=True)
    for path in [*copy.rglob("*"), copy]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    return time.perf_counter() - began


def run_one(name, command, folder):
    """What one of them took, with nothing left of it on the disk."""
    scratch = Path(tempfile.mkdtemp(prefix=f"checkpoint-{name}-", dir=folder))
    try:
        measured = run([*command, "--folder", str(scratch)])
        if name == OURS:
            measured["cp"] = copy_seconds(scratch / "saved", scratch / "copy")
        return measured
    finally:
        shutil.rmtree(scratch)
        os.sync()


def measure(commands, options):
    """{name: {measurement: [seconds, ...]}} over the rounds."""
    times = {name: {} for name in commands}
    for round_number in range(1 - options.warm_ups, options.rounds + 1):
        order = list(commands) if round_number % 2 else list(reversed(commands))
        for name in order:
            measured = run_one(name, commands[name], options.folder)
            # At once: a run of minutes may be broken off.
            told = ", ".join(f"{what} {seconds:.3f}" for what, seconds in measured.items())
            print(f"round {round_number}: {name}: {told}", file=sys.stderr, flush=True)
            for what, seconds in measured.items() if round_number > 0 else ():
                times[name].setdefault(what, []).append(seconds)
    return times


def rows_of(times, what):
    """(name, seconds, role) of all that did the same: ours, its limit, peers."""
    limit_name, names = COMPARED[what]
    limit = times[OURS]["cp" if what == "save" else what.replace("load", "copy")]
    yield OURS, times[OURS][what]
    if what != "save":
        yield f"{OURS}, unchecked", times[OURS][what.replace("load", "load_unchecked")]
    yield limit_name, limit
    for peer, measured in times.items():
        for name in names if peer != OURS else ():
            if name in measured:
                yield f"{peer}, mmap" if "mmap" in name else peer, measured[name]


def print_tables(times):
    for what in COMPARED:
        print(f"\n{what:24}{'median s':>10}{'min':>8}{'max':>8}{'to ours':>9}")
        rows = list(rows_of(times, what))
        ours = statistics.median(rows[0][1])
        for name, seconds in rows:
            row = [pick(seconds) for pick in (statistics.median, min, max)]
            print(f"{name:24}{row[0]:10.3f}{row[1]:8.3f}{row[2]:8.3f}{row[0] / ours:9.2f}")
    stall = times[OURS][STALL]
    print(f"\nsave_state(async) keeps the loop {statistics.median(stall):.3f} s ({min(stall):.3f} to {max(stall):.3f})")


def main():
    options = parse_arguments()
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    size = ["--bytes", str(options.bytes)]
    commands = {OURS: [options.lockstep, "launch", "-n", "2", str(Path(options.bin) / "checkpoint_bench"), *size]}
    python = None
    if options.peers:
        python = Path(options.peers_python) if options.peers_python else own_python()
        launcher = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        for peer in options.peers:
            commands[peer] = [*launcher, str(ROOT / "bench/checkpoint_peers.py"), "--peer", peer, *size]
    loads = [os.getloadavg()[0]]
    print(f"{options.rounds} rounds, 2 ranks, {options.bytes / 1e9:g} GB of parameters + {2 * options.bytes / 1e9:g} GB of Adam state")
    times = measure(commands, options)
    loads.append(os.getloadavg()[0])
    print_tables(times)
    print(f"{os.cpu_count()} cores, load {loads[0]:.1f} before and {loads[1]:.1f} after")
    report = {
        "benchmark": "checkpoint",
        "bytes": options.bytes,
        "commands": commands,
        "seconds": times,
        "versions": versions(python) if python else {},
        "cores": os.cpu_count(),
        "load": loads,
        "machine": platform.platform(),
    }
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"all times: {output}")


if __name__ == "__main__":
    main()
