# SPDX-License-Identifier: Apache-2.0
"""Runs a bench's programs with a time limit each, and kills all processes that they have started."""
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ended:
    """Holds the result of a program that has ended. `began` is CLOCK_MONOTONIC, which its processes may print, too."""

    code: int
    output: str
    errors: str
    began: float
    seconds: float


def adopt_orphans():
    """Makes this process the parent of its orphaned descendants: torchrun's workers have their own sessions."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # Makes run() end them.


def running_below():
    """Returns all descendants of this process that have not ended."""
    below = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            except OSError:
                continue  # It has just ended.
            below.setdefault(int(parent), []).append((int(entry.name), state))
    found, parents = [], [os.getpid()]
    while parents:
        for process, state in below.get(parents.pop(), []):
            parents.append(process)
            if state != "Z":
                found.append(process)
    return found


def end_all_below():
    """Kills all descendants, repeatedly, since each may start another one meanwhile."""
    while left := running_below():
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def reap_orphans():
    """Reaps adopted descendants that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def run(command, environment, limit):
    """Runs `command` and returns its result. Raises subprocess.TimeoutExpired after `limit` seconds.

    `environment` is added to this process's.
    """
    began = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit)
            seconds = time.monotonic() - began
        finally:
            end_all_below()
    reap_orphans()
    return Ended(process.returncode, output, errors, began, seconds)
