# SPDX-License-Identifier: Apache-2.0
"""Chooses the C++ module for the installed torch and this Python, before the module is imported.

libtorch has no stable C++ interface, so each minor version of torch needs a module of its own. A wheel contains modules
for several minor versions, in the folders torch-2.13 and so on; a build has one.
"""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

import torch


def module_folder(torch_version: str, package: Path, suffix: str = importlib.machinery.EXTENSION_SUFFIXES[0]) -> Path:
    """Returns the package's folder with the module for this version of torch.

    Throws ImportError if there is none, or if its file name does not end in `suffix`, as those for this Python do.
    """
    minor = ".".join(torch_version.split(".")[:2])
    folder = package / f"torch-{minor}"
    if not folder.is_dir():
        known = sorted((path.name.removeprefix("torch-") for path in package.glob("torch-*")), key=_numbers)
        newest = known[-1] if known else ""
        raise ImportError(
            f"[lockstep] this build needs torch {' or '.join(known)}; got torch {torch_version}; run "
            f"`pip install 'torch=={newest}.*'`, or install a lockstep-train that was built for torch {minor}"
        )
    if not (folder / f"_core{suffix}").is_file():
        others = " or ".join(sorted(path.name.split(".")[1] for path in folder.glob("_core.*.so")))
        raise ImportError(
            f"[lockstep] this build is for another Python ({others}); got {sys.executable} ({suffix.split('.')[1]}); run "
            "`python -m pip install --force-reinstall --no-deps lockstep-train` with this Python"
        )
    return folder


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


_package = sys.modules[__package__]
_package.__path__.insert(0, str(module_folder(torch.__version__, Path(__file__).parent)))
