# SPDX-License-Identifier: Apache-2.0
"""lockstep.launchers and `python -m lockstep`: real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep import _binary, launchers
from lockstep._core import ConfigError, Error
from lockstep._environment import wants_cpu
from lockstep.state import AcceleratorState, PartialState

BINARY = next((path for path in _binary._candidates() if _binary._is_program(path)), os.environ.get("LOCKSTEP_BINARY"))
needs_binary = pytest.mark.skipif(BINARY is None, reason="the program lockstep is not built")


def write(folder: Path, text: str) -> None:
    (folder / os.environ["RANK"]).write_text(text, encoding="utf-8")


def read(folder: Path) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(folder.iterdir())]


def sum_of_ranks(folder, base):
    state = PartialState()
    total = state.group.all_reduce(torch.tensor([base + state.process_index])).item()
    write(folder, f"{state.num_processes} {total} {state.device} {os.environ['ACCELERATE_MIXED_PRECISION']}")


def test_debug_launcher_connects_its_processes(tmp_path):
    launchers.debug_launcher(sum_of_ranks, (tmp_path, 10), num_processes=3)
    assert read(tmp_path) == ["3 33 cpu no"] * 3
    assert "RANK" not in os.environ and not PartialState._shared_state


def test_notebook_launcher_connects_its_processes_after_a_state_of_one(tmp_path, capfd):
    assert PartialState(cpu=True).num_processes == 1
    launchers.notebook_launcher(sum_of_ranks, (tmp_path, 1), num_processes=2, mixed_precision="bf16", use_port=0)
    assert read(tmp_path) == ["2 3 cpu bf16"] * 2
    assert "Launching training on 2 CPUs." in capfd.readouterr().out
    assert PartialState().num_processes == 1


def test_a_job_of_one_process_runs_in_the_notebooks_process():
    seen = []
    launchers.notebook_launcher(
        lambda value: seen.append((value, os.getpid(), os.environ["ACCELERATE_MIXED_PRECISION"])),
        ("x",),
        num_processes=1,
        mixed_precision="fp16",
    )
    assert seen == [("x", os.getpid(), "fp16")]
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


def test_processes_have_no_variables_of_other_launchers(tmp_path, monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "ROLE_RANK", "LOCKSTEP_FLIGHT"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    launchers.debug_launcher(
        lambda: write(tmp_path, " ".join(sorted(name for name, value in os.environ.items() if value in ("5", "7"))))
    )
    assert read(tmp_path) == ["SLURM_JOB_ID"] * 2


def test_threads_of_this_process_do_not_block_a_fork(tmp_path):
    torch.set_num_threads(2)
    torch.randn(512, 512) @ torch.randn(512, 512)  # Starts threads, which a fork does not have.

    def multiply():
        write(tmp_path, str(torch.get_num_threads()))
        torch.randn(512, 512) @ torch.randn(512, 512)

    launchers.debug_launcher(multiply)
    assert read(tmp_path) == ["1", "1"]


def fail_on_rank_1():
    if os.environ["RANK"] == "1":
        raise KeyError("the cause")
    PartialState()  # Waits for process 1.


def test_a_failure_has_the_traceback_and_ends_the_others():
    with pytest.raises(Error) as caught:
        launchers.debug_launcher(fail_on_rank_1)
    text = str(caught.value)
    assert text.startswith("[debug_launcher] process 1 failed:") and "KeyError: 'the cause'" in text
    assert "in fail_on_rank_1" in text
    assert multiprocessing.active_children() == []


def test_a_killed_process_and_an_exit_code_are_reported():
    with pytest.raises(Error, match="process 0 was ended by SIGKILL"):
        launchers.debug_launcher(lambda: os.kill(os.getpid(), signal.SIGKILL), num_processes=1)
    with pytest.raises(Error, match="process 0 exited with code 3; expected 0"):
        launchers.debug_launcher(lambda: sys.exit(3), num_processes=1)
    launchers.debug_launcher(lambda: sys.exit(0), num_processes=1)


def test_a_notebook_job_starts_again(tmp_path):
    def fail_at_first(folder):
        restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
        (folder / f"{restart}-{os.environ['RANK']}").touch()
        PartialState()
        if restart == "0" and os.environ["RANK"] == "0":
            raise RuntimeError("the first attempt")

    launchers.notebook_launcher(fail_at_first, (tmp_path,), num_processes=2, use_port=0, max_restarts=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]


def test_an_interrupt_while_processes_start_ends_them():
    armed = [True]
    os.register_at_fork(after_in_parent=lambda: armed and armed.pop() and signal.raise_signal(signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launchers.debug_launcher(time.sleep, (60,))
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


def test_an_interrupt_ends_all_processes(tmp_path):
    def wait(folder):
        (folder / str(os.getpid())).touch()
        time.sleep(60)

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launchers.debug_launcher(wait, (tmp_path,))
    thread.join()
    for file in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name), 0)


def test_processes_end_with_their_launcher(tmp_path):
    def wait(folder):
        (folder / os.environ["RANK"]).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(600)

    launcher = multiprocessing.get_context("fork").Process(target=launchers.debug_launcher, args=(wait, (tmp_path,)))
    launcher.start()
    while not all((tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in "01"):
        time.sleep(0.01)
    pids = [int(text) for text in read(tmp_path)]
    launcher.kill()
    launcher.join()
    for pid in pids:
        while _is_running(pid):
            time.sleep(0.01)


def _is_running(pid: int) -> bool:
    """Returns whether a process exists that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_accelerator_in_this_process_is_refused():
    AcceleratorState(cpu=True)
    for launch in (launchers.debug_launcher, launchers.notebook_launcher):
        with pytest.raises(ConfigError, match="an Accelerator exists"):
            launch(print, num_processes=2)


def test_initialized_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="CUDA is initialized"):
        launchers.notebook_launcher(print, num_processes=2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_processes": 2, "mixed_precision": "fp8"}, "expected no, fp16 or bf16"),
        ({"num_processes": 0}, "expected at least 1"),
        ({"num_processes": 2, "node_rank": 2, "num_nodes": 2}, "node_rank is 2; expected 0 to 1"),
        ({"num_processes": 2, "num_nodes": 2, "use_port": 0}, "expected a fixed port"),
        ({"num_processes": 2, "rdzv_backend": "etcd"}, "expected static or c10d"),
        ({"num_processes": 2, "rdzv_conf": {"wait": 1}}, "unknown key 'wait'"),
        ({"num_processes": 2, "log_line_prefix_template": "x"}, "not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_without_effect_is_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        launchers.notebook_launcher(print, **arguments)


def test_variables_of_lockstep_are_booleans_and_those_of_accelerate_its_words(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "y")
    assert wants_cpu(None)
    monkeypatch.setenv("LOCKSTEP_USE_CPU", "off")
    assert not wants_cpu(None) and wants_cpu(True)
    monkeypatch.setenv("LOCKSTEP_USE_CPU", "maybe")
    with pytest.raises(ConfigError, match="invalid value 'maybe' for LOCKSTEP_USE_CPU"):
        wants_cpu(None)


def run_module(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(lockstep.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        env=os.environ | {"PYTHONPATH": folder} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_binary
def test_the_module_is_the_native_program():
    done = run_module("--version", LOCKSTEP_BINARY=str(BINARY))
    assert done.returncode == 0 and done.stdout.strip()
    assert run_module("no-such-command", LOCKSTEP_BINARY=str(BINARY)).returncode == 2


@needs_binary
def test_the_module_launches_processes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("from lockstep.state import PartialState\nprint(PartialState().num_processes)", encoding="utf-8")
    done = run_module("launch", "-n", "2", str(script), LOCKSTEP_BINARY=str(BINARY))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2") == 2


def test_a_missing_program_is_an_error_that_says_what_to_do():
    done = run_module("--version", LOCKSTEP_BINARY="/nonexistent")
    assert done.returncode == 2 and "expected the path of the program lockstep" in done.stderr


@needs_binary
def test_the_basic_configuration_is_written_once(tmp_path, monkeypatch, capsys):
    from lockstep.utils import write_basic_config

    monkeypatch.setenv("LOCKSTEP_BINARY", str(BINARY))
    file = tmp_path / "config.yaml"
    assert write_basic_config("bf16", file) == file
    assert "mixed_precision: bf16" in file.read_text(encoding="utf-8")
    assert write_basic_config("no", file) is False and "is not changed" in capsys.readouterr().out
    monkeypatch.setenv("LOCKSTEP_CONFIG_FILE", str(tmp_path / "default.yaml"))
    assert write_basic_config() == tmp_path / "default.yaml" and write_basic_config() is False
