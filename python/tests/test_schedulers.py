# SPDX-License-Identifier: Apache-2.0
"""Tests of docs/schedulers.md: one loop under launchers and schedulers, and Lightning's strategies."""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from launch import binary, python_path

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "examples/python/schedulers"
_SECONDS = 900  # Ray and Lightning import for minutes on a busy machine.
# The Python that has the schedulers' packages. Read here, since each test clears the variables.
_CLIENTS = Path(os.environ.get("LOCKSTEP_CLIENTS_PYTHON", _ROOT / "build/clients/bin/python"))
_PYTHON = str(_CLIENTS if _CLIENTS.exists() else sys.executable)
_LOSS = re.compile(r"^(?:epoch \d+: )?loss (\d+\.\d{6})", re.MULTILINE)  # Not in workers' lines, which Ray prints late.


def _need(*packages: str) -> None:
    """Skips the test if a package is not installed."""
    missing = [package for package in packages if package not in _installed()]
    if missing:
        pytest.skip(f"{_PYTHON} lacks {', '.join(missing)}; LOCKSTEP_CLIENTS_PYTHON names another Python")


@functools.cache
def _installed() -> frozenset[str]:
    program = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    return frozenset(subprocess.check_output([_PYTHON, "-c", program], text=True).split())


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", **variables}


def _loss_of(command: list[str], folder: Path, **variables: str) -> str:
    """Runs a program. Returns the last loss that it printed."""
    return _last_loss(_run([command], folder, [variables])[0])


def _last_loss(output: str) -> str:
    return _LOSS.findall(output)[-1]


def _run(commands: list[list[str]], folder: Path, variables: list[dict[str, str]]) -> list[str]:
    """Runs programs at the same time. Returns what they printed. Throws AssertionError if one fails."""
    outputs = [tempfile.TemporaryFile("w+") for _ in commands]
    processes = [
        subprocess.Popen(command, cwd=folder, env=_environment(**own), stdout=output, stderr=subprocess.STDOUT)
        for command, own, output in zip(commands, variables, outputs, strict=True)
    ]
    texts = []
    try:
        for process, output in zip(processes, outputs, strict=True):
            code = process.wait(_SECONDS)
            output.seek(0)
            texts.append(output.read())
            assert code == 0, texts[-1]
    finally:
        for process, output in zip(processes, outputs, strict=True):
            process.kill()
            output.close()
    return texts


@functools.cache
def _expected() -> str:
    """Returns the loop's last loss under `lockstep launch`."""
    return _loss_of([str(binary()), "launch", "-n", "2", sys.executable, str(_FOLDER / "loop.py")], _FOLDER)


def _free_ports(count: int) -> list[str]:
    listeners = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [str(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def test_the_loop_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(_FOLDER / "loop.py")]
    assert _loss_of(torchrun, tmp_path) == _expected()


def test_the_loop_in_pods_of_a_pytorchjob(tmp_path: Path) -> None:
    pods = {"WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": _free_ports(1)[0]}
    pods |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # One rank in each pod.
    command = [sys.executable, str(_FOLDER / "loop.py")]
    outputs = _run([command] * 2, tmp_path, [{"RANK": str(rank), **pods} for rank in (0, 1)])
    assert [_last_loss(output) for output in outputs] == [_expected()] * 2


def test_launchers_in_pods_of_a_pytorchjob_take_the_pods_as_hosts(tmp_path: Path) -> None:
    port, address = _free_ports(1)[0], socket.gethostname()
    pods = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port, "LOCKSTEP_JOB_TOKEN": "0123456789abcdef" * 2}
    command = [str(binary()), "launch", "-n", "1", sys.executable, str(_FOLDER / "loop.py")]
    outputs = _run([command] * 2, tmp_path, [{"RANK": str(rank), **pods} for rank in (0, 1)])
    assert [_last_loss(output) for output in outputs] == [_expected()] * 2


def test_the_loop_in_a_job_of_submitit(tmp_path: Path) -> None:
    _need("submitit")
    assert _loss_of([_PYTHON, str(_FOLDER / "slurm_submitit.py"), "local"], tmp_path) == _expected()


def test_the_loop_on_workers_of_dask(tmp_path: Path) -> None:
    _need("distributed")
    assert _loss_of([_PYTHON, str(_FOLDER / "dask_cluster.py")], tmp_path) == _expected()


def test_the_loop_on_workers_of_ray_train(tmp_path: Path) -> None:
    _need("ray")
    variables = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240", "RAY_USAGE_STATS_ENABLED": "0"}
    variables["RAY_ADDRESS"] = "local"  # Not a cluster that already runs.
    loss = _loss_of([_PYTHON, str(_FOLDER / "ray_train.py"), "runs"], tmp_path, **variables)
    assert loss == _expected()
    reported = [path for path in tmp_path.glob("runs/ray/checkpoint_*") if path.is_dir()]  # Ray keeps a file there, too.
    assert len(reported) == 3 and all(any(folder.iterdir()) for folder in reported)


def test_lightnings_strategies_give_gloos_results(tmp_path: Path) -> None:
    _need("lightning")
    client = str(Path(__file__).with_name("clients") / "lightning_client.py")
    program = [_PYTHON, "-m", "lockstep.alias", client, *_free_ports(13)]  # Thirteen trainings.
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **job} for rank in (0, 1)]
    for output in _run([program] * 2, tmp_path, ranks):
        for trained in ("fabric: DDP", "fabric: FSDP2", "fabric: DeepSpeed", "trainer: DDP", "trainer: DeepSpeed"):
            assert f"with_{trained}" in output, output
