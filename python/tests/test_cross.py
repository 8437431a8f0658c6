# SPDX-License-Identifier: Apache-2.0
"""C++ and Python programs of the same loop: equal losses, shared checkpoints, one job of both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch import binary, build_folder, package_folder, run_ranks

LOOP = Path(__file__).with_name("cross_loop.py")
PROGRAMS = {
    "cpp": [str(build_folder() / "test" / "cross_loop")],
    "python": [sys.executable, str(LOOP)],
}


def losses(language: str, folder: Path, first: int, last: int, ranks: int) -> dict[int, list[float]]:
    """Runs the loop from one update to another. Returns each process's losses."""
    program = [*PROGRAMS[language], str(folder), str(first), str(last)]
    command = [str(binary()), "launch", "-n", str(ranks), "--quiet", *program]
    environment = os.environ | {"PYTHONPATH": str(package_folder()), "LOCKSTEP_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    of_ranks: dict[int, list[float]] = {rank: [] for rank in range(ranks)}
    for line in result.stdout.splitlines():
        words = line.removeprefix("[").replace("]", "").split()[-2:]
        of_ranks[int(words[0])].append(float.fromhex(words[1]))
    return of_ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_of_python_equal_those_of_cpp_bit_for_bit(tmp_path: Path, ranks: int) -> None:
    cpp = losses("cpp", tmp_path / "cpp", 0, 20, ranks)
    assert len(cpp[0]) == 40
    assert losses("python", tmp_path / "python", 0, 20, ranks) == cpp


@pytest.mark.parametrize("first,second", [("cpp", "python"), ("python", "cpp")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_of_one_language_continues_in_the_other(
    tmp_path: Path, first: str, second: str, ranks: int
) -> None:
    unbroken = losses("cpp", tmp_path / "unbroken", 0, 20, ranks)
    began = losses(first, tmp_path / "broken", 0, 9, ranks)
    continued = losses(second, tmp_path / "broken", 9, 20, ranks)
    assert {rank: began[rank] + continued[rank] for rank in began} == unbroken


def test_a_cpp_and_a_python_process_train_in_one_job(tmp_path: Path) -> None:
    cpp, python = PROGRAMS["cpp"], PROGRAMS["python"]
    choose = f'if [ "$RANK" = 0 ]; then exec {" ".join(cpp)} "$@"; else exec {" ".join(python)} "$@"; fi'
    PROGRAMS["both"] = ["bash", "-c", choose, "choose"]
    both = losses("both", tmp_path / "both", 0, 20, 2)
    assert both == losses("cpp", tmp_path / "cpp", 0, 20, 2)


@pytest.mark.parametrize("first", ["torch", "lockstep"])
def test_torch_distributed_may_be_initialised_beside_lockstep(first: str) -> None:
    initialise = 'torch.distributed.init_process_group("gloo")\n'
    accelerate = "accelerator = Accelerator()\n"
    end = "torch.distributed.destroy_process_group()\n"  # The Accelerator has initialised it over its own connection.
    program = "import torch\nfrom lockstep import Accelerator\n" + (
        initialise + accelerate if first == "torch" else accelerate + end + initialise
    )
    program += """
value = torch.ones(1) * (accelerator.process_index + 1)
torch.distributed.all_reduce(value)
print(value.item(), accelerator.reduce(torch.ones(1)).item())
torch.distributed.destroy_process_group()
"""
    assert [output.splitlines()[-1] for output in run_ranks(program, 2)] == ["3.0 2.0"] * 2
