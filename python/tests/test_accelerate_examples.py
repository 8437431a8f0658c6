# SPDX-License-Identifier: Apache-2.0
"""Examples print the same results with Lockstep as with the real Accelerate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from accelerate_examples import GOLDEN, PROCESSES, programs, results_of
from launch import binary, package_folder

PROGRAMS = programs()
GOLDENS = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("key", PROGRAMS)
def test_output_equals_that_with_accelerate(key: str, processes: int, tmp_path: Path) -> None:
    printed = results_of(
        PROGRAMS[key],
        tmp_path,
        lambda script: [str(binary()), "launch", "-n", str(processes), "--alias", *script],
        {"PYTHONPATH": str(package_folder()), "LOCKSTEP_PYTHON": sys.executable, "LOCKSTEP_USE_CPU": "true"},
    )
    assert printed == GOLDENS[key][str(processes)]
