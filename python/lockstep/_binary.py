# SPDX-License-Identifier: Apache-2.0
"""The native program `lockstep` of this installation."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from ._core import ConfigError

__all__ = ["find_binary"]


def find_binary() -> str:
    """Returns the path of the program: LOCKSTEP_BINARY, else that of the installation, else that of the build.

    The package of a build, build/<preset>/python, uses build/<preset>/bin. Throws ConfigError if there is none.
    """
    chosen = os.environ.get("LOCKSTEP_BINARY")
    if chosen is not None:
        if not _is_program(Path(chosen)):
            raise ConfigError(f"[lockstep] LOCKSTEP_BINARY is {chosen!r}; expected the path of the program lockstep")
        return chosen
    candidates = _candidates()
    for candidate in candidates:
        if _is_program(candidate):
            return str(candidate)
    places = ", ".join(str(candidate) for candidate in candidates)
    raise ConfigError(
        f"[lockstep] the program lockstep is missing; expected one of {places}; run `pip install lockstep-train`, or "
        "set LOCKSTEP_BINARY to its path"
    )


def _candidates() -> list[Path]:
    package = Path(__file__).parent  # A build's files are links: the folder is that of the build.
    user_scheme = sysconfig.get_preferred_scheme("user")
    places = [
        package.parents[1] / "bin",
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("scripts", user_scheme)),
        Path(sys.prefix) / "bin",
        # `pip install --prefix` or `--target`: the folder above lib/python3.x/site-packages.
        *(parent / "bin" for parent in package.parents[2:5]),
    ]
    return list(dict.fromkeys(place / "lockstep" for place in places))


def _is_program(path: Path) -> bool:
    """Returns whether the file is a native executable, not a Python script of that name."""
    if not (path.is_file() and os.access(path, os.X_OK)):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
