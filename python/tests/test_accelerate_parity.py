# SPDX-License-Identifier: Apache-2.0
"""The programs of accelerate_cases.py give the same results with Lockstep as with the real Accelerate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate_cases import CASES, NEED_TWO
from launch import binary, package_folder

TESTS = Path(__file__).resolve().parent
PROCESSES = (1, 2)
TOLERANCE = 1e-5  # Of floating-point numbers, absolute and relative.
LOOSE = {"train_bf16": 1e-2}  # 16-bit numbers have 3 digits.


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Runs all cases with Lockstep, once for each number of processes. Returns the results by rank."""
    return {processes: _run(processes, tmp_path_factory.mktemp("cases")) for processes in PROCESSES}


def _run(processes: int, folder: Path) -> list[dict[str, Any]]:
    output = folder / "cases"
    done = subprocess.run(
        [
            *(str(binary()), "launch", "-n", str(processes), sys.executable),
            *(str(TESTS / "accelerate_cases.py"), "lockstep", str(output)),
        ],
        env=os.environ | {"PYTHONPATH": str(package_folder()), "OMP_NUM_THREADS": "1", "LOCKSTEP_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads(Path(f"{output}.{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]
    failed = [name for name, result in ranks[0].items() if isinstance(result, dict) and "raises" in result]
    assert not failed, f"{failed} raise:\n{done.stderr}"
    return ranks


@pytest.fixture(scope="module")
def goldens() -> dict[int, dict[str, list[Any]]]:
    return {
        processes: json.loads((TESTS / "golden" / f"accelerate_cases_{processes}.json").read_text(encoding="utf-8"))
        for processes in PROCESSES
    }


def _difference(ours: Any, theirs: Any, tolerance: float, where: str = "") -> str | None:
    """Returns the first difference of two nested values, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs = [(str(key), ours[key], theirs[key]) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(ours, theirs))]
    elif isinstance(ours, float) and isinstance(theirs, float):
        equal = ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
        return None if equal else f"{where}: {ours} is not {theirs}"
    else:
        return None if ours == theirs else f"{where}: {ours} is not {theirs}"
    return next(filter(None, (_difference(a, b, tolerance, f"{where}/{name}") for name, a, b in pairs)), None)


@pytest.mark.parametrize(
    ("name", "processes"),
    [(name, count) for count in PROCESSES for name in CASES if count > 1 or name not in NEED_TWO],
)
def test_results_equal_those_of_accelerate(
    name: str, processes: int, results: dict[int, list[dict[str, Any]]], goldens: dict[int, dict[str, list[Any]]]
) -> None:
    tolerance = LOOSE.get(name, TOLERANCE)
    for rank in range(processes):
        difference = _difference(results[processes][rank][name], goldens[processes][name][rank], tolerance)
        assert difference is None, f"process {rank} of {processes}{difference}"
