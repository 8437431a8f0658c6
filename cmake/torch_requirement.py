# SPDX-License-Identifier: Apache-2.0
"""Tells which torch a wheel needs: the minor version that Lockstep is compiled with.

scikit-build-core calls dynamic_metadata() for the wheel's dependencies (see pyproject.toml). CMake runs this file as
a program, which prints the minor version, to check that it compiles with the same torch.
"""
import importlib.metadata
import os
import re
import sys
from pathlib import Path


def torch_version():
    """Returns the version of the torch in the environment variable Torch_DIR, else of this Python's torch."""
    folder = os.environ.get("Torch_DIR")
    if not folder:
        try:
            return importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            sys.exit(
                f"[lockstep] torch is not installed in {sys.prefix}; expected it for building the wheel; "
                "run pip install torch, or set Torch_DIR to the folder of a TorchConfig.cmake"
            )
    file = Path(folder) / "TorchConfigVersion.cmake"
    found = file.is_file() and re.search(r'PACKAGE_VERSION "([^"]+)"', file.read_text(encoding="utf-8"))
    if not found:
        sys.exit(
            f"[lockstep] Torch_DIR is not a torch folder; got '{folder}', expected a folder with "
            "TorchConfigVersion.cmake (usually .../torch/share/cmake/Torch); unset it to use this Python's torch"
        )
    return found[1]


def torch_series():
    """Returns the minor version, such as 2.13."""
    return ".".join(torch_version().split(".")[:2])


def dynamic_metadata(_settings, _project):
    return {"dependencies": [f"torch=={torch_series()}.*", "numpy", "safetensors"]}


if __name__ == "__main__":
    print(torch_series())
