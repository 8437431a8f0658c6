# SPDX-License-Identifier: Apache-2.0
"""The version of the installed package, and the folder of its files for CMake."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from . import _core

__version__ = _core.__version__
cmake_prefix_path: str | None = None

try:
    _installed = metadata.distribution("lockstep-train")
except metadata.PackageNotFoundError:  # In a build folder of the source tree.
    pass
else:
    __version__ = _installed.version
    # The folder of lib/cmake/lockstep; pip may install it elsewhere than in sys.prefix, with --user for example. Those in
    # lib/lockstep/torch-2.13 and so on are for one torch each.
    cmake_prefix_path = next(
        (
            str(Path(file.locate()).resolve().parents[3])
            for file in _installed.files or ()
            if file.name == "lockstepConfig.cmake" and not any(part.startswith("torch-") for part in file.parts)
        ),
        None,
    )
