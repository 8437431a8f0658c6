# SPDX-License-Identifier: Apache-2.0
"""Accelerate's ParallelismConfig: how processes divide samples and layers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import device_mesh as meshes

from ._core import ConfigError

__all__ = ["DeepSpeedSequenceParallelConfig", "ParallelismConfig", "TorchContextParallelConfig", "launched_size"]

_WHERE = "ParallelismConfig"
_ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "sp", "tp", "ep")  # Of the mesh's dimensions.


def _launched_sizes() -> dict[str, int]:
    """Returns the sizes of `lockstep launch --mesh`. Throws ConfigError for a dimension that ParallelismConfig lacks."""
    sizes = {}
    for part in filter(None, os.environ.get("LOCKSTEP_MESH", "").split(",")):
        name, _, size = part.partition("=")
        if name not in _ORDER or not size.isdigit():
            raise ConfigError(f"[LOCKSTEP_MESH] the mesh has '{part}'; expected NAME=SIZE with one of {', '.join(_ORDER)}")
        sizes[f"{name}_size"] = int(size)
    return sizes


def launched_size(name: str) -> int | None:
    """Returns the size of a dimension, such as "pp_size", of `lockstep launch --mesh`; None if the job has no such mesh."""
    sizes = _launched_sizes()
    return sizes.get(name, 1) if sizes else None


def _size(name: str, given: int | None) -> int:
    """Returns a size, or that of LOCKSTEP_MESH or PARALLELISM_CONFIG_<NAME>, or 1. Throws ConfigError for less than 1."""
    if given is None:
        launched = _launched_sizes() or {name: int(os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}", "1"))}
        size = launched.get(name, 1)
    else:
        size = given
    if size < 1:
        raise ConfigError(f"[{_WHERE}] {name} is {size}; expected at least 1")
    return size


@dataclass
class TorchContextParallelConfig:
    """Options of ParallelismConfig's `cp_size`, with the variables of Accelerate.

    `cp_comm_strategy` is how torch sends keys, "allgather" or "alltoall"; its results do not depend on it. Lockstep has
    ring attention, which sends them from process to process as torch's "alltoall" does, and takes either value.
    """

    cp_comm_strategy: str | None = None

    def __post_init__(self) -> None:
        if self.cp_comm_strategy is None:
            self.cp_comm_strategy = os.environ.get("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather")
        if self.cp_comm_strategy not in ("allgather", "alltoall"):
            raise ConfigError(
                f"[TorchContextParallelConfig] cp_comm_strategy is {self.cp_comm_strategy!r}; expected 'allgather' or "
                "'alltoall'"
            )


@dataclass
class DeepSpeedSequenceParallelConfig:
    """Options of ParallelismConfig's `sp_size`, with the variables of Accelerate.

    `sp_seq_length` is the length of all sequences; another one is a ConfigError, unless `sp_seq_length_is_variable`, which
    is the default. `sp_attn_implementation`: "sdpa", the one that Lockstep divides, or None.
    """

    sp_seq_length: int | None = None
    sp_seq_length_is_variable: bool | None = None
    sp_attn_implementation: str | None = None

    def __post_init__(self) -> None:
        variable = "PARALLELISM_CONFIG_SP_"
        if self.sp_seq_length_is_variable is None:
            self.sp_seq_length_is_variable = os.environ.get(f"{variable}SEQ_LENGTH_IS_VARIABLE", "true").lower() == "true"
        if self.sp_seq_length is None and not self.sp_seq_length_is_variable:
            given = os.environ.get(f"{variable}SEQ_LENGTH", "None")
            if not given.isdigit():
                raise ConfigError(
                    "[DeepSpeedSequenceParallelConfig] sp_seq_length_is_variable is False, and sp_seq_length is None; "
                    "expected the length of the sequences"
                )
            self.sp_seq_length = int(given)
        if self.sp_attn_implementation is None:
            self.sp_attn_implementation = os.environ.get(f"{variable}ATTN_IMPLEMENTATION")
        if self.sp_attn_implementation not in (None, "sdpa"):
            raise ConfigError(
                f"[DeepSpeedSequenceParallelConfig] sp_attn_implementation is {self.sp_attn_implementation!r}; expected "
                "'sdpa', whose attention Lockstep divides"
            )


@dataclass
class ParallelismConfig:
    """How many processes have copies of the model, and how many share a copy. A size that is None is a variable's.

    `dp_replicate_size` is the number of copies; `dp_shard_size` that of the processes that share one, which needs
    fsdp_plugin. With both, the processes of a host share a copy: HYBRID_SHARD. Sizes of 1 mean that all processes have
    copies.

    `tp_size` processes with consecutive numbers divide the layers of a model; `tp_handler`, a TorchTensorParallelConfig,
    says which; without it, the model's own `tp_plan` does, as transformers' models have it. They read the same batches.
    `ep_size` processes with consecutive numbers, each with samples of its own, divide the experts of layers such as
    lockstep.deepspeed.moe.layer.MoE; Accelerate lacks it.

    `pp_size` is the number of stages of a pipeline, lockstep.deepspeed.pipe.PipelineModule; Accelerate lacks it, too.

    `cp_size` or `sp_size` processes divide each sequence within Accelerator.maybe_context_parallel(): `cp_size` by ring
    attention, with any number of heads; `sp_size` by DeepSpeed's Ulysses. `cp_handler` is a TorchContextParallelConfig,
    `sp_handler` a DeepSpeedSequenceParallelConfig.
    """

    dp_replicate_size: int = None  # type: ignore[assignment]  # Set by __post_init__.
    dp_shard_size: int = None  # type: ignore[assignment]
    tp_size: int = None  # type: ignore[assignment]
    cp_size: int = None  # type: ignore[assignment]
    cp_backend: str | None = None
    sp_size: int = None  # type: ignore[assignment]
    sp_backend: str | None = None
    tp_handler: Any = None
    cp_handler: Any = None
    sp_handler: Any = None
    ep_size: int = None  # type: ignore[assignment]
    pp_size: int = None  # type: ignore[assignment]
    _pipeline: dict[str, int | None] = field(default_factory=dict, init=False, repr=False, compare=False)  # MegatronLMPlugin's.
    device_mesh: meshes.DeviceMesh | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size", "ep_size", "pp_size"):
            setattr(self, name, _size(name, getattr(self, name)))
        if self.cp_size > 1 and self.sp_size > 1:
            raise ConfigError(
                f"[{_WHERE}] cp_size is {self.cp_size} and sp_size is {self.sp_size}, which both divide the sequence; "
                "expected one of them: cp_size for ring attention, sp_size for Ulysses"
            )
        for name, known in (("cp_backend", "torch"), ("sp_backend", "deepspeed")):
            if getattr(self, name) not in (None, known):
                raise ConfigError(f"[{_WHERE}] {name} is {getattr(self, name)!r}; expected {known!r} or None")
            setattr(self, name, known)
        for name, kind in (("cp", TorchContextParallelConfig), ("sp", DeepSpeedSequenceParallelConfig)):
            handler = getattr(self, f"{name}_handler")
            if handler is None and getattr(self, f"{name}_size") > 1:
                setattr(self, f"{name}_handler", kind())
            elif handler is not None and not isinstance(handler, kind):
                raise ConfigError(
                    f"[{_WHERE}] {name}_handler is a {type(handler).__name__}; expected a {kind.__name__}"
                )

    # --- sizes
    @property
    def data_parallel_size(self) -> int:
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        return self.pp_size * self.tp_size * self.cp_size * self.sp_size

    @property
    def total_size(self) -> int:
        return self.data_parallel_size * self.non_data_parallel_size

    @property
    def dp_replicate_enabled(self) -> bool:
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        return self.tp_size > 1

    @property
    def pp_enabled(self) -> bool:
        return self.pp_size > 1

    @property
    def cp_enabled(self) -> bool:
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        return self.sp_size > 1

    @property
    def is_hybrid(self) -> bool:
        """Whether several groups of processes each share a copy of the model."""
        return self.dp_shard_enabled and self.dp_replicate_enabled

    # --- names of the mesh's dimensions
    @property
    def dp_dim_names(self) -> list[str]:
        """The dimensions whose processes get batches of their own."""
        sizes = {"dp_replicate": self.dp_replicate_size, "dp_shard": self.dp_shard_size}
        return [name for name, size in sizes.items() if size > 1]

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The dimensions whose processes get the same batches."""
        return [name for name in ("tp", "cp", "sp", "pp") if getattr(self, f"{name}_size") > 1]

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The dimensions over which a copy of the model is sharded."""
        return [name for name in ("dp_shard", "cp") if getattr(self, f"{name}_size") > 1]

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The dimensions over which losses are averaged."""
        return self.dp_dim_names + (["cp"] if self.cp_enabled else [])

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The dimensions that torch's FSDP takes."""
        return [*(["dp_replicate"] if self.dp_replicate_enabled else []), "dp_shard_cp"]

    @property
    def active_mesh_dims(self) -> list[str]:
        return self.dp_dim_names + self.non_dp_dim_names

    @property
    def _mesh_text(self) -> str | None:
        """The mesh as the C++ library reads it; None if all processes compute full models."""
        if self.non_data_parallel_size * self.ep_size == 1:
            return None
        return ",".join(f"{name}={getattr(self, f'{name}_size')}" for name in _ORDER)

    def _get_mesh(self) -> tuple[tuple[Any, ...], ...]:
        """Returns the names and the sizes of the mesh's dimensions; an empty tuple without any."""
        names = sorted(self.active_mesh_dims, key=_ORDER.index)
        return (tuple(names), tuple(getattr(self, f"{name}_size") for name in names)) if names else ()

    def build_device_mesh(self, device_type: str) -> meshes.DeviceMesh | None:
        """Returns a mesh of torch.distributed with the joint dimensions dp, dp_shard_cp and dp_cp; None without any.

        torch.distributed must be initialised. Collective.
        """
        mesh = self._get_mesh()
        if not mesh:
            return None
        names, shape = mesh
        built = meshes.init_device_mesh(device_type, shape, mesh_dim_names=names)
        for parts, joint in (
            (self.dp_dim_names, "dp"),
            (self.dp_shard_cp_dim_names, "dp_shard_cp"),
            (self.dp_cp_dim_names, "dp_cp"),
        ):
            if parts:
                built[parts]._flatten(joint)  # type: ignore[index]  # It takes a list, too.
        return built

    def get_device_mesh(self, device_type: str | None = None) -> meshes.DeviceMesh | None:
        """Returns the mesh, which the first call builds on `device_type`. Throws ConfigError for another device."""
        if self.device_mesh is None:
            if device_type is None:
                raise ConfigError(f"[{_WHERE}] the mesh does not exist yet; expected a device_type, such as 'cpu'")
            self.device_mesh = self.build_device_mesh(device_type)
        elif device_type not in (None, self.device_mesh.device_type):
            raise ConfigError(
                f"[{_WHERE}] the mesh is on {self.device_mesh.device_type}; got device_type {device_type!r}; omit it"
            )
        return self.device_mesh

    def resolve(self, num_processes: int, local_size: int, shards: bool) -> None:
        """Checks the sizes against a job.

        `local_size` is the number of processes of a host; `shards` says whether the job shards models. Sizes of 1 become
        those of the job. Throws ConfigError for sizes that are not the job's.
        """
        rest = num_processes // self.non_data_parallel_size
        if self.data_parallel_size == 1:
            self.dp_shard_size, self.dp_replicate_size = (rest, 1) if shards else (1, rest)
        if self.total_size != num_processes:
            raise ConfigError(
                f"[{_WHERE}] dp_replicate_size {self.dp_replicate_size} times dp_shard_size {self.dp_shard_size} times "
                f"cp_size {self.cp_size} times sp_size {self.sp_size} times tp_size {self.tp_size} "
                f"{f'times pp_size {self.pp_size} ' if self.pp_enabled else ''}is {self.total_size}; "
                f"expected the number of processes, {num_processes}"
            )
        if self.dp_shard_enabled and not shards:
            raise ConfigError(
                f"[{_WHERE}] dp_shard_size is {self.dp_shard_size}, but the Accelerator shards no model; expected "
                "fsdp_plugin=FullyShardedDataParallelPlugin(), or dp_shard_size=1"
            )
        if shards and not self.dp_shard_enabled and rest > 1:
            raise ConfigError(
                f"[{_WHERE}] dp_shard_size is 1, but the Accelerator shards models; expected dp_shard_size="
                f"{rest}, or no fsdp_plugin"
            )
        if self.is_hybrid and self.dp_shard_size != local_size:
            raise ConfigError(
                f"[{_WHERE}] dp_shard_size is {self.dp_shard_size}, with several copies of the model; expected the "
                f"number of processes of a host, {local_size}, since the processes of a host share a copy"
            )
