# SPDX-License-Identifier: Apache-2.0
"""Tells which torch a wheel needs: the minor versions that Lockstep is compiled with.

scikit-build-core calls dynamic_metadata() for the wheel's dependencies (see pyproject.toml). CMake runs this file as
a program, which prints the minor versions, to check that it compiles with the same torch.
"""
import importlib.metadata
import os
import re
import sys
from pathlib import Path


def torch_versions():
    """Returns the versions of torch in the folders of the environment variable Torch_DIR, else that of this Python's torch."""
    folders = os.environ.get("Torch_DIR")
    if not folders:
        try:
            return [importlib.metadata.version("torch")]
        except importlib.metadata.PackageNotFoundError:
            sys.exit(
                f"[lockstep] torch is not installed in {sys.prefix}; expected it for building the wheel; "
                "run pip install torch, or set Torch_DIR to the folder of a TorchConfig.cmake"
            )
    return [version_in(folder) for folder in folders.split(";")]


def version_in(folder):
    file = Path(folder) / "TorchConfigVersion.cmake"
    found = file.is_file() and re.search(r'PACKAGE_VERSION "([^"]+)"', file.read_text(encoding="utf-8"))
    if not found:
        sys.exit(
            f"[lockstep] Torch_DIR is not a torch folder; got '{folder}', expected a folder with "
            "TorchConfigVersion.cmake (usually .../torch/share/cmake/Torch); unset it to use this Python's torch"
        )
    return found[1]


def torch_series():
    """Returns the minor versions, such as (2, 13), in the order of Torch_DIR."""
    return [tuple(map(int, version.split(".")[:2])) for version in torch_versions()]


def requirement(series):
    """Returns pip's requirement of exactly these minor versions, such as torch>=2.11,<2.14."""
    if len(series) == 1:
        return "torch=={}.{}.*".format(*series[0])
    (major, first), (last_major, last) = min(series), max(series)
    if major != last_major:
        sys.exit(f"[lockstep] Torch_DIR has torch {major} and torch {last_major}; expected one major version")
    gaps = "".join(f",!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in series)
    return f"torch>={major}.{first},<{major}.{last + 1}{gaps}"


def dynamic_metadata(_settings, _project):
    return {"dependencies": [requirement(torch_series()), "numpy", "safetensors"]}


if __name__ == "__main__":
    print(";".join("{}.{}".format(*series) for series in torch_series()))
