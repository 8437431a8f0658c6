# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program as several real processes, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import lockstep

_DEADLINE_SECONDS = 120


def run_ranks(program: str, ranks: int, deadline: float = _DEADLINE_SECONDS, **variables: str) -> list[str]:
    """Runs the text of a program as `ranks` processes on the CPU. Returns what each of them printed.

    Throws AssertionError with the output if a process fails, or does not end within `deadline` seconds.
    """
    outputs = finish_ranks(program, ranks, deadline, **variables)
    for rank, (code, output) in enumerate(outputs):
        assert code == 0, f"process {rank} of {ranks} exited with {code}:\n{output}"
    return [output for _, output in outputs]


def finish_ranks(
    program: str, ranks: int, deadline: float = _DEADLINE_SECONDS, **variables: str
) -> list[tuple[int, str]]:
    """Does the same, but returns the exit code and output of each process."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(textwrap.dedent(program), encoding="utf-8")
        processes = [
            subprocess.Popen(
                [sys.executable, str(script)],
                env=_environment(rank, ranks, port) | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for port in [_free_port()]
            for rank in range(ranks)
        ]
        try:
            return [(process.wait(deadline), process.stdout.read()) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.kill()
            outputs = "\n".join(process.stdout.read() for process in processes)
            raise AssertionError(f"the processes did not end within {deadline} s:\n{outputs}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
                process.stdout.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Returns this process's variables, the package's folder, and those that a launcher sets."""
    package_folder = str(Path(lockstep.__file__).parents[1])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [package_folder, os.environ.get("PYTHONPATH", "")]))
    variables |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT_MS": "30000"}
    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def package_folder() -> Path:
    """Returns the folder that contains the package lockstep."""
    return Path(lockstep.__file__).parents[1]


def build_folder() -> Path:
    """Returns the build folder of the tested package."""
    return package_folder().parent


def binary() -> Path:
    """Returns the command line of that build."""
    return build_folder() / "bin" / "lockstep"
