# SPDX-License-Identifier: Apache-2.0
"""The arguments that a prepared loader keeps of the given one."""
from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from .. import _core

# The arguments of a DataLoader that a prepared one keeps.
_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def given_batch_size(loader: DataLoader) -> int:
    """Returns the rows of a batch of the given loader; 1 if its batch sampler has no batch_size."""
    return getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1


def refuse_mesh(where: str, mesh: Any) -> None:
    """Throws ConfigError for a mesh of devices, which tells Accelerate what processes get the same batches."""
    if mesh is not None:
        raise _core.ConfigError(
            f"[{where}] torch_device_mesh is given; expected None, since every process gets batches of its own; remove it"
        )


def _kept_arguments(loader: DataLoader) -> dict[str, Any]:
    arguments = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if arguments.get("num_workers") == 0:
        arguments.pop("prefetch_factor", None)
        arguments.pop("multiprocessing_context", None)
    if not arguments.get("pin_memory_device"):
        arguments.pop("pin_memory_device", None)
    return arguments
