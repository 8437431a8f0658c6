# SPDX-License-Identifier: Apache-2.0
"""Programs that import transformers, peft and TRL have the same results with Lockstep as with the real packages.

The programs of clients/ run unmodified: once with the real Accelerate and DeepSpeed, whose processes Gloo connects, and
once with `lockstep launch --alias`. Losses, gradient norms, learning rates, metrics, numbers of steps and names of files
are compared. Starting a program costs seconds, so each runs many cases in the same processes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch import binary, package_folder

CLIENTS = Path(__file__).resolve().parent / "clients"
# A Python with the packages: `./dev test` sets build/clients, which scripts/bootstrap makes.
PYTHON = os.environ.get("LOCKSTEP_CLIENTS_PYTHON", sys.executable)
DEADLINE_SECONDS = 400
ZERO = ("zero_1", "zero_2", "zero_3", "resume_2", "resume_own_3")
OF_FILE = ("file_1", "file_3", "resume_3")  # DeepSpeed's schedules begin one step later than the Trainer's.
LORA = ("lora_1", "lora_2", "lora_3")
DENSE = ("llama", "tied", "qwen3", "phi3")  # Models of mesh_client without experts.
FSDP = ("fsdp", "resume_fsdp", "resume_fsdp_sharded")


@functools.cache
def has_packages() -> bool:
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('trl', 'peft', 'deepspeed', 'sentence_transformers'))))"
    return subprocess.run([PYTHON, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode == 0


def results_of(client: str, processes: int, real: bool, cases: tuple[str, ...] = (), **variables: str) -> Any:
    """Runs a client and returns what each process wrote for each case."""
    if not has_packages():
        pytest.skip("no transformers, TRL and DeepSpeed; set LOCKSTEP_CLIENTS_PYTHON to a Python with them")
    with tempfile.TemporaryDirectory() as folder:
        program = [str(CLIENTS / f"{client}.py"), folder, *cases]
        environment = {
            **{name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ},
            "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "DS_ACCELERATOR": "cpu",
            **variables,
        }
        if real:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
            alone = processes == 1 and client != "sharded_client"  # DeepSpeed expects a launcher.
            command = [PYTHON, *([] if alone else torchrun), *program]
        else:
            environment |= {"PYTHONPATH": str(package_folder()), "LOCKSTEP_USE_CPU": "1"}
            command = [PYTHON, "-m", "lockstep.alias", *program]
            if processes > 1:
                command = [binary(), "launch", "-n", str(processes), "--alias", *program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
        output = done.stdout[-3000:] + done.stderr[-6000:]
        assert done.returncode == 0, f"{client} exited with {done.returncode}:\n{output}"
        return [json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in range(processes)]


def differences(expected: Any, got: Any, where: str = "") -> Iterator[str]:
    """Yields the places where results differ by more than the rounding of another order of additions."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted({*expected, *got}):
            yield from differences(expected.get(key), got.get(key), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, (int, float)) and isinstance(got, (int, float)):
        if not math.isclose(expected, got, rel_tol=2e-4, abs_tol=2e-6):
            yield f"{where}: {expected!r} in the real package, {got!r} with Lockstep"
    elif expected != got:
        yield f"{where}: {expected!r} in the real package, {got!r} with Lockstep"


def compare(real: Any, own: Any) -> None:
    for rank, (expected, got) in enumerate(zip(real, own, strict=True)):
        for case, value in expected.items():
            assert "error" not in value, f"{case} fails with the real package:\n{value['error']}"
            error = got.get(case, {"error": "the case did not run"}).get("error")
            assert error is None, f"{case} fails with Lockstep:\n{error}"
            found = list(differences(value, got[case], f"rank {rank}, {case}"))
            assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("processes", [1, 2])
def test_transformers_trainer(processes: int) -> None:
    real = results_of("trainer_client", processes, real=True)
    compare(real, results_of("trainer_client", processes, real=False))


def test_trainer_with_deepspeed_has_deepspeeds_numbers() -> None:
    cases = (*ZERO, *OF_FILE, *LORA)
    real = results_of("sharded_client", 1, real=True, cases=cases)
    compare(real, results_of("sharded_client", 1, real=False, cases=cases))


def test_trainer_with_deepspeed_and_fsdp_on_two_processes_has_the_numbers_without() -> None:
    """The real packages do not shard on CPUs: transformers then takes several processes for one."""
    cases = (*ZERO, *LORA, *FSDP)
    real = results_of("sharded_client", 2, real=True, cases=cases, CLIENT_UNSHARDED="1")
    own = results_of("sharded_client", 2, real=False, cases=cases)
    compare(real, own)


@pytest.mark.parametrize("processes", [1, 2])
def test_peft_and_trl(processes: int) -> None:
    real = results_of("trl_client", processes, real=True)
    compare(real, results_of("trl_client", processes, real=False))


def test_deepspeeds_tutorial_for_long_sequences_trains_as_one_process() -> None:
    alone = results_of("ulysses_client", 1, real=False)
    compare(alone * 2, results_of("ulysses_client", 2, real=False))


def test_transformers_models_train_on_each_mesh_of_two_processes_as_in_one() -> None:
    divided = {mesh: DENSE for mesh in ("sp", "sp loader")} | {"ep": ("mixtral",)}
    divided |= {mesh: (*DENSE, "trainer") for mesh in ("tp", "file", "cp")}
    cases = {f"{name} {mesh}": f"{name} dp" for mesh, names in divided.items() for name in names}
    mesh_ranks = results_of("mesh_client", 2, real=False, cases=(*cases, "balanced dp", "balanced ep"))
    [alone] = results_of("mesh_client", 1, real=False, cases=tuple(sorted(set(cases.values()))))
    for rank in mesh_ranks:
        compare([{case: alone[expected] for case, expected in cases.items()}], [rank])
        # A loss for the balance of experts is of each process's samples, so one process has another one.
        compare([{"balanced ep": rank["balanced dp"]}], [rank])
    # Two lines of two processes.
    tensor_and_data = results_of("mesh_client", 4, real=False, cases=("llama tp", "tied tp"))
    compare([{"llama tp": alone["llama dp"], "tied tp": alone["tied dp"]}] * 4, tensor_and_data)
