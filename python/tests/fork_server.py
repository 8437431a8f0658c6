# SPDX-License-Identifier: Apache-2.0
"""Runs Python programs as forks of one process that has imported torch, which saves each of them 2 s.

Reads requests from standard input: one line of JSON with the `command`, a Python file and its arguments; the
`environments` and `outputs` of its processes; and `seconds`, the time they have. Prints a line of JSON with their exit
codes; null means that a process did not end in time and was killed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import lockstep  # noqa: F401


def _become(command: list[str], environment: dict[str, str], output: str) -> None:
    """Makes this fork look like a new interpreter that runs the command, with its output in a file."""
    for number, path in ((0, os.devnull), (1, output)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    # Programs may import the helpers of the tests, which are in this folder.
    sys.path[:1] = [str(Path(command[0]).parent), str(Path(__file__).parent)]
    main = types.ModuleType("__main__")
    main.__file__ = command[0]
    sys.modules["__main__"] = main


def _wait(processes: list[int], seconds: float) -> list[int | None]:
    """Returns the exit codes: minus the signal's number if one ended the process."""
    codes: dict[int, int | None] = {}
    end = time.monotonic() + seconds
    for process in processes:
        ended, status = os.waitpid(process, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.005)
            ended, status = os.waitpid(process, os.WNOHANG)
        codes[process] = os.waitstatus_to_exitcode(status) if ended else None
    for process in [process for process, code in codes.items() if code is None]:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return list(codes.values())


def _serve() -> str | None:
    """Returns the path of the script in a fork, and None when the requests end."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        processes = []
        for environment, output in zip(request["environments"], request["outputs"], strict=True):
            processes.append(os.fork())
            if processes[-1] == 0:
                _become(request["command"], environment, output)
                return request["command"][0]
        print(json.dumps(_wait(processes, request["seconds"])), flush=True)
    return None


gc.freeze()  # Else each fork visits, and so copies, the modules when it ends, which takes 0.6 s.
if _script := _serve():
    exec(compile(Path(_script).read_bytes(), _script, "exec"), sys.modules["__main__"].__dict__)
