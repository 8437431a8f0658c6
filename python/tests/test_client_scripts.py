# SPDX-License-Identifier: Apache-2.0
"""Training programs of other projects, unmodified, have the results with Lockstep that real Accelerate gives.

Neither the wheels nor the source distributions of transformers and diffusers have their example scripts: set
LOCKSTEP_TRANSFORMERS_SOURCES and LOCKSTEP_DIFFUSERS_SOURCES to folders with the two repositories, and
LOCKSTEP_CLIENTS_PYTHON to a Python that also has diffusers, evaluate, ftfy, tensorboard and torchvision. None of their
code is part of Lockstep. Their last accumulation group is incomplete.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_clients import CLIENTS, PYTHON, compare, results_of

TRANSFORMERS = os.environ.get("LOCKSTEP_TRANSFORMERS_SOURCES", "")
DIFFUSERS = os.environ.get("LOCKSTEP_DIFFUSERS_SOURCES", "")


@pytest.mark.parametrize("processes", [1, 2])
def test_sentence_transformers(processes: int) -> None:
    # With two processes real Accelerate fails for a CrossEncoder, whose forward DDP sees twice.
    cases = ("contrastive", "datasets_in_turn", "cross_encoder")[: 3 if processes == 1 else 2]
    real = results_of("sentence_client", processes, real=True, cases=cases)
    compare(real, results_of("sentence_client", processes, real=False, cases=cases))


@pytest.mark.parametrize("processes", [1, 2])
def test_loops_over_diffusers(processes: int) -> None:
    real = results_of("diffusers_client", processes, real=True, ACCELERATE_USE_CPU="true")
    compare(real, results_of("diffusers_client", processes, real=False))


@pytest.fixture(scope="module")
def data(tmp_path_factory: Any) -> Path:
    """Tiny models, texts, images and metrics for the scripts."""
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([PYTHON, str(CLIENTS / "script_data.py"), str(folder)], check=True)
    return Path(folder)


def compare_script(name: str, data: Path) -> None:
    variables = {
        "SCRIPT_TRANSFORMERS": str(Path(TRANSFORMERS) / "examples" / "pytorch"),
        "SCRIPT_DIFFUSERS": str(Path(DIFFUSERS) / "examples"),
        "SCRIPT_DATA": str(data),
        "ACCELERATE_USE_CPU": "true",
    }
    for processes in (1, 2):
        real = results_of("script_client", processes, real=True, cases=(name,), **variables)
        compare(real, results_of("script_client", processes, real=False, cases=(name,), **variables))


@pytest.mark.skipif(not TRANSFORMERS, reason="LOCKSTEP_TRANSFORMERS_SOURCES is not set")
@pytest.mark.parametrize("name", ["glue", "token_classification"])
def test_transformers_scripts(name: str, data: Path) -> None:
    compare_script(name, data)


@pytest.mark.skipif(not DIFFUSERS, reason="LOCKSTEP_DIFFUSERS_SOURCES is not set")
@pytest.mark.parametrize("name", ["text_to_image", "text_to_image_lora", "dreambooth", "unconditional"])
def test_diffusers_scripts(name: str, data: Path) -> None:
    compare_script(name, data)
