# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program as several real processes, for tests."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import lockstep

_DEADLINE_SECONDS = 120
_FORK_SERVER = str(Path(__file__).with_name("fork_server.py"))


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
        return _finish([str(script)], ranks, deadline, **variables)


def run_alone(script: Path, *arguments: str) -> str:
    """Runs a Python file as the only process of a job. Returns what it printed.

    Throws AssertionError with the output if it fails, or does not end within two minutes.
    """
    ((code, output),) = _finish([str(script), *arguments], 1, _DEADLINE_SECONDS)
    assert code == 0, f"{script} exited with {code}:\n{output}"
    return output


def _finish(command: list[str], ranks: int, deadline: float, **variables: str) -> list[tuple[int, str]]:
    """Runs a Python file with its arguments as `ranks` processes."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"output_{rank}" for rank in range(ranks)]
        port = _free_port()
        request = {
            "command": command,
            "environments": [_environment(rank, ranks, port) | variables for rank in range(ranks)],
            "outputs": [str(output) for output in outputs],
            "seconds": deadline,
        }
        server = _fork_server()
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, f"{_FORK_SERVER} ended with exit code {server.wait()}"
        codes = json.loads(answer)
        texts = [output.read_text(encoding="utf-8") for output in outputs]
    late = [rank for rank, code in enumerate(codes) if code is None]
    assert not late, f"the processes {late} did not end within {deadline} s:\n" + "\n".join(texts)
    return list(zip(codes, texts, strict=True))


@functools.cache
def _fork_server() -> subprocess.Popen[str]:
    """Returns the process whose forks run the programs. It ends with this process."""
    return subprocess.Popen(
        [sys.executable, _FORK_SERVER],
        env=_environment(0, 1, 0),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Returns this process's variables, the package's folder, and those that a launcher sets."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    variables["PYTHONPATH"] = python_path()
    variables |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT_MS": "30000"}
    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def python_path() -> str:
    """Returns PYTHONPATH with the package's folder first."""
    return os.pathsep.join(filter(None, [str(package_folder()), os.environ.get("PYTHONPATH", "")]))


def package_folder() -> Path:
    """Returns the folder that contains the package lockstep."""
    return Path(lockstep.__file__).parents[1]


def build_folder() -> Path:
    """Returns the build folder of the tested package."""
    return package_folder().parent


def binary() -> Path:
    """Returns the command line of that build."""
    return build_folder() / "bin" / "lockstep"
