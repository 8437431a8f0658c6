# SPDX-License-Identifier: Apache-2.0
"""Questions about the installed torch."""

from __future__ import annotations

import re

import torch

__all__ = ["required_torch_version"]


def required_torch_version(min_version: float | str | None = None, max_version: float | str | None = None) -> bool:
    """Returns whether torch's version is within the given ones."""
    own = _numbers(torch.__version__)
    return (min_version is None or _numbers(str(min_version)) <= own) and (
        max_version is None or own <= _numbers(str(max_version))
    )


def _numbers(version: str) -> list[int]:
    """Returns [2, 13] of "2.13.0+cpu"; zeros at the end do not count."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
