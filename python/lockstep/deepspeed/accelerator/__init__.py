# SPDX-License-Identifier: Apache-2.0
"""deepspeed.accelerator: the device of this process, under DeepSpeed's names."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from ..._environment import is_cuda_available, wants_cpu
from ...state import PartialState

__all__ = ["DeepSpeedAccelerator", "TorchDevice", "get_accelerator", "is_current_accelerator_supported"]


class TorchDevice:
    """The GPU of this process, or the CPU. Names that it lacks are those of torch.cuda, on a GPU only."""

    def __init__(self) -> None:
        on_gpu = is_cuda_available() and not wants_cpu(None)
        self._name = "cuda" if on_gpu else "cpu"
        self._communication_backend_name = "nccl" if on_gpu else "gloo"

    @property
    def _on_gpu(self) -> bool:
        return self._name == "cuda"

    def is_available(self) -> bool:
        return True

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None or not self._on_gpu else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return torch.device(self.device_name(device_index))

    def current_device(self) -> int:
        return torch.cuda.current_device() if self._on_gpu else 0

    def current_device_name(self) -> str:
        return f"cuda:{torch.cuda.current_device()}" if self._on_gpu else "cpu"

    def device_count(self) -> int:
        if self._on_gpu:
            return torch.cuda.device_count()
        return PartialState().world.local_size if PartialState._shared_state else 1

    def set_device(self, device_index: int) -> None:
        if self._on_gpu:
            torch.cuda.set_device(device_index)

    def communication_backend_name(self) -> str:
        return self._communication_backend_name

    def is_synchronized_device(self) -> bool:
        return not self._on_gpu

    def synchronize(self, device_index: int | None = None) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(device_index)

    def empty_cache(self) -> None:
        if self._on_gpu:
            torch.cuda.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Returns the bytes of tensors on the GPU, or on a CPU those that the process has in memory."""
        return torch.cuda.memory_allocated(device_index) if self._on_gpu else _resident_bytes()

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_allocated(device_index) if self._on_gpu else _resident_bytes("VmHWM")

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_peak_memory_stats

    def memory_reserved(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_reserved(device_index) if self._on_gpu else _resident_bytes()

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_reserved(device_index) if self._on_gpu else self.max_memory_allocated()

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """Returns torch.cuda's numbers, or on a CPU the bytes of the process under the two main names."""
        if self._on_gpu:
            return torch.cuda.memory_stats(device_index)
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": self.max_memory_allocated(),
        }

    def total_memory(self, device_index: int | None = None) -> int:
        """Returns the bytes of the GPU's memory, or on a CPU of the host's."""
        return torch.cuda.mem_get_info(device_index)[1] if self._on_gpu else _host_bytes("MemTotal")

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0] if self._on_gpu else _host_bytes("MemAvailable")

    # --- random numbers, of the GPU or the CPU
    def manual_seed(self, seed: int) -> None:
        (torch.cuda if self._on_gpu else torch).manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.cuda.initial_seed() if self._on_gpu else torch.initial_seed()

    def default_generator(self, device_index: int = 0) -> torch.Generator:
        return torch.cuda.default_generators[device_index] if self._on_gpu else torch.default_generator

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        if self._on_gpu:
            return torch.cuda.get_rng_state("cuda" if device_index is None else device_index)
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        if self._on_gpu:
            torch.cuda.set_rng_state(new_state, "cuda" if device_index is None else device_index)
        else:
            torch.set_rng_state(new_state)

    def random(self) -> Any:
        return torch.random

    def is_bf16_supported(self) -> bool:
        return torch.cuda.is_bf16_supported() if self._on_gpu else True

    def is_fp16_supported(self) -> bool:
        """Returns True: Lockstep computes in fp16 on a CPU, too."""
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def pin_memory(
        self, tensor: torch.Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        return tensor.pin_memory() if self._on_gpu else tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned() if self._on_gpu else False

    # --- streams and ranges of the profiler; a CPU has neither
    def stream(self, stream: Any) -> Any:
        return torch.cuda.stream(stream) if self._on_gpu else nullcontext()

    def current_stream(self, device_index: int | None = None) -> Any:
        return torch.cuda.current_stream(device_index) if self._on_gpu else None

    def default_stream(self, device_index: int | None = None) -> Any:
        return torch.cuda.default_stream(device_index) if self._on_gpu else None

    def range_push(self, msg: str) -> None:
        if self._on_gpu:
            torch.cuda.nvtx.range_push(msg)

    def range_pop(self) -> None:
        if self._on_gpu:
            torch.cuda.nvtx.range_pop()

    def lazy_call(self, callback: Any) -> Any:
        return callback()

    def is_triton_supported(self) -> bool:
        return self._on_gpu and torch.cuda.get_device_capability()[0] >= 8

    def use_host_timers(self) -> bool:
        return self.is_synchronized_device()

    resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_name") != "cuda":
            raise AttributeError(f"the accelerator {self.__dict__.get('_name')!r} has no attribute {name!r}")
        return getattr(torch.cuda, name)


DeepSpeedAccelerator = TorchDevice  # DeepSpeed's name of the base of its devices.


def _resident_bytes(field: str = "VmRSS") -> int:
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def _host_bytes(field: str) -> int:
    with open("/proc/meminfo", encoding="utf-8") as meminfo:
        return next((int(line.split()[1]) * 1024 for line in meminfo if line.startswith(f"{field}:")), 0)


_accelerator: TorchDevice | None = None


def get_accelerator() -> TorchDevice:
    """Returns the one object of this process."""
    global _accelerator
    if _accelerator is None:
        _accelerator = TorchDevice()
    return _accelerator


def is_current_accelerator_supported() -> bool:
    """Returns whether Lockstep supports the device: it selects no other."""
    return True
