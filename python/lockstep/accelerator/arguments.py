# SPDX-License-Identifier: Apache-2.0
"""The arguments of an Accelerator, checked, and as options of the C++ library."""
from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from .. import _core
from ..state import AcceleratorState
from ..utils.dataclasses import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DynamoBackend,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    MegatronLMPlugin,
    ParallelismConfig,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
    TorchTensorParallelConfig,
    TorchTensorParallelPlugin,
)

_HANDLERS = (
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    AutocastKwargs,
    ProfileKwargs,
)
_VARIABLES: dict[type, str] = {
    DeepSpeedPlugin: "ACCELERATE_USE_DEEPSPEED",
    FullyShardedDataParallelPlugin: "ACCELERATE_USE_FSDP",
    MegatronLMPlugin: "ACCELERATE_USE_MEGATRON_LM",
    ParallelismConfig: "ACCELERATE_USE_PARALLELISM_CONFIG",
}


def plugin_of_environment(kind: type) -> Any:
    """Returns the plugin that the launcher requested by variables, or None."""
    if kind is ParallelismConfig and os.environ.get("LOCKSTEP_MESH"):
        return kind()
    return kind() if os.environ.get(_VARIABLES[kind], "false").lower() in ("true", "1") else None


def compile_plugin(backend: DynamoBackend | str | None, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    """Returns the options of torch.compile: the plugin, or one of `backend`, or of the launcher's variables."""
    if backend is None:
        return TorchDynamoPlugin() if plugin is None else plugin
    if plugin is not None:
        raise _core.ConfigError("[Accelerator] dynamo_backend and dynamo_plugin are both given; pass dynamo_plugin")
    return TorchDynamoPlugin(backend=backend)


def with_tensor_plugin(config: ParallelismConfig | None, plugin: Any) -> ParallelismConfig | None:
    """Returns the configuration with the size of torch_tp_plugin, which Accelerate's older versions have."""
    if plugin is None:
        return config
    if not isinstance(plugin, TorchTensorParallelPlugin) or config is not None:
        raise _core.ConfigError(
            f"[Accelerator] torch_tp_plugin is a {type(plugin).__name__} and parallelism_config {config}; expected a "
            "TorchTensorParallelPlugin and None; pass ParallelismConfig(tp_size=...)"
        )
    return ParallelismConfig(tp_size=plugin.tp_size)


def with_megatron_plugin(
    config: ParallelismConfig | None, zero: dict[str, Any] | None, plugin: MegatronLMPlugin | None
) -> tuple[ParallelismConfig | None, dict[str, Any] | None]:
    """Returns the configuration and the options of ZeRO, with those that megatron_lm_plugin asks for."""
    if plugin is None:
        return config, zero
    if not isinstance(plugin, MegatronLMPlugin) or config is not None or zero is not None:
        raise _core.ConfigError(
            f"[Accelerator] megatron_lm_plugin is a {type(plugin).__name__}, parallelism_config {config} and zero {zero}; "
            "expected a MegatronLMPlugin alone; pass its options as parallelism_config and zero"
        )
    if plugin.tp_degree * plugin.pp_degree > 1:
        handler = TorchTensorParallelConfig(sequence_parallel=plugin.sequence_parallelism)
        config = ParallelismConfig(tp_size=plugin.tp_degree, tp_handler=handler, pp_size=plugin.pp_degree)
        config._pipeline = {
            "micro_batches": plugin.num_micro_batches,
            "layers_per_chunk": plugin.num_layers_per_virtual_pipeline_stage,
        }
    return config, {"stage": 1} if plugin.use_distributed_optimizer else None


def take_file_sizes(state: AcceleratorState) -> None:
    """Adds to the state's ParallelismConfig the sizes of its ds_config. Throws ConfigError if it has others."""
    plugin = state.deepspeed_plugin
    if plugin is None or not plugin.has_engine:
        return
    files = import_module("lockstep.deepspeed._config")  # It imports this package.
    file = files.given_config(plugin.given_config())
    for key, name in (("tensor_parallel.autotp_size", "tp_size"), ("sequence_parallel_size", "sp_size")):
        config = state.parallelism_config
        of_file, of_mesh = file.whole_number(key, 1), 1 if config is None else getattr(config, name)
        sources = {name: of_mesh, f"{key} of the ds_config": of_file}
        size = files.expect_equal({source: size for source, size in sources.items() if size > 1}, "Accelerator")
        given: dict[str, Any] = {name: size}
        if size > of_mesh:
            state.parallelism_config = ParallelismConfig(**given) if config is None else replace(config, **given)


def check_parallelism(state: AcceleratorState, zero: dict[str, Any] | None) -> None:
    """Throws ConfigError if the state's ParallelismConfig does not fit the job and its plugins."""
    config = state.parallelism_config
    if config is None:
        return
    if not isinstance(config, ParallelismConfig):
        raise _core.ConfigError(
            f"[Accelerator] parallelism_config is a {type(config).__name__}; expected a ParallelismConfig"
        )
    shards = zero is not None or state.fsdp_plugin is not None or state.deepspeed_plugin is not None
    config.resolve(state.num_processes, state.world.local_size, shards)
    if config.is_hybrid and state.fsdp_plugin is None:
        raise _core.ConfigError(
            "[ParallelismConfig] dp_replicate_size and dp_shard_size are both above 1, which needs fsdp_plugin; pass "
            "FullyShardedDataParallelPlugin(), or set zero_hpz_partition_size in the options of ZeRO"
        )


def loader_config(
    config: DataLoaderConfiguration | None,
    split_batches: bool | None,
    dispatch_batches: bool | None,
    even_batches: bool | None,
) -> DataLoaderConfiguration:
    """Returns the loaders' configuration, of which single arguments may set members."""
    values = {"split_batches": split_batches, "dispatch_batches": dispatch_batches, "even_batches": even_batches}
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if config is None:
        return DataLoaderConfiguration(**given)
    if given:
        raise _core.ConfigError(
            f"[Accelerator] {', '.join(given)} and dataloader_config are both given; set them in dataloader_config"
        )
    return config


def handlers_by_type(handlers: list[KwargsHandler]) -> dict[type, Any]:
    """Returns the handler of each type; None for a type without one."""
    found: dict[type, Any] = dict.fromkeys(_HANDLERS)
    for handler in handlers:
        kind = type(handler)
        if kind not in found:
            raise _core.ConfigError(
                f"[Accelerator] kwargs_handlers has a {kind.__name__}; expected one of "
                f"{', '.join(known.__name__ for known in _HANDLERS)}"
            )
        if found[kind] is not None:
            raise _core.ConfigError(f"[Accelerator] kwargs_handlers has two {kind.__name__}; expected one")
        found[kind] = handler
    return found


def accumulation_plugin(
    steps: int, plugin: GradientAccumulationPlugin | None, deepspeed_plugin: DeepSpeedPlugin | None
) -> GradientAccumulationPlugin:
    """Returns the plugin, or one of `steps` micro-steps or as many as the launcher requested.

    The number in a ds_config replaces both.
    """
    if plugin is None:
        requested = int(os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps))
        plugin = GradientAccumulationPlugin(num_steps=requested)
    elif steps != 1:
        raise _core.ConfigError(
            "[Accelerator] gradient_accumulation_steps and gradient_accumulation_plugin are both given; pass the "
            "plugin only"
        )
    if deepspeed_plugin is None or not deepspeed_plugin.has_engine:
        return plugin
    of_file = deepspeed_plugin.get_value("gradient_accumulation_steps", "auto")
    return plugin if of_file == "auto" else replace(plugin, num_steps=int(of_file))


def make_core(
    state: AcceleratorState,
    project: ProjectConfiguration,
    loaders: DataLoaderConfiguration,
    accumulation: GradientAccumulationPlugin,
    handlers: dict[type, Any],
    given: dict[str, Any],
) -> _core.Accelerator:
    """Returns the C++ Accelerator. `given` are options of the C++ library, which need no conversion. Collective."""
    options: dict[str, Any] = {
        "cpu": state.device.type == "cpu",
        "mixed_precision": state.mixed_precision,
        "gradient_accumulation_plugin": accumulation._core_options(),
        "debug": bool(state.debug),
        "split_batches": loaders.split_batches,
        "even_batches": loaders.even_batches,
        "project_config": project._core_options(),
        "save_when_preempted": False,
        **given,
    }
    config, plugin = state.parallelism_config, state.deepspeed_plugin
    if config is not None:  # Also sizes of 1: else the launcher's would apply.
        if plugin is not None and plugin.has_engine:  # It shards, and the C++ Accelerator does not.
            config = replace(config, dp_replicate_size=config.data_parallel_size, dp_shard_size=1)
        options["mesh"] = config._mesh_text or "tp=1"
    if project.project_dir is not None:
        options["project_dir"] = str(project.project_dir)
    scaler, data_parallel = handlers[GradScalerKwargs], handlers[DistributedDataParallelKwargs]
    if scaler is not None:
        options["grad_scaler"] = scaler._core_options()
    if data_parallel is not None:
        options["data_parallel"] = data_parallel._core_options()
    if state.fsdp_plugin is not None:
        is_hybrid = state.parallelism_config is not None and state.parallelism_config.is_hybrid
        options["fsdp_plugin"] = state.fsdp_plugin._core_options(is_hybrid)
    if plugin is not None and not plugin.has_engine:
        options["deepspeed_plugin"] = plugin._core_options()
    return _core.Accelerator(options, state.world, state.group)
