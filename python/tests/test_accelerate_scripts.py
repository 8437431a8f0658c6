# SPDX-License-Identifier: Apache-2.0
"""Accelerate's own test scripts pass with Lockstep, which lockstep.alias makes their imports mean.

The scripts are those of its wheel, which scripts/bootstrap installs into build/accelerate without dependencies. Each
script is copied. The copy may have edits, each with its reason: a row of docs/python.md that is an intended
difference, a part that the script runs on GPUs only, or a mistake of the script. stand_ins/ has the packages that some
scripts import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from launch import binary, package_folder

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
SCRIPTS = ROOT / "build" / "accelerate" / "accelerate" / "test_utils" / "scripts"
DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Edit:
    """A change of a script's text, everywhere, with its reason. `row`: the reason is the row that begins so."""

    old: str
    new: str
    reason: str = ""
    row: str = ""


def on_cpus(old: str, new: str) -> Edit:
    return Edit(old, new, reason="the script runs this part on GPUs only")


@dataclass(frozen=True)
class Script:
    """A script, its processes, and what it prints in its last part.

    `runs` has the arguments of each start. `launcher`: `lockstep launch` starts the processes; else the script does.
    """

    name: str
    processes: tuple[int, ...]
    prints: str
    edits: tuple[Edit, ...] = ()
    runs: tuple[tuple[str, ...], ...] = ((),)
    launcher: bool = True


SHORT_GROUP = Edit(
    "length=80",
    "length=64",  # An even number of batches for each of two processes.
    row="the last, smaller accumulation group is divided",
)

RUN = (
    Script("test_cli.py", (1,), "Successfully ran on 0 GPUs"),
    Script("test_ops.py", (2, 3), "testing sending tensors across devices"),
    # With three processes the script fails with Accelerate as well: it divides two rows.
    Script("test_script.py", (1, 2), "**Test reinstantiated state**"),
    Script("test_sync.py", (1, 3), "**Test `accumulate` gradient accumulation with optimizer and scheduler"),
    Script(
        "test_sync.py",
        (2,),
        "`split_batches=False` and `dispatch_batches=False` and `sync_each_batch=True`",
        edits=(SHORT_GROUP, on_cpus("DistributedType.MULTI_GPU,", "DistributedType.MULTI_CPU,")),
    ),
    Script(
        "test_distributed_data_loop.py",
        (2,),
        "Test DataLoader with sampler as an instance of `BatchSampler`",
        edits=(
            Edit(
                "_state(tmpdir)", '_state("checkpoint")', row="each process saves its part in the folder that it passes"
            ),
        ),
    ),
    Script(
        "test_ddp_comm_hook.py",
        (2,),
        "Test DDP comm hook: batched_power_sgd, comm wrapper: bf16",
        edits=(
            Edit(
                "def main():\n",
                'def main():\n    torch.distributed.init_process_group("gloo")\n',
                row="`Accelerator()` initialises `torch.distributed`",
            ),
            on_cpus("        device_ids=[accelerator.local_process_index],\n", ""),
            on_cpus("        output_device=accelerator.local_process_index,\n", ""),
        ),
    ),
    Script(
        "test_notebook.py",
        (2,),
        "Test monitoring",
        launcher=False,
        edits=(
            Edit(
                "    if queue.empty():\n        return\n",
                '    if os.environ["RANK"] != "0":\n        PartialState()\n        return\n',
                reason="a process that finds the queue empty ends, and the other one waits for it in PartialState()",
            ),
            Edit(
                "num_processes=NUM_PROCESSES",
                "num_processes=NUM_PROCESSES, use_port=0",
                reason="another program of this machine may use the default port",
            ),
        ),
    ),
    Script("external_deps/test_metrics.py", (1,), "**Test that `drop_last` is taken into account**"),
    Script(
        "external_deps/test_metrics.py",
        (2,),
        "**Test that `drop_last` is taken into account**",
        edits=(
            on_cpus('accelerator.device.type != "cpu"', "True"),
            Edit(
                'logging.root.manager.loggerDict["accelerate.accelerator"]',
                'logging.getLogger("lockstep.accelerator")',
                reason="it is the name of a module of Accelerate",
            ),
        ),
    ),
    Script(
        "external_deps/test_performance.py",
        (2,),
        "epoch 1:",
        runs=(("--num_epochs", "2", "--performance_lower_bound", "0.4"),),
    ),
    Script(
        "external_deps/test_checkpointing.py",
        (2,),
        "resumed optimizers's lr: 1e-05",
        runs=(("--partial_train_epoch", "1"), ("--resume_from_checkpoint", "epoch_0")),
    ),
)

_MODELS = "it needs models and data of transformers, which the stand-ins lack"
NOT_RUN = {
    "test_merge_weights.py": "it reads files of torch's FSDP; a test below checks the error",
    "external_deps/test_peak_memory_usage.py": "it measures the memory of a GPU",
    "external_deps/test_pippy.py": f"{_MODELS}, and pipelines of stages, which Lockstep refuses",
    "external_deps/test_zero3_integration.py": f"{_MODELS}, and NCCL",
    "external_deps/test_ds_alst_ulysses_sp.py": "it needs sequence parallelism, which Lockstep refuses",
    "external_deps/test_ds_multiple_model.py": "it reads files that the wheel lacks, and prepares models of one "
    "Accelerator under two DeepSpeed plugins, a difference in docs/python.md",
}


@pytest.fixture(autouse=True, scope="module")
def wheel() -> None:
    assert SCRIPTS.is_dir(), f"{SCRIPTS} is missing; run scripts/bootstrap test, which installs Accelerate's wheel"


def copy_of(name: str, folder: Path, edits: tuple[Edit, ...] = ()) -> Path:
    """Writes the script with its edits, and returns its path. Throws AssertionError for an edit without effect."""
    text = (SCRIPTS / name).read_text(encoding="utf-8")
    for edit in edits:
        assert edit.old in text, f"{name} has no {edit.old!r}"
        text = text.replace(edit.old, edit.new)
    script = folder / Path(name).name
    script.write_text(text, encoding="utf-8")
    return script


def run(command: list[str], folder: Path, processes: int) -> subprocess.CompletedProcess[str]:
    """Runs a command with the package and the stand-ins. `datasets` counts as installed."""
    info = folder / "installed" / "datasets-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: datasets\nVersion: 1.0\n", encoding="utf-8")
    paths = [package_folder(), TESTS / "stand_ins", info.parent]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "LOCKSTEP_USE_CPU": "1",
            "LOCKSTEP_PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_NUM_PROCESSES": str(processes),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


CASES = [
    pytest.param(script, processes, id=f"{Path(script.name).stem}-{processes}")
    for script in RUN
    for processes in script.processes
]


@pytest.mark.parametrize(("script", "processes"), CASES)
def test_the_script_passes(script: Script, processes: int, tmp_path: Path) -> None:
    path = copy_of(script.name, tmp_path, script.edits)
    launch = [str(binary()), "launch", "-n", str(processes), "--alias"]
    start = launch if script.launcher else [sys.executable, "-m", "lockstep.alias"]
    for arguments in script.runs:
        done = run([*start, str(path), *arguments], tmp_path, processes)
        assert done.returncode == 0, f"{script.name} {arguments}:\n{done.stdout}\n{done.stderr}"
    assert script.prints in done.stdout


def test_merge_weights_names_the_alternative(tmp_path: Path) -> None:
    alias = [sys.executable, "-m", "lockstep.alias"]
    done = run([*alias, str(copy_of("test_merge_weights.py", tmp_path))], tmp_path, 1)
    assert done.returncode == 1 and "lockstep merge-weights" in done.stderr, done.stderr


def test_each_script_of_the_wheel_is_run_or_has_a_reason() -> None:
    found = {str(path.relative_to(SCRIPTS)) for path in SCRIPTS.rglob("test_*.py")}
    assert {script.name for script in RUN} | set(NOT_RUN) == found
    assert {script.name for script in RUN} & set(NOT_RUN) == set()


def test_each_edit_has_a_reason_or_a_row_of_the_documentation() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    edits = [edit for script in RUN for edit in script.edits]
    assert [edit.old for edit in edits if bool(edit.reason) == bool(edit.row)] == []
    assert [edit.row for edit in edits if edit.row and f"\n| {edit.row}" not in text] == []
