# SPDX-License-Identifier: Apache-2.0
"""Accelerate's own unit tests pass when their imports mean Lockstep.

The tests are those of the source distribution of accelerate 1.15.0, which scripts/bootstrap unpacks into build/accelerate.
None of its code is part of Lockstep. LOCKSTEP_CLIENTS_PYTHON has the packages that they import. On two CPUs Accelerate
passes 245 of these tests, Lockstep 169. The tables below name each test that is not run, with a reason.
accelerate_unit_plugin.py makes the imports mean Lockstep.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from others_tests import Outcome, run_files

FOLDER = Path(__file__).resolve().parents[2] / "build" / "accelerate"
TESTS = FOLDER / "tests"
# A Python with the packages: `./dev test` sets build/clients, which scripts/bootstrap makes.
PYTHON = os.environ.get("LOCKSTEP_CLIENTS_PYTHON", sys.executable)
DEADLINE_SECONDS = 1200

PRIVATE = "it uses names of Accelerate that are private"
TEXT = "it expects Accelerate's text of the message; Lockstep's is another"
PICKLE = "it writes or reads pickled weights, which Lockstep refuses"
OFFLOAD = "it spreads a model over devices or offloads it during inference, which Lockstep refuses"
TORCH_FILE = "it reads weights from a pickled file, which Lockstep refuses"
MESHES = "Lockstep has no tensor, context or sequence parallelism"
MACHINE = "it measures the machine's free memory, which other programs change"
GPU = "it needs a GPU"
LAUNCHER = "its subject is Accelerate's launcher; `lockstep launch` has tests of its own"


@dataclass(frozen=True)
class Run:
    """A file of which all tests run but those whose names match an expression of `not_run`."""

    passed: int
    not_run: dict[str, str] = field(default_factory=dict)


RUN = {
    "test_accelerator.py": Run(
        19,
        {
            "test_free_memory_dereferences_prepared_components": MACHINE,
            "test_save_(load_|sharded_)?model(_with_hooks)?_use_pytorch$": PICKLE,
            "test_save_model_offload": OFFLOAD,
        },
    ),
    "test_big_modeling.py": Run(
        2,
        {
            "test_cpu_offload$|test_cpu_offload_with_unused|test_disk_offload$|test_disk_offload_with_unused": OFFLOAD,
            "test_dispatch_model_disk_only": OFFLOAD,
            "test_load_checkpoint_and_dispatch_device_map_none": TORCH_FILE,
            "linear_attention|full_attention|models_without_layer_types": MESHES,
        },
    ),
    "test_compile.py": Run(2),
    "test_cpu.py": Run(2),
    "test_data_loader.py": Run(25),
    "test_dataclasses.py": Run(
        10,
        {
            r"test_(get_mesh|build_device_mesh|from_env)\[(?!(8-1|1-8|2-4)-1-1)": MESHES,
            "test_cp_torch_handler|test_sp_deepspeed_handler": MESHES,
        },
    ),
    "test_grad_sync.py": Run(2),
    "test_hooks.py": Run(9, {"as_cpu_offload": OFFLOAD}),
    "test_kwargs_handlers.py": Run(2),
    "test_logging.py": Run(2),
    "test_memory_utils.py": Run(6),
    "test_modeling_utils.py": Run(
        17,
        {
            "test_align_module_device_offloaded": OFFLOAD,
            "test_get_balanced_memory|test_get_state_dict_offloaded|test_infer_auto_device_map": OFFLOAD,
            "test_load_checkpoint_in_model$|test_load_checkpoint_in_model_unexpected_keys": TORCH_FILE,
            "test_load_checkpoint_in_model_dtype": OFFLOAD,
            "test_set_module_tensor_checks_shape": TEXT,
        },
    ),
    "test_optimizer.py": Run(1),
    "test_scheduler.py": Run(7, {"test_lambda_scheduler_steps_with_optimizer": PRIVATE}),
    "test_state_checkpointing.py": Run(
        9,
        {
            "use_pytorch::.*(_loading|_resume_training|_deletion|_save_limit|_with_scheduler)": PICKLE,
        },
    ),
    "test_tracking.py": Run(12, {"TensorBoardTrackingTest::test_project_dir$": TEXT}),
    "test_utils.py": Run(
        42,
        {
            "test_has_offloaded_params": OFFLOAD,
            "test_honor_type|test_save_safetensor_shared_memory": TEXT,
        },
    ),
}

# Files that are not run at all.
NOT_RUN = {
    "test_activation_checkpointing_offload.py": GPU,
    "test_cli.py": LAUNCHER,
    "test_examples.py": "test_accelerate_examples.py runs the examples",
    "test_fp8.py": "Lockstep has no fp8",
    "test_imports.py": "it measures Accelerate's import; test_imports.py has Lockstep's",
    "test_launch.py": LAUNCHER,
    "test_load_checkpoint_and_dispatch_with_broadcast.py": GPU,
    "test_metrics.py": "test_accelerate_scripts.py runs its script",
    "test_multidevice.py": GPU,
    "test_offload.py": OFFLOAD,
    "test_quantization.py": "Lockstep does not quantize models",
    "test_sagemaker.py": LAUNCHER,
    "test_tpu.py": "Lockstep does not run on TPUs",
}


@functools.cache
def missing_part() -> str:
    """Returns why the tests cannot run; "" if they can."""
    if not TESTS.is_dir():
        return f"{TESTS} does not exist; ./dev test makes it"
    code = "import parameterized, pytest, tensorboard, transformers"
    if subprocess.run([PYTHON, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return f"{PYTHON} lacks packages; set LOCKSTEP_CLIENTS_PYTHON to a Python with those of clients/requirements.txt"
    return ""


needs_accelerates_tests = pytest.mark.skipif("missing_part()", reason="Accelerate's unit tests cannot run")


@functools.cache
def outcomes() -> dict[str, Outcome]:
    """Runs all files in one process, since its imports take seconds."""
    files = {name: run.not_run for name, run in RUN.items()}
    package = str(FOLDER / "accelerate")
    plugin = "accelerate_unit_plugin"
    return run_files(files, plugin, TESTS, DEADLINE_SECONDS, python=PYTHON, LOCKSTEP_ACCELERATE_PACKAGE=package)


def test_the_tests_exist_or_a_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    if missing_part():
        reason = f"Accelerate's unit tests are not run: {missing_part()}"
        with capsys.disabled():
            print(reason, file=sys.stderr)
        pytest.skip(reason)


@needs_accelerates_tests
@pytest.mark.parametrize("name", RUN)
def test_the_file_passes(name: str) -> None:
    outcome = outcomes()[name]
    assert (outcome.passed, outcome.failed) == (RUN[name].passed, []), outcome.output


@needs_accelerates_tests
def test_each_file_is_run_or_has_a_reason() -> None:
    found = {path.name for path in TESTS.glob("test_*.py")}
    assert sorted(found - set(RUN) - set(NOT_RUN)) == [] and sorted((set(RUN) | set(NOT_RUN)) - found) == []
    reasons = [reason for run in RUN.values() for reason in run.not_run.values()]
    assert set(RUN) & set(NOT_RUN) == set() and all([*NOT_RUN.values(), *reasons])
