# SPDX-License-Identifier: Apache-2.0
"""Starting a job's processes from a notebook or a running program, by fork."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ._core import ConfigError, Error, is_set_by_launcher
from ._environment import patch_environment, wants_cpu
from .state import AcceleratorState, GradientState, PartialState
from .utils.environment import get_current_device_type
from .utils.other import get_free_port

__all__ = ["debug_launcher", "notebook_launcher"]

_SECONDS_BEFORE_SIGTERM = 0.1  # After the first failure: others that fail for the same reason end by themselves.
_GRACE_SECONDS = 5.0  # Between SIGTERM and SIGKILL.
_PR_SET_PDEATHSIG = 1


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = "29500",
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: dict[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Calls `function(*args)` in `num_processes` processes of this host, and waits for them.

    The processes are forks of this one: they have its imports and variables. With one process, the function runs in
    this process. `num_processes` is by default the number of GPUs. On several hosts, call it on each of them with its
    `node_rank`; `master_addr` and `use_port` are those of host 0. Port 0 is any free one, on one host.

    When a process fails, the others end, and an Error, which is torch's ChildFailedError, too, has its traceback;
    before, all of them start again up to `max_restarts` times. An interrupt ends them, too. A failure is noticed at
    once, sooner than `monitor_interval` seconds. Torch uses OMP_NUM_THREADS threads in each process, else one: a fork
    cannot use this process's threads.

    Throws ConfigError if an Accelerator exists or CUDA is initialized in this process.
    """
    where = "notebook_launcher"
    if monitor_interval <= 0:
        raise ConfigError(f"[{where}] monitor_interval is {monitor_interval}; expected more than 0")
    if log_line_prefix_template is not None:
        raise ConfigError(f"[{where}] log_line_prefix_template is not supported; a notebook shows the output as it is")
    precision = _check_precision(where, mixed_precision)
    count = _check_count(where, num_processes)
    if not 0 <= node_rank < num_nodes:
        raise ConfigError(f"[{where}] node_rank is {node_rank}; expected 0 to {num_nodes - 1}")
    if rdzv_backend not in ("static", "c10d"):
        raise ConfigError(f"[{where}] rdzv_backend is {rdzv_backend!r}; expected static or c10d, which are equivalent")
    if rdzv_endpoint:
        master_addr, _, use_port = rdzv_endpoint.rpartition(":")
    variables = {"ACCELERATE_MIXED_PRECISION": precision, **_rendezvous_variables(where, rdzv_conf, rdzv_id)}
    if count * num_nodes == 1:
        _run_here(function, args, variables)
        return
    _refuse_existing_accelerator(where)
    if torch.cuda.is_initialized():
        raise ConfigError(
            f"[{where}] CUDA is initialized in this process, and forks cannot use it; restart the notebook, and use "
            "the GPU only in the launched function"
        )
    port = int(use_port)
    if port == 0:
        if num_nodes > 1:
            raise ConfigError(f"[{where}] use_port is 0; expected a fixed port with {num_nodes} hosts")
        port = get_free_port()
    variables |= {"MASTER_ADDR": master_addr, "MASTER_PORT": str(port)}
    device = "CPU" if wants_cpu(None) else get_current_device_type()[0].upper()
    print(f"Launching training on {count} {device}s.", flush=True)
    for attempt in range(max_restarts + 1):
        variables["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        ranks = _RankSet(where, function, tuple(args), count, node_rank * count, num_nodes * count, variables)
        try:
            ranks.run()
            return
        except Error:
            if attempt == max_restarts:
                raise


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> None:
    """Calls `function(*args)` in several processes on the CPU, for tests, and waits for them.

    See notebook_launcher. Throws Error with the traceback of the first process that failed, and ConfigError if an
    Accelerator exists in this process.
    """
    where = "debug_launcher"
    if num_processes < 1:
        raise ConfigError(f"[{where}] num_processes is {num_processes}; expected at least 1")
    _refuse_existing_accelerator(where)
    variables = {
        "ACCELERATE_MIXED_PRECISION": "no",
        "ACCELERATE_USE_CPU": "yes",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(get_free_port()),
    }
    _RankSet(where, function, tuple(args), num_processes, 0, num_processes, variables).run()


def _check_precision(where: str, precision: str) -> str:
    name = str(precision).lower()
    if name not in ("no", "fp16", "bf16"):
        raise ConfigError(f"[{where}] mixed_precision is {precision!r}; expected no, fp16 or bf16")
    return name


def _check_count(where: str, num_processes: int | None) -> int:
    if num_processes is None and not wants_cpu(None) and get_current_device_type()[0] == "cuda":
        num_processes = torch.cuda.device_count()
    if num_processes is None or num_processes < 1:
        raise ConfigError(f"[{where}] num_processes is {num_processes}; expected at least 1; pass num_processes=")
    return num_processes


def _rendezvous_variables(where: str, conf: dict[str, Any] | None, run_id: str) -> dict[str, str]:
    variables = {"TORCHELASTIC_RUN_ID": str(run_id)}
    for name, value in (conf or {}).items():
        if name in ("timeout", "join_timeout"):
            variables["LOCKSTEP_JOIN_TIMEOUT_MS"] = str(int(float(value) * 1000))
        elif name != "rank":
            raise ConfigError(f"[{where}] unknown key {name!r} of rdzv_conf; expected timeout or join_timeout")
    return variables


def _refuse_existing_accelerator(where: str) -> None:
    if AcceleratorState._shared_state:
        raise ConfigError(
            f"[{where}] an Accelerator exists in this process, and its forks cannot use it; create the Accelerator "
            "only in the launched function, and restart the notebook"
        )


def _run_here(function: Callable[..., Any], args: Sequence[Any], variables: dict[str, str]) -> None:
    print(f"Launching training on one {get_current_device_type()[0].upper()}.", flush=True)
    with patch_environment(**variables):
        function(*args)


def _failure(message: str, rank: int, local_rank: int, pid: int, code: int) -> Error:
    """Returns an Error that is torch's ChildFailedError, too, which programs for Accelerate catch."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    class RankError(Error, ChildFailedError):
        def __init__(self) -> None:
            Exception.__init__(self, message)
            self.name = "lockstep"
            self.failures = {rank: ProcessFailure(local_rank, pid, code, "<N/A>")}

    return RankError()


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Lets an interrupt take effect after the block. Python drops one that arrives in the hooks of os.fork."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield  # Python does not handle the interrupt, or not in this thread.
        return
    arrived: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        signal.raise_signal(signal.SIGINT)


class _RankSet:
    """The processes of one attempt."""

    def __init__(
        self,
        where: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        count: int,
        first_rank: int,
        world_size: int,
        variables: dict[str, str],
    ) -> None:
        self.where = where
        self.function = function
        self.args = args
        self.count = count
        self.first_rank = first_rank
        self.variables = {**variables, "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(count)}
        self.processes: list[Any] = []
        self.reports: list[Any] = []  # A pipe of each process, for a traceback.

    def run(self) -> None:
        """Starts the processes and waits for them. Throws Error for the first one that fails. Leaves none behind."""
        context = multiprocessing.get_context("fork")
        try:
            with _interrupts_deferred():
                for local_rank in range(self.count):
                    receiver, sender = context.Pipe(duplex=False)
                    self.reports.append(receiver)
                    process = context.Process(target=self._run_rank, args=(local_rank, sender, os.getpid()))
                    process.start()
                    self.processes.append(process)
                    sender.close()
            self._wait()
        finally:
            self._end()

    def _wait(self) -> None:
        running = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        while running:
            for sentinel in multiprocessing.connection.wait(list(running)):
                self._check(running.pop(sentinel))

    def _check(self, local_rank: int) -> None:
        process = self.processes[local_rank]
        process.join()
        if process.exitcode == 0:
            return
        rank = self.first_rank + local_rank
        reason = self._reason(local_rank)
        raise _failure(f"[{self.where}] process {rank} {reason}", rank, local_rank, process.pid, process.exitcode)

    def _reason(self, local_rank: int) -> str:
        if self.reports[local_rank].poll():
            try:
                return f"failed:\n\n{self.reports[local_rank].recv()}"
            except EOFError:
                pass  # The process ended without a report.
        code = self.processes[local_rank].exitcode
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}; SIGKILL is often a lack of memory"
        return f"exited with code {code}; expected 0"

    def _end(self) -> None:
        """Ends the running processes: by SIGTERM, and by SIGKILL after a few seconds."""
        for process in self._running_after(_SECONDS_BEFORE_SIGTERM):
            process.terminate()
        for process in self._running_after(_GRACE_SECONDS):
            process.kill()
            process.join()
        for report in self.reports:
            report.close()

    def _running_after(self, seconds: float) -> list[Any]:
        """Waits for the processes for at most `seconds`, and returns those that are still running."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process for process in self.processes if process.is_alive()]

    def _run_rank(self, local_rank: int, report: Any, parent: int) -> None:
        """Runs in the new process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for name in filter(is_set_by_launcher, list(os.environ)):
            del os.environ[name]
        os.environ.update(self.variables)
        os.environ |= {
            "RANK": str(self.first_rank + local_rank),
            "LOCAL_RANK": str(local_rank),
            "FORK_LAUNCHED": "1",
        }
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._forget_state()
        try:
            self.function(*self.args)
        except Exception:
            report.send(traceback.format_exc())
            raise SystemExit(1) from None

    @staticmethod
    def _forget_state() -> None:
        """Drops a state of one process that the notebook created."""
        PartialState._reset_state()
        GradientState._reset_state()
