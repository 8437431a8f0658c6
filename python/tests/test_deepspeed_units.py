# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own unit tests about public behaviour pass against lockstep.deepspeed, each rank as a fork.

Set LOCKSTEP_DEEPSPEED_SOURCES to a folder with DeepSpeed's repository, which has tests/unit; its packages lack them. None of
its code is part of Lockstep. The tables below were made with the commit edaa7221 (0.19.6). They name each test that is not
run, with a reason: a private name of DeepSpeed, an intended difference of docs/from_deepspeed.md, or what Lockstep lacks.
deepspeed_unit_plugin.py has the few edits that are made to the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from launch import package_folder

TESTS = Path(__file__).resolve().parent
SOURCES = os.environ.get("LOCKSTEP_DEEPSPEED_SOURCES", "")
DEADLINE_SECONDS = 1500

PRIVATE = "it uses attributes or modules of DeepSpeed that are private"
TEXT = "it expects DeepSpeed's text of the error; Lockstep's error is another"
REFUSED = "Lockstep refuses the key, as DeepSpeed 0.19.8 does"
ISINSTANCE = "it expects a class of DeepSpeed's optimizer; Lockstep's file optimizer is updated by the C++ library"
WRAPPER = "it expects the program's optimizer itself; initialize returns the engine's optimizer, which wraps it"
EXPERTS = "Lockstep has no parallel experts"
BARE = "it calls loss.backward() where Lockstep refuses it, since the gradients would be wrong: call engine.backward(loss)"
BY_HAND = "it sets .grad without a backward"
# In DeepSpeed 16-bit precision casts the parameters: docs/engine.md.
SIXTEEN_BITS = {"fp16": {"data_types": {"param_dtype": "fp16"}}, "bf16": {"data_types": {"param_dtype": "bf16"}}}
UNCLIPPED = {"gradient_clipping": 0.0}


@dataclass(frozen=True)
class Run:
    """What runs of a file: all but the tests whose names match an expression of `not_run`."""

    not_run: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)  # Keys that initialize() adds.
    float32: bool = False  # The numbers are compared with float32's: the device has no 16-bit dtype.


RUN = {
    "checkpoint/test_latest_checkpoint.py": Run(),
    "checkpoint/test_lr_scheduler.py": Run({r"\[[23]-True\]": PRIVATE}),
    "checkpoint/test_other_optimizer.py": Run(),
    "checkpoint/test_convert_checkpoint.py": Run(),
    "checkpoint/test_shared_weights.py": Run(),
    "checkpoint/test_tag_validation.py": Run(),
    "comm/test_dist.py": Run(),
    "launcher/test_ds_arguments.py": Run({"test_core_binding_arguments": PRIVATE}),
    "ops/adagrad/test_cpu_adagrad.py": Run(
        {"sparse_embedding": "Adagrad takes no sparse gradients", "gpu_error": "it needs a GPU"}
    ),
    "ops/adam/test_cpu_adam.py": Run(),
    "ops/adam/test_hybrid_adam.py": Run(),
    "ops/lion/test_cpu_lion.py": Run(),
    "ops/muon/test_muon.py": Run(),
    "ops/muon/test_muon_partial_training.py": Run({"learning_rate_overrides": PRIVATE}),
    "runtime/half_precision/test_dynamic_loss_scale.py": Run(),
    "runtime/half_precision/test_fp16.py": Run(
        {"ForMoE": EXPERTS, "TestFP16AdamTypes::test.True": "its key optimizer.torch_adam is unknown in DeepSpeed, too"}
    ),
    "runtime/half_precision/test_zero_optim_overflow.py": Run(),
    "runtime/test_data.py": Run(),
    "runtime/test_ds_initialize.py": Run(),
    "runtime/test_lr_schedulers.py": Run(),
    "runtime/test_multi_output_model.py": Run(defaults=SIXTEEN_BITS),
    "runtime/test_multiple_models.py": Run(defaults=SIXTEEN_BITS),
    "runtime/test_no_sync_ctxt.py": Run(),
    "runtime/zero/test_ignore_unused_parameters.py": Run(),
    "runtime/zero/test_unwrap_model.py": Run(),
    "runtime/zero/test_zero_context.py": Run(),
    "runtime/zero/test_zero_context_ancestry.py": Run(),
    "runtime/zero/test_zero_context_return.py": Run(),
    "runtime/zero/test_zero_leaf_module.py": Run(),
    "runtime/zero/test_zero_linear_direct_init.py": Run(),
    "runtime/zero/test_zero_tensor_fragment.py": Run(),
    "utils/test_init_on_device.py": Run(),
    "v1/half_precision/test_bf16.py": Run(),
    "v1/half_precision/test_with_autocast.py": Run(),
    "v1/test_engine_log_level.py": Run(),
    "v1/zero/test_zero.py": Run(),
    "v1/zero/test_zero2_offload_multi_backward.py": Run(),
    "v1/zero/test_zero_autocast.py": Run(),
    "v1/zero/test_zero_coalesce_grad_reduction.py": Run(),
    "v1/zero/test_zero_hook_count_regression.py": Run(),
    "v1/zero/test_zero_torch_func.py": Run(),
    "v1/zero/test_zero_user_backward.py": Run(defaults=UNCLIPPED, float32=True),
    "checkpoint/test_zero_optimizer.py": Run(),
}


def run_file(name: str, run: Run, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[str], int]:
    """Runs a file of DeepSpeed's tests. Returns pytest's process, the failed tests, and the number of passed ones."""
    report = folder / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--noconftest", "-p", "deepspeed_unit_plugin", "-p", "no:cacheprovider"),
            *("--override-ini=addopts=", "-q", "-W", "ignore", f"--junitxml={report}", f"unit/{name}"),
        ],
        cwd=Path(SOURCES) / "tests",
        env=os.environ
        | {
            "LOCKSTEP_DEEPSPEED_SOURCES": SOURCES,
            "PYTHONPATH": os.pathsep.join([str(package_folder()), str(TESTS)]),
            "LOCKSTEP_DEEPSPEED_NOT_RUN": json.dumps(list(run.not_run)),
            "LOCKSTEP_DEEPSPEED_DEFAULTS": json.dumps(run.defaults),
            "LOCKSTEP_DEEPSPEED_FLOAT32": "1" if run.float32 else "",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.is_file() else []
    bad = {"failure", "error"}
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in cases if {part.tag for part in case} & bad]
    return done, failed, sum(1 for case in cases if not list(case))


def test_the_sources_are_here_or_a_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    if not (Path(SOURCES) / "tests" / "unit").is_dir() or not SOURCES:
        reason = "DeepSpeed's unit tests are not run: LOCKSTEP_DEEPSPEED_SOURCES names no folder with tests/unit"
        with capsys.disabled():
            print(reason, file=sys.stderr)
        pytest.skip(reason)


@pytest.mark.skipif(not SOURCES, reason="LOCKSTEP_DEEPSPEED_SOURCES is not set")
@pytest.mark.parametrize("name", RUN)
def test_the_file_passes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, failed, passed = run_file(name, RUN[name], tmp_path)
    with capsys.disabled():
        print(f"{name}: {passed} passed, {len(failed)} failed")
    assert done.returncode == 0 and not failed, f"{failed}\n{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
