# SPDX-License-Identifier: Apache-2.0
"""Runs examples with Lockstep or with the real Accelerate, which `launch` decides.

The examples are those of examples/python, which use only calls of Accelerate. With the variable ACCELERATE_EXAMPLES,
Accelerate's own nlp_example.py and cv_example.py in that folder are run, too, as they are; stand_ins/ has the packages
that they need, with data and models of the right form. They are not part of this repository.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden" / "accelerate_examples.json"
PROCESSES = (1, 2)
_OWN = TESTS.parents[1] / "examples" / "python"
_NAMES = ("nlp_example.py", "cv_example.py")


def programs() -> dict[str, Path]:
    """Returns the programs by their keys in the golden file."""
    found = {f"examples/python/{name}": _OWN / name for name in _NAMES}
    folder = os.environ.get("ACCELERATE_EXAMPLES")
    if folder:
        found |= {f"accelerate/examples/{name}": Path(folder) / name for name in _NAMES}
    return found


def results_of(
    program: Path, folder: Path, launch: Callable[[list[str]], list[str]], variables: dict[str, str]
) -> list[str]:
    """Runs a program that imports accelerate, and returns the lines with its results.

    `launch` returns the command that starts a script with its options as processes, with Accelerate or Lockstep.
    """
    is_own = program.parent == _OWN
    script = folder / program.name
    text = program.read_text(encoding="utf-8")
    script.write_text(re.sub(r"^from lockstep\b", "from accelerate", text, flags=re.M), encoding="utf-8")
    options = _options(program, folder)
    paths = [str(_OWN if is_own else TESTS / "stand_ins"), variables.get("PYTHONPATH", "")]
    done = subprocess.run(
        launch([str(script), "--cpu", *options]),
        env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if line.startswith("epoch ")]


def _options(program: Path, folder: Path) -> list[str]:
    is_nlp = program.name == "nlp_example.py"
    if program.parent == _OWN:
        return ["--num_epochs", "2"] if is_nlp else ["--output_dir", str(folder)]
    return [] if is_nlp else ["--data_dir", str(_pictures(folder / "pictures"))]


def _pictures(folder: Path) -> Path:
    """Makes pictures of three kinds, which differ in their colours, under the names that cv_example.py expects."""
    from PIL import Image

    folder.mkdir()
    source = random.Random(0)
    for kind, name in enumerate(("red_cat", "green_dog", "blue_bird")):
        for number in range(60):
            levels = [source.randrange(256) for _ in range(3 * 48 * 48)]
            levels[kind::3] = [min(255, level + 5) for level in levels[kind::3]]
            Image.frombytes("RGB", (48, 48), bytes(levels)).save(folder / f"{name}_{number}.jpg")
    return folder
