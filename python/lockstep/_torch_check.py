# SPDX-License-Identifier: Apache-2.0
"""The check of torch's version before the C++ module is loaded, which with another torch would lack symbols."""

from __future__ import annotations

from pathlib import Path

import torch


def check_torch(version: str) -> None:
    """Throws ImportError unless this build of the package is for this version of torch."""
    series = Path(__file__).with_name("torch_series.txt").read_text(encoding="utf-8").strip()
    if not version.startswith(series + "."):
        raise ImportError(
            f"[lockstep] this build needs torch {series}; got torch {version}; run `pip install 'torch=={series}.*'`, "
            f"or install a lockstep-train that was built for torch {'.'.join(version.split('.')[:2])}"
        )


check_torch(torch.__version__)
