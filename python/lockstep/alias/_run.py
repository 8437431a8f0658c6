# SPDX-License-Identifier: Apache-2.0
"""Runs a script, a module or a text as `python` does."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from ._finder import PACKAGES

__all__ = ["main"]

_USAGE = """usage: python -m lockstep.alias SCRIPT [ARGS...]
       python -m lockstep.alias -m MODULE [ARGS...]
       python -m lockstep.alias -c TEXT [ARGS...]

Runs a Python program in which accelerate and deepspeed mean Lockstep, whether they are installed or not."""


def main() -> None:
    """Runs the program that this process's arguments name. Python processes that it starts have the aliases, too."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return
    kind = arguments.pop(0) if arguments and arguments[0] in ("-m", "-c") else ""
    if not arguments or (not kind and arguments[0].startswith("-")):
        _refuse(f"the program is missing; expected a script, -m MODULE or -c TEXT\n{_USAGE}")
    _export()
    program = arguments[0]
    sys.argv = [kind, *arguments[1:]] if kind else arguments
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        _run_script(program)


def _export() -> None:
    """Adds the packages to PYTHONPATH, for processes that this one starts."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([str(PACKAGES), *paths])))


def _run_script(script: str) -> None:
    if not os.access(script, os.R_OK):
        _refuse(f"cannot read {script!r}; expected the file of a Python program")
    if not getattr(sys.flags, "safe_path", False):  # Since Python 3.11; the first path is then not the current folder.
        sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _refuse(what: str) -> NoReturn:
    print(f"[lockstep.alias] {what}", file=sys.stderr)
    sys.exit(2)
