# SPDX-License-Identifier: Apache-2.0
"""Comparison of the versions of packages."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from torch.torch_version import TorchVersion

from .constants import STR_OPERATION_TO_FUNC

__all__ = ["compare_versions", "is_torch_version"]


def compare_versions(library_or_version: Any, operation: str, requirement_version: str) -> bool:
    """Returns whether `library_or_version operation requirement_version` is true.

    `library_or_version` is the name of an installed package, or a version object such as packaging's. `operation` is
    one of > >= == != <= <. Throws ValueError for another operation and PackageNotFoundError for a missing package.
    """
    if operation not in STR_OPERATION_TO_FUNC:
        raise ValueError(f"operation {operation!r} is unknown; expected one of {list(STR_OPERATION_TO_FUNC)}")
    version = library_or_version
    if isinstance(version, str) and not isinstance(version, TorchVersion):
        version = importlib.metadata.version(version)
    return STR_OPERATION_TO_FUNC[operation](TorchVersion(str(version)), TorchVersion(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Returns whether `torch.__version__ operation version` is true."""
    return compare_versions(TorchVersion(torch.__version__), operation, version)
