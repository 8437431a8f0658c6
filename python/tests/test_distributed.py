# SPDX-License-Identifier: Apache-2.0
"""Tests of the backend "lockstep" of torch.distributed, with processes: results and faults, compared with Gloo's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch import finish_ranks, python_path, run_ranks

_FOLDER = Path(__file__).parent
# The model's ranks have the time that Gloo needs, too.
_SECONDS = 300


def _run(name: str, ranks: int, *arguments: object, **variables: str) -> list[str]:
    """Runs a file of this folder as ranks. Returns what each has printed."""
    return run_ranks(_program(name, arguments), ranks, _SECONDS, **variables)


def _program(name: str, arguments: tuple[object, ...]) -> str:
    path = str(_FOLDER / name)
    return f"""
import faulthandler, runpy, sys
faulthandler.dump_traceback_later({_SECONDS - 10}, exit=True)  # A hang shows its place.
sys.argv[:] = {[path, *map(str, arguments)]!r}
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_give_gloos_results(ranks: int) -> None:
    for output in _run("distributed_operations.py", ranks):
        assert "compared 448" in output


@pytest.mark.parametrize("ranks", [2, 3])
def test_torchs_own_training_gives_gloos_results(ranks: int, tmp_path: Path) -> None:
    for output in _run("distributed_models.py", ranks, tmp_path):
        trained = output.splitlines()
        for name in ("DDP", "DDP, PowerSGD", "FSDP2", "DTensor", "subgroups", "checkpoint", "GPipe", "1F1B"):
            assert name in trained, output


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_groups_and_stores(ranks: int, tmp_path: Path) -> None:
    for output in _run("distributed_messages.py", ranks, tmp_path):
        assert output.endswith("done\n")


def test_operations_over_sockets_give_gloos_results() -> None:
    for output in _run("distributed_operations.py", 2, LOCKSTEP_COMM="gloo"):
        assert "compared 448" in output


_FAULTS = (
    *("a_rank_dies", "a_rank_never_joins", "a_rank_is_late", "a_future_fails", "backward_fails", "ranks_differ"),
    *("tags_differ", "two_threads"),
)


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_ends_every_rank_with_its_reason(fault: str) -> None:
    outputs = finish_ranks(_program("distributed_faults.py", (fault,)), 3, _SECONDS)
    for rank, (code, output) in enumerate(outputs):
        assert code == 0, f"process {rank} exited with {code}:\n{output}"
    assert f"{fault} as expected" in outputs[0][1]


def test_torchs_debug_mode() -> None:
    for output in _run("distributed_faults.py", 2, "debug_detail", TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "debug_detail as expected" in output


def test_the_example_of_the_docs_trains() -> None:
    program = (_FOLDER.parents[1] / "examples/python/torch_ddp.py").read_text(encoding="utf-8")
    over_gloo = program.replace('group("lockstep")', 'group("gloo")')
    over_gloo = over_gloo.replace("dist.ReduceOp.AVG", "dist.ReduceOp.SUM").replace("{loss:", "{loss / 2:")
    ours, _ = run_ranks(program, 2, _SECONDS)
    gloos, _ = run_ranks(over_gloo, 2, _SECONDS)
    assert ours == gloos and ours.startswith("loss ")


def test_registration_imports_nothing_of_the_backend() -> None:
    program = """
import sys, lockstep, torch.distributed as dist
assert "lockstep" in dist.Backend.backend_list and dist.Backend.LOCKSTEP == "lockstep"
assert "lockstep.distributed.process_group" not in sys.modules
lockstep.distributed.register()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": python_path()})
