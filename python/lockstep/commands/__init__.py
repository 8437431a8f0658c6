# SPDX-License-Identifier: Apache-2.0
"""The command line. It is the native program `lockstep`, which this process becomes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .._binary import find_binary
from .._core import ConfigError

__all__ = ["main"]


def main() -> NoReturn:
    """Executes the native program with this process's arguments. Exits with 2 if it is missing.

    `launch` runs scripts with this interpreter, unless LOCKSTEP_PYTHON names another one. `test` checks its package.
    """
    try:
        binary = find_binary()
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("LOCKSTEP_PYTHON", sys.executable)
    arguments = sys.argv[1:]
    if arguments[:1] == ["test"] and "--python" not in arguments:
        arguments.append("--python")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, [binary, *arguments])
