# SPDX-License-Identifier: Apache-2.0
"""Runs files of another project's unit tests with Lockstep in place of that project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch import package_folder

_TESTS = Path(__file__).resolve().parent


@dataclass
class Outcome:
    """The tests of one file."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    output: str = ""  # The end of what pytest printed about all files of the process.


def run_files(
    files: Mapping[str, Iterable[str]],
    plugin: str,
    at: Path,
    seconds: float,
    *options: str,
    python: str = sys.executable,
    **variables: str,
) -> dict[str, Outcome]:
    """Runs files of tests in one process of pytest. Returns the outcome of each.

    `files`: for each file, relative to the folder `at`, expressions of the names of tests that are not run.
    `plugin`: a module of this folder that edits the tests. `options`: those of pytest. A file that cannot be imported
    has a failed test.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(python, "-m", "pytest", "-q", "-W", "ignore", "-p", plugin, "-p", "no:cacheprovider", *options),
                *(f"--rootdir={at}", "--override-ini=addopts=", "--continue-on-collection-errors"),
                *("--override-ini=junit_family=xunit1", f"--junitxml={report}", *files),
            ],
            cwd=at,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(package_folder()), str(_TESTS)]),
                "CUDA_VISIBLE_DEVICES": "",  # The numbers of passed tests are those on CPUs.
                "LOCKSTEP_TESTS_NOT_RUN": json.dumps({file: list(names) for file, names in files.items()}),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.is_file() else []
    output = f"{plugin}: exit code {done.returncode}\n{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    outcomes = {file: Outcome(output=output) for file in files}
    for case in cases:
        # A file that cannot be imported is a case without a file, whose name is that of the module.
        file = case.get("file") or f"{case.get('name', '').replace('.', '/')}.py"
        parts = {part.tag for part in case}
        if parts & {"failure", "error"}:
            outcomes[file].failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif not parts:
            outcomes[file].passed += 1
    return outcomes
