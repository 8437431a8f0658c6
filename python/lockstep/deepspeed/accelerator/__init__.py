# SPDX-License-Identifier: Apache-2.0
"""deepspeed.accelerator: the device of this process, under DeepSpeed's names."""

from __future__ import annotations

from typing import Any

import torch

from ...state import PartialState, wants_cpu
from ...utils.imports import is_cuda_available

__all__ = ["TorchDevice", "get_accelerator"]


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

    def manual_seed(self, seed: int) -> None:
        (torch.cuda if self._on_gpu else torch).manual_seed(seed)

    manual_seed_all = manual_seed

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

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory() if self._on_gpu else tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_name") != "cuda":
            raise AttributeError(f"the accelerator {self.__dict__.get('_name')!r} has no attribute {name!r}")
        return getattr(torch.cuda, name)


def _resident_bytes(field: str = "VmRSS") -> int:
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


_accelerator: TorchDevice | None = None


def get_accelerator() -> TorchDevice:
    """Returns the one object of this process."""
    global _accelerator
    if _accelerator is None:
        _accelerator = TorchDevice()
    return _accelerator
