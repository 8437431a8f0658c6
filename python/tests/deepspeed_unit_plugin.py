# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs DeepSpeed's unit tests against lockstep.deepspeed, each rank as a fork of pytest's process.

lockstep.alias makes `import deepspeed` give lockstep.deepspeed. others_modules.py has the rest.
LOCKSTEP_DEEPSPEED_SOURCES is the folder of DeepSpeed's sources.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pkgutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lockstep.alias
import lockstep.deepspeed
import pytest
import torch
from others_modules import MissingModules, missing_names, pytest_collection_modifyitems, stand_in  # noqa: F401

SECONDS = 120
# Constants of DeepSpeed's modules that tests read, by their private paths.
CONSTANTS = {
    "deepspeed.git_version_info.torch_info": {
        "version": "0.0",
        "cuda_version": "11.0",  # The tests skip bf16 below these versions, also on a CPU.
        "nccl_version": "2.10",
        "hip_version": "0.0",
        "bf16_support": True,
    },
    "deepspeed.runtime.config.ADAM_OPTIMIZER": "adam",
    "deepspeed.runtime.swap_tensor.MIN_SWAPPABLE_BYTES": 1024 * 1024,
}


# --- names
def _stand_in(path: str) -> Any:
    return CONSTANTS[path] if path in CONSTANTS else stand_in(path)


def _add_stand_ins() -> None:
    """Adds the modules of DeepSpeed that Lockstep lacks, and the names that Lockstep's modules lack."""
    existing = {info.name for info in pkgutil.walk_packages(lockstep.deepspeed.__path__, "deepspeed.")}
    for name in existing:
        vars(importlib.import_module(name)).setdefault("__getattr__", missing_names(name, make=_stand_in))
    sys.meta_path.insert(0, MissingModules("deepspeed", existing.__contains__, _stand_in))
    cpuinfo = types.ModuleType("cpuinfo")  # A package by which tests find the processors of AMD.
    vars(cpuinfo)["get_cpu_info"] = lambda: {"vendor_id_raw": "unknown"}
    sys.modules.setdefault("cpuinfo", cpuinfo)
    hjson = types.ModuleType("hjson")  # A package by which tests read JSON.
    vars(hjson).update(load=json.load, loads=json.loads, dumps=json.dumps, dump=json.dump)
    sys.modules.setdefault("hjson", hjson)


# --- ranks
def _run_ranks(body: Callable[[], Any], ranks: int, connects: bool, module: Any = None) -> None:
    """Runs `body` in forks. Fails or skips the test if one of them does."""
    if hasattr(module, "DDP"):  # Lockstep does not initialise torch.distributed.
        body = functools.partial(_with_process_group, body, ranks, tempfile.mktemp())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    forks = [_fork(body, rank, ranks, port, connects) for rank in range(ranks)]
    results = _wait(forks)
    for kind, end in (("failed", pytest.fail), ("skipped", pytest.skip)):
        texts = [f"rank {rank}: {text}" for rank, (result, text) in enumerate(results) if result == kind]
        if texts:
            end("\n".join(texts), **({"pytrace": False} if kind == "failed" else {}))


def _with_process_group(body: Callable[[], Any], ranks: int, file: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(os.environ["RANK"]), world_size=ranks
    )
    body()


def _fork(body: Callable[[], Any], rank: int, ranks: int, port: int, connects: bool) -> tuple[int, int]:
    """Returns the process and the reading end of a pipe with its result."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_SIZE=str(ranks))
    result = _result_of(body, connects)
    os.write(writing, json.dumps(result)[:60000].encode())
    os._exit(0)


def _result_of(body: Callable[[], Any], connects: bool) -> tuple[str, str]:
    try:
        if connects:
            lockstep.deepspeed.init_distributed(verbose=False)
        body()
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped.msg)
    except BaseException:
        return "failed", traceback.format_exc()[-6000:]
    return "passed", ""


def _wait(forks: list[tuple[int, int]]) -> list[tuple[str, str]]:
    results = []
    end = time.monotonic() + SECONDS
    for process, reading in forks:
        ended, status = os.waitpid(process, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.002)
            ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
        if text:
            results.append(tuple(json.loads(text)))
        else:
            results.append(("failed", f"ended with {status}" if ended else f"did not end within {SECONDS} s"))
    return results


# --- parts of the tests that are DeepSpeed's own, or fit GPUs only
# LOCKSTEP_DEEPSPEED_DEFAULTS: keys that initialize() adds. LOCKSTEP_DEEPSPEED_FLOAT32: the device has no 16-bit dtype.
def _reduce_flags(flag: bool, op: Callable[[list[bool]], bool] = all) -> bool:
    """Returns `op` of all ranks' flags. The tests' function creates a tensor on a device that is a number."""
    flags = [flag] * lockstep.deepspeed.comm.get_world_size()
    lockstep.deepspeed.comm.all_gather_object(flags, flag)
    return op(flags)


def _raises(original: Callable[..., Any], expected: Any, *args: Any, **kwargs: Any) -> Any:
    """Expects Lockstep's errors where DeepSpeed asserts."""
    if expected is AssertionError:
        expected = (AssertionError, lockstep.deepspeed.DeepSpeedConfigError)
    return original(expected, *args, **kwargs)


def _data_parallel(original: type, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """Returns DistributedDataParallel of a model on the CPU, where device_ids are an error."""
    for name in ("device_ids", "output_device"):
        options.pop(name, None)
    return original(model, **options)


def _with_defaults(initialize: Callable[..., Any], defaults: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Adds keys that the test's configuration lacks; those named "bf16" or "fp16" only to one that enables it."""
    config = kwargs.get("config")
    if isinstance(config, dict):
        on = [name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled")]
        added: dict[str, Any] = {}
        for name, value in defaults.items():
            if name not in ("bf16", "fp16"):
                added[name] = value
            elif name in on:
                added.update(value)
        kwargs["config"] = _merged(added, config)
    return initialize(*args, **kwargs)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {**under, **over}
    for name in under.keys() & over.keys():
        if isinstance(under[name], dict) and isinstance(over[name], dict):
            both[name] = _merged(under[name], over[name])
    return both


# --- pytest's hooks
def _fixture_of_class(name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
    """Returns a fixture that runs a class's run(), as unit.common.DistributedFixture does."""
    if not bases:
        return type(name, (), names)
    cls = type(name, (), {"world_size": 2, "init_distributed": True, **names})

    def fixture(**given: Any) -> None:
        _run_ranks(lambda: cls().run(**given), cls.world_size, cls.init_distributed)

    parameters = list(inspect.signature(names["run"]).parameters.values())[1:]
    fixture.__signature__ = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    fixture.__name__ = name
    return pytest.fixture(fixture)


class _FixtureClass(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
        return super().__new__(mcs, name, bases, names) if not bases else _fixture_of_class(name, bases, names)


class DistributedFixture(metaclass=_FixtureClass):
    """The base of fixtures that run on several ranks."""


def pytest_configure(config: pytest.Config) -> None:
    for name in ("sequential", "nightly", "world_size", "inference"):
        config.addinivalue_line("markers", f"{name}: a mark of DeepSpeed's tests")
    os.environ.update(LOCKSTEP_USE_CPU="1", OMP_NUM_THREADS="1", LOCKSTEP_TIMEOUT_MS="20000")
    _add_stand_ins()
    if os.environ.get("LOCKSTEP_DEEPSPEED_FLOAT32"):  # The tests then compare with float32's numbers.
        for name in ("is_bf16_supported", "is_fp16_supported"):
            setattr(lockstep.deepspeed.accelerator.TorchDevice, name, lambda self: False)
    sys.path.insert(0, str(Path(os.environ["LOCKSTEP_DEEPSPEED_SOURCES"]) / "tests"))
    common = importlib.import_module("unit.common")
    vars(common).update(DistributedFixture=DistributedFixture, reduce_boolean_flags=_reduce_flags)
    root = lockstep.deepspeed
    defaults = json.loads(os.environ.get("LOCKSTEP_DEEPSPEED_DEFAULTS", "{}"))
    if defaults:
        vars(root)["initialize"] = functools.partial(_with_defaults, root.initialize, defaults)
    parallel = torch.nn.parallel
    vars(parallel)["DistributedDataParallel"] = functools.partial(_data_parallel, parallel.DistributedDataParallel)
    vars(pytest)["raises"] = functools.partial(_raises, pytest.raises)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    cls = pyfuncitem.cls
    if not getattr(cls, "is_dist_test", False):
        _run_ranks(lambda: pyfuncitem.obj(**given), 1, connects=False)
        return True
    mark = next((mark for mark in getattr(pyfuncitem.function, "pytestmark", []) if mark.name == "world_size"), None)
    sizes = mark.args[0] if mark else given.get("world_size", cls.world_size)
    for ranks in [sizes] if isinstance(sizes, int) else sizes:
        _run_ranks(lambda: pyfuncitem.obj(**given), ranks, cls.init_distributed, pyfuncitem.module)
    return True
