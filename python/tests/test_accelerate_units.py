# SPDX-License-Identifier: Apache-2.0
"""Accelerate's own unit tests pass when their imports mean Lockstep.

Set LOCKSTEP_ACCELERATE_SOURCES to the unpacked source distribution of accelerate 1.15.0, which has the folders src and
tests (`pip download --no-deps --no-binary :all: accelerate==1.15.0`), and install what its tests import: parameterized,
psutil, transformers and datasets. None of its code is part of Lockstep. On two CPUs Accelerate passes 245 of these tests,
Lockstep 170. The tables below name each test that is not run, with a reason. accelerate_unit_plugin.py makes the imports
mean Lockstep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from launch import package_folder

TESTS = Path(__file__).resolve().parent
SOURCES = os.environ.get("LOCKSTEP_ACCELERATE_SOURCES", "")
DEADLINE_SECONDS = 1200

PRIVATE = "it uses names of Accelerate that are private"
TEXT = "it expects Accelerate's text of the message; Lockstep's is another"
PICKLE = "it writes or reads pickled weights, which Lockstep refuses"
OFFLOAD = "it spreads a model over devices or offloads it during inference, which Lockstep refuses"
TORCH_FILE = "it reads weights from a pickled file, which Lockstep refuses"
MESHES = "Lockstep has no tensor, context or sequence parallelism"
GROUP = "it expects the last, smaller accumulation group divided by gradient_accumulation_steps: docs/python.md"
MACHINE = "it measures the machine's free memory, which other programs change"
GPU = "it needs a GPU"
LAUNCHER = "its subject is Accelerate's launcher; `lockstep launch` has tests of its own"

# The files that are run. Of each, the tests whose names match an expression are not.
RUN: dict[str, dict[str, str]] = {
    "test_accelerator.py": {
        "test_free_memory_dereferences_prepared_components": MACHINE,
        "test_save_(load_|sharded_)?model(_with_hooks)?_use_pytorch$": PICKLE,
        "test_save_model_offload": OFFLOAD,
    },
    "test_big_modeling.py": {
        "test_cpu_offload$|test_cpu_offload_with_unused|test_disk_offload$|test_disk_offload_with_unused": OFFLOAD,
        "test_dispatch_model_disk_only": OFFLOAD,
        "test_load_checkpoint_and_dispatch_device_map_none": TORCH_FILE,
        "linear_attention|full_attention|models_without_layer_types": MESHES,
    },
    "test_compile.py": {},
    "test_cpu.py": {},
    "test_data_loader.py": {},
    "test_dataclasses.py": {
        r"test_(get_mesh|build_device_mesh|from_env)\[(?!(8-1|1-8|2-4)-1-1)": MESHES,
        "test_cp_torch_handler|test_sp_deepspeed_handler": MESHES,
    },
    "test_grad_sync.py": {"test_gradient_sync_cpu_multi": GROUP},
    "test_hooks.py": {"as_cpu_offload": OFFLOAD},
    "test_kwargs_handlers.py": {},
    "test_logging.py": {},
    "test_memory_utils.py": {},
    "test_modeling_utils.py": {
        "test_align_module_device_offloaded": OFFLOAD,
        "test_get_balanced_memory|test_get_state_dict_offloaded|test_infer_auto_device_map": OFFLOAD,
        "test_load_checkpoint_in_model$|test_load_checkpoint_in_model_unexpected_keys": TORCH_FILE,
        "test_load_checkpoint_in_model_dtype": OFFLOAD,
        "test_set_module_tensor_checks_shape": TEXT,
    },
    "test_optimizer.py": {},
    "test_scheduler.py": {"test_lambda_scheduler_steps_with_optimizer": PRIVATE},
    "test_state_checkpointing.py": {
        "use_pytorch::.*(_loading|_resume_training|_deletion|_save_limit|_with_scheduler)": PICKLE,
    },
    "test_tracking.py": {"TensorBoardTrackingTest::test_project_dir$": TEXT},
    "test_utils.py": {
        "test_has_offloaded_params": OFFLOAD,
        "test_honor_type|test_save_safetensor_shared_memory": TEXT,
    },
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


def run_file(name: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[str], int]:
    """Runs a file of Accelerate's tests. Returns pytest's process, the failed tests, and the number of passed ones."""
    report = folder / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "accelerate_unit_plugin", "-p", "no:cacheprovider"),
            *("--override-ini=addopts=", "-q", "-W", "ignore", f"--junitxml={report}", f"tests/{name}"),
        ],
        cwd=SOURCES,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(package_folder()), str(TESTS)]),
            "LOCKSTEP_ACCELERATE_NOT_RUN": json.dumps(list(RUN[name])),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.is_file() else []
    bad = {"failure", "error"}
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in cases if {part.tag for part in case} & bad]
    return done, failed, sum(1 for case in cases if not list(case))


def test_accelerates_sources_exist_or_a_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    if not SOURCES or not (Path(SOURCES) / "tests" / "test_accelerator.py").is_file():
        reason = "Accelerate's unit tests are not run: LOCKSTEP_ACCELERATE_SOURCES names no folder with its tests"
        with capsys.disabled():
            print(reason, file=sys.stderr)
        pytest.skip(reason)


@pytest.mark.skipif(not SOURCES, reason="LOCKSTEP_ACCELERATE_SOURCES is not set")
@pytest.mark.parametrize("name", RUN)
def test_the_file_passes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, failed, passed = run_file(name, tmp_path)
    with capsys.disabled():
        print(f"{name}: {passed} passed, {len(failed)} failed")
    assert done.returncode == 0 and not failed, f"{failed}\n{done.stdout[-20000:]}\n{done.stderr[-4000:]}"


@pytest.mark.skipif(not SOURCES, reason="LOCKSTEP_ACCELERATE_SOURCES is not set")
def test_each_file_is_run_or_has_a_reason() -> None:
    found = {path.name for path in (Path(SOURCES) / "tests").glob("test_*.py")}
    assert sorted(found - set(RUN) - set(NOT_RUN)) == [] and sorted((set(RUN) | set(NOT_RUN)) - found) == []
    reasons = [reason for tests in RUN.values() for reason in tests.values()]
    assert set(RUN) & set(NOT_RUN) == set() and all([*NOT_RUN.values(), *reasons])
