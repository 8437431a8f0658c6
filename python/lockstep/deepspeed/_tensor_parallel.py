# SPDX-License-Identifier: Apache-2.0
"""Ranks that divide the layers of an engine's model: tp_model_init, and the plan of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from .._core import ConfigError
from .._own_module import own_module
from ..parallelism_config import ParallelismConfig, launched_size
from ..state import AcceleratorState, PartialState
from ..utils.dataclasses import TorchTensorParallelConfig
from ._config import DTYPES, GivenConfig, expect_equal, given_config

__all__ = ["give_plan", "set_autotp_mode", "share_mesh", "tensor_ranks_of", "tp_model_init", "with_tensor_ranks"]

_EXAMPLE = "_lockstep_tensor_example"  # The attribute of a model with the function of tp_model_init's `example`.
_recorded: tuple[int, torch.dtype] | None = None  # tp_model_init sets it for all engines of the job, as in DeepSpeed.
# Functions of Megatron's mpu, and DeepSpeed's names of them, whose ranks an engine of undivided batches cannot have.
_OTHER_RANKS = (
    "get_sequence_parallel_world_size",
    "get_context_parallel_world_size",
    "get_pipeline_model_parallel_world_size",
    "get_pipeline_parallel_world_size",
    "get_pipe_parallel_world_size",
)


def set_autotp_mode(training: bool = False) -> None:
    """Does nothing: the layers of a model in training are divided by initialize(). Throws ConfigError for inference."""
    if not training:
        raise ConfigError(
            "[set_autotp_mode] training is False, and Lockstep has no inference engine; pass training=True"
        )


def tp_model_init(
    model: torch.nn.Module,
    tp_size: int,
    dtype: torch.dtype,
    config: Any = None,
    *,
    example: Callable[[], torch.Tensor] | None = None,
    tp_group: Any = None,
    **kwargs: Any,
) -> torch.nn.Module:
    """Records that `tp_size` ranks divide the layers of models; initialize() divides them. Returns the model.

    initialize() throws ConfigError if its file has another size or dtype. `example`, which DeepSpeed does not know, is a
    function that returns the model's result on a small batch: initialize() compares it before and after the division. A
    model whose layers the file names needs one, unless it computes its `dummy_inputs`, as transformers' models do.
    `tp_group` must be the ranks of this rank's line, with consecutive numbers.
    """
    global _recorded
    if kwargs:
        raise ConfigError(
            f"[tp_model_init] got {', '.join(kwargs)}, which DeepSpeed ignores; expected model, tp_size, dtype, config, "
            "example and tp_group"
        )
    if not isinstance(tp_size, int) or tp_size < 1:
        raise ConfigError(f"[tp_model_init] tp_size is {tp_size!r}; expected a number of ranks, at least 1")
    if tp_group is not None:
        _expect_line("tp_model_init", "tp_group", torch.distributed.get_process_group_ranks(tp_group), tp_size)
    if config is not None:
        of_file = given_config(config).whole_number("tensor_parallel.autotp_size", 0)
        expect_equal({"tp_size": tp_size, "autotp_size of the config": of_file}, "tp_model_init")
    if _recorded not in (None, (tp_size, dtype)):
        raise ConfigError(
            f"[tp_model_init] tp_size and dtype are {tp_size} and {dtype}, and an earlier call had {_recorded}; expected "
            "the same"
        )
    _recorded = (tp_size, dtype)
    if example is not None:
        setattr(own_module(model), _EXAMPLE, example)
    set_autotp_mode(training=True)
    return model


def tensor_ranks_of(mpu: Any) -> int | None:
    """Returns how many ranks divide layers by Megatron's mpu; None for another object.

    Throws ConfigError for other lines, and for ranks that divide sequences, or layers into stages.
    """
    for prefix in ("get_tensor_model_parallel", "get_model_parallel"):
        if hasattr(mpu, f"{prefix}_world_size"):
            size, rank = (int(getattr(mpu, f"{prefix}_{what}")()) for what in ("world_size", "rank"))
            expected = PartialState().process_index % size
            if rank != expected:
                raise ConfigError(
                    f"[initialize] {prefix}_rank() of the mpu is {rank}; expected {expected}: consecutive ranks divide layers"
                )
            _expect_only_data_ranks(mpu, size)
            return size
    return None


def with_tensor_ranks(
    given: GivenConfig, of_mpu: int | None, mpu_divides_sequences: bool, model: torch.nn.Module
) -> GivenConfig:
    """Returns the configuration with tensor_parallel.autotp_size, if ranks divide layers.

    Throws ConfigError if the file, tp_model_init, the mpu, and the mesh of an Accelerator or of the launcher have
    different sizes, or dtypes, and if consecutive ranks would divide both layers and sequences.
    """
    of_file = given.whole_number("tensor_parallel.autotp_size", 0)
    content = given.as_dict()
    parallelism = AcceleratorState._shared_state.get("parallelism_config")
    sizes = {
        "tensor_parallel.autotp_size": of_file,
        "tp_size of tp_model_init": _recorded[0] if _recorded else 0,
    }
    of_mesh = launched_size("tp_size") if parallelism is None else parallelism.tp_size
    if of_mesh is not None and of_mesh > 1:
        sizes["the mesh's tp"] = of_mesh
    ranks = expect_equal(sizes, "initialize")
    if of_mpu is not None and of_mpu != max(1, ranks):
        raise ConfigError(
            f"[initialize] the mpu has {of_mpu} model parallel ranks, and the engine {max(1, ranks)}, which divide a full "
            "model; expected the same: set tensor_parallel.autotp_size, and pass a model of undivided layers"
        )
    if ranks > 1 and given.sequence_ranks > 1 and (mpu_divides_sequences or parallelism is None):
        raise ConfigError(
            f"[initialize] {ranks} consecutive ranks divide layers, and {given.sequence_ranks} of them sequences, by the mpu; "
            f"expected only one; pass no mpu, and use an Accelerator with ParallelismConfig(tp_size={ranks}, "
            f"sp_size={given.sequence_ranks})"
        )
    if _recorded:
        _expect_dtype(_recorded[1], content, model)
    if ranks < 2 or of_file:
        return given
    changed = content | {"tensor_parallel": content.get("tensor_parallel", {}) | {"autotp_size": ranks}}
    return GivenConfig(text=json.dumps(changed), sequence_ranks=given.sequence_ranks)


def give_plan(model: torch.nn.Module, given: GivenConfig) -> int:
    """Gives a model the plan by which an engine divides its layers. Returns how many ranks divide them.

    Throws ConfigError if neither the file nor the model says which layers.
    """
    ranks = max(1, given.whole_number("tensor_parallel.autotp_size", 0))
    section = given.as_dict().get("tensor_parallel", {})
    own = own_module(model)
    if ranks == 1 or hasattr(own, "_lockstep_tensor_parallel"):  # An Accelerator's tp_handler gave it.
        return ranks
    of_file = section.get("partition_config") is not None or section.get("preset_model") is not None
    example = getattr(own, _EXAMPLE, None)
    if not of_file and not getattr(own, "tp_plan", None):
        raise ConfigError(
            f"[initialize] tensor_parallel.autotp_size is {ranks}, and {type(own).__name__} has no tp_plan, as transformers' "
            "models have; set tensor_parallel.partition_config or preset_model in the file"
        )
    if of_file and example is None:
        if not hasattr(own, "dummy_inputs"):
            raise ConfigError(f"[initialize] {_missing_example(own)}")
        example = _example_of_dummy_inputs(own)
    options = (
        {"plan": [], "example": example, "sequence_parallel": False}
        if of_file
        else TorchTensorParallelConfig(example=example)._options_for(own)
    )
    own._lockstep_tensor_parallel = options
    return ranks


def _missing_example(model: torch.nn.Module) -> str:
    return (
        f"the file divides the layers of {type(model).__name__}, which would be another function without an error if a "
        "layer computes with a fixed number of heads; expected "
        "tp_model_init(model, tp_size, dtype, example=lambda: model(batch)), whose result is compared before and after"
    )


def _example_of_dummy_inputs(model: Any) -> Callable[[], torch.Tensor]:
    """Returns a function with a transformers model's result on its dummy_inputs.

    The function throws ConfigError if the full model cannot compute them.
    """
    is_divided = False

    def example() -> torch.Tensor:
        nonlocal is_divided
        try:
            device = next(model.parameters()).device
            outputs = model(**{name: value.to(device) for name, value in model.dummy_inputs.items()})
            result: torch.Tensor = outputs.logits if hasattr(outputs, "logits") else outputs[0]
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"the result is a {type(result).__name__}")
        except Exception as error:
            if is_divided:
                raise
            raise ConfigError(f"[initialize] {_missing_example(model)}; its dummy_inputs failed: {error}") from error
        is_divided = True  # The next call computes the divided model.
        return result

    return example


def share_mesh(data_group: Any, is_pipeline: bool, tensor_ranks: int) -> None:
    """Makes an engine's mesh the one of PartialState and groups, unless a program's Accelerator has made one."""
    shared = PartialState._shared_state
    if AcceleratorState._shared_state.get("parallelism_config") is not None:
        return
    if shared.pop("_engine_mesh", None) is not None:  # An earlier engine has set both.
        shared.pop("_data_group", None)
    if is_pipeline or tensor_ranks > 1:
        shared["_data_group"] = data_group
    if not is_pipeline and tensor_ranks > 1:
        sizes: dict[str, Any] = {name: 1 for name in ("dp_shard_size", "cp_size", "sp_size", "ep_size", "pp_size")}
        shared["_engine_mesh"] = ParallelismConfig(dp_replicate_size=data_group.size, tp_size=tensor_ranks, **sizes)


def _expect_only_data_ranks(mpu: Any, tensor_ranks: int) -> None:
    """Throws ConfigError unless all lines of an mpu that divide layers have samples of their own."""
    for name in _OTHER_RANKS:
        size = int(getattr(mpu, name)()) if hasattr(mpu, name) else 1
        if size > 1:
            raise ConfigError(
                f"[initialize] {name}() of the mpu is {size}; expected 1: use the mpu of "
                "UlyssesSPAttentionHF.register_with_transformers() to divide sequences, and a "
                "deepspeed.pipe.PipelineModule to divide a list of layers"
            )
    if hasattr(mpu, "get_data_parallel_world_size"):
        size, expected = int(mpu.get_data_parallel_world_size()), PartialState().num_processes // tensor_ranks
        if size != expected:
            raise ConfigError(
                f"[initialize] get_data_parallel_world_size() of the mpu is {size}; expected {expected}, since "
                f"{tensor_ranks} ranks divide layers; start {size * tensor_ranks} ranks, or pass an mpu of all ranks"
            )


def _expect_line(where: str, what: str, ranks: list[int], size: int) -> None:
    first = PartialState().process_index // size * size
    if ranks != list(range(first, first + size)):
        raise ConfigError(
            f"[{where}] {what} has the ranks {ranks}; expected {list(range(first, first + size))}: tp_size consecutive ones"
        )


def _expect_dtype(dtype: torch.dtype, content: dict[str, Any], model: torch.nn.Module) -> None:
    """Throws ConfigError unless tp_model_init's dtype is the one in which the engine computes."""
    sections = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}
    given = {name: content.get(section) for section, name in sections.items() if section in content}
    # The C++ library refuses a section that is no dict.
    enabled = [name for name, value in given.items() if isinstance(value, dict) and value.get("enabled") is True]
    of_model = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    expected = DTYPES[enabled[0]] if enabled else of_model
    if dtype != expected:
        raise ConfigError(
            f"[initialize] dtype of tp_model_init is {dtype}, and the engine computes in {expected}; expected the same: set "
            "bf16.enabled or fp16.enabled in the file"
        )
