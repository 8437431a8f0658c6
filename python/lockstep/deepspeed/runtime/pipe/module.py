# SPDX-License-Identifier: Apache-2.0
"""PipelineModule: a list of layers, of which each process has those of its stage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch

from .... import _core
from ....parallelism_config import launched_size
from ....state import AcceleratorState, PartialState
from ....utils.operations import convert_to_fp32
from ... import checkpointing
from ..utils import set_random_seed
from .layers import LayerSpec, PipelineError, TiedLayerSpec, cut
from .topology import PipeDataParallelTopology

__all__ = ["LayerSpec", "PipelineError", "PipelineModule", "TiedLayerSpec"]

_WHERE = "PipelineModule"
_MISSING: Any = object()


class PipelineModule(torch.nn.Module):
    """A list of layers, cut into stages on different processes, with DeepSpeed's arguments.

    A layer is a torch.nn.Module, a LayerSpec, a TiedLayerSpec or a function; it gets what the one before it returns: a
    tensor, or a tuple of tensors. `loss_fn(output, target)` is a mean over samples; without it the last layer returns the
    loss. Processes make all layers of a LayerSpec one after another, with equal random numbers, and keep those of their
    stage, so that all have the first values of one process; with `seed_layers` only their own.

    `lockstep.deepspeed.initialize` returns an engine with train_batch(data_iter). `Accelerator.prepare` connects it, too;
    then `model(inputs, targets)` returns the loss of a batch, divided into `micro_batches`.

    `schedule`: "1f1b", "gpipe", or "interleaved" and "zero-bubble", which take several `chunks_per_stage`. These three
    and `micro_batches` are additions to DeepSpeed. Parameters are named as in DeepSpeed, "3.weight" and
    "tied_modules.KEY.weight", on any number of stages.

    Throws ConfigError for layers that cannot be cut so, and for a number of stages that does not fit the job. Not
    thread-safe.
    """

    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] = checkpointing.checkpoint,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
        *,
        schedule: str | None = None,
        chunks_per_stage: int | None = None,
        micro_batches: int | None = None,
    ) -> None:
        super().__init__()
        specs = list(layers)
        state = PartialState()
        launched = _Launched()
        self.num_stages = _number_of_stages(num_stages, topology, launched.stages, state.num_processes)
        chunks = chunks_per_stage or launched.chunks_per_stage(len(specs), self.num_stages)
        self._schedule = schedule or ("interleaved" if chunks > 1 else "1f1b")
        self.micro_batches = micro_batches or launched.micro_batches
        self.loss_fn = loss_fn
        self.seed_layers, self.base_seed = seed_layers, base_seed
        self.seed_fn = seed_fn or set_random_seed
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.activation_checkpoint_func = activation_checkpoint_func
        self.checkpointable_layers = checkpointable_layers
        self.dynamic_shape = dynamic_shape  # Shapes may always change.
        self.stage_id = state.process_index // (state.num_processes // self.num_stages)
        for index, layer in enumerate(specs):
            if isinstance(layer, PipelineModule) or not (isinstance(layer, LayerSpec) or callable(layer)):
                raise _core.ConfigError(
                    f"[{_WHERE}] layer {index} is a {type(layer).__name__}; expected a torch.nn.Module, a LayerSpec or a "
                    "function; add the layers of another PipelineModule one by one"
                )
        self.parts = cut(specs, partition_method, self.num_stages, chunks)
        self._own_chunks = range(self.stage_id, self.num_stages * chunks, self.num_stages)
        self._indices = [list(range(self.parts[chunk], self.parts[chunk + 1])) for chunk in self._own_chunks]
        self.tied_modules = torch.nn.ModuleDict()
        functions = self._build(specs, {index for indices in self._indices for index in indices})
        self._functions = [[functions[index] for index in indices] for indices in self._indices]
        self._full_names, self._other_names = self._names_in_all_layers(specs)
        self._forwards = [0] * len(self._functions)  # Of each chunk, for seed_layers.
        self._stage: Any = None
        self._line: Any = None
        self._scope: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._converts = False
        self._batch: Any = None
        self._output: Any = None
        self._collected: _Collected | None = None

    @property
    def _lockstep_pipeline_stages(self) -> int:
        return self.num_stages

    # --- layers
    def _build(self, specs: list[Any], own: set[int]) -> dict[int, Any]:
        """Returns the functions of this process's layers, and registers their modules."""
        functions: dict[int, Any] = {}
        tied = {spec.key for index, spec in enumerate(specs) if index in own and isinstance(spec, TiedLayerSpec)}
        classes: dict[str, type] = {}
        for index, spec in enumerate(specs):
            is_own = index in own
            if isinstance(spec, TiedLayerSpec):
                is_first = spec.key not in classes
                if classes.setdefault(spec.key, spec.typename) is not spec.typename:
                    raise _core.ConfigError(
                        f"[{_WHERE}] the layers tied as {spec.key!r} are a {classes[spec.key].__name__} and a "
                        f"{spec.typename.__name__}; expected one class; pass forward_fn for another computation"
                    )
                if is_first and (spec.key in tied or not self.seed_layers):
                    built = self._built(index, spec)
                    if spec.key in tied:
                        self.tied_modules[spec.key] = built
                if is_own:
                    module: Any = self.tied_modules[spec.key]
                    _expect_attributes(module, spec)
                    functions[index] = module if spec.forward_fn is None else partial(spec.forward_fn, module)
            elif isinstance(spec, LayerSpec):
                if is_own or not self.seed_layers:
                    built = self._built(index, spec)
                    if is_own:
                        self.add_module(str(index), built)
                        functions[index] = built
            elif is_own:
                if isinstance(spec, torch.nn.Module):
                    self.add_module(str(index), spec)
                functions[index] = spec
        return functions

    def _built(self, index: int, spec: LayerSpec) -> torch.nn.Module:
        if self.seed_layers:
            self.seed_fn(self.base_seed + index)
        return spec.build()

    def _names_in_all_layers(self, specs: list[Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the first names of tensors that several layers share: by their name here, and by all their others."""
        own = {id(tensor): name for name, tensor in _tensors_of(self)}
        first: dict[int, str] = {}
        others = {}
        for index, spec in enumerate(specs):
            if isinstance(spec, torch.nn.Module):
                for name, tensor in _tensors_of(spec):
                    if first.setdefault(id(tensor), f"{index}.{name}") != f"{index}.{name}":
                        others[f"{index}.{name}"] = first[id(tensor)]
        here = {name: first[tensor] for tensor, name in own.items() if first.get(tensor, name) != name}
        return here, others

    # --- connection
    def _connect_stage(self, line: Any) -> Any:
        """Connects this stage with those of a group, and returns what prepare() trains. Collective."""
        if line.size != self.num_stages:
            raise _core.ConfigError(
                f"[{_WHERE}] the pipeline has {self.num_stages} stages, but the mesh has pp={line.size}; expected the same: "
                f"pass num_stages={line.size}, `lockstep launch --mesh pp={self.num_stages}`, or "
                f"ParallelismConfig(pp_size={self.num_stages})"
            )
        self._line = line
        parameters = dict(self.named_parameters())
        buffers = {name: tensor for name, tensor in self.named_buffers() if name in self.state_dict()}
        alive = weakref.ref(self)
        chunks = [
            (partial(_compute_chunk, alive, chunk), self._parameters_of(functions))
            for chunk, functions in enumerate(self._functions)
        ]
        self._stage = _core.PipelineStage(
            chunks,
            [(self._full_names.get(name, name), parameter) for name, parameter in parameters.items()],
            [(self._full_names.get(name, name), buffer) for name, buffer in buffers.items()],
            line,
            self._schedule,
            self.micro_batches,
            partial(_compute_loss, alive),
        )
        return self._stage

    @staticmethod
    def _parameters_of(functions: list[Any]) -> list[torch.Tensor]:
        modules = [function.args[0] if isinstance(function, partial) and function.args else function for function in functions]
        return [p for module in modules if isinstance(module, torch.nn.Module) for p in module.parameters()]

    def _set_precision(self, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        """Makes chunks compute within `scope()`, and the loss get results of 16 bits as float32."""
        self._scope, self._converts = scope, True

    # --- computation
    def forward(self, inputs: Any, targets: Any = _MISSING) -> Any:
        """Returns the mean loss of a batch, on every process. Collective.

        Each tensor is divided into `micro_batches` along dimension 0; the first stage reads `inputs`, the last one
        `targets`. Without `targets`, computes the layers of this process alone.
        """
        if targets is _MISSING:
            for chunk in range(len(self._functions)):
                inputs = self._run(chunk, inputs)
            return inputs
        count = self.micro_batches
        return self._compute_batch(
            _divided(inputs, count, "inputs") if self.is_first_stage() else [None] * count,
            _divided(targets, count, "targets") if self.is_last_stage() else [None] * count,
        )

    def _compute_batch(self, inputs: list[Any], targets: list[Any]) -> torch.Tensor:
        """Returns the mean loss of micro-batches, which has a backward. Collective."""
        if self._stage is None:
            raise _core.ConfigError(
                f"[{_WHERE}] the stages are not connected; pass the model to lockstep.deepspeed.initialize(), or to "
                "Accelerator.prepare()"
            )
        self._batch = (inputs, targets)
        try:
            loss: torch.Tensor = self._stage.forward(len(inputs))
        finally:
            self._batch = self._output = None
        return loss

    def _compute_chunk(self, chunk: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._own_chunks[chunk] == 0:
            value = self._batch[0][int(tensors[0])]
        else:
            value = tensors[0] if len(tensors) == 1 else tuple(tensors)
        with self._scope():
            value = self._run(chunk, value)
        if self._own_chunks[chunk] == len(self.parts) - 2:
            self._output = convert_to_fp32(value) if self._converts else value
            return [torch.zeros(())]  # The loss is computed next.
        return self._values(chunk, value)

    def _values(self, chunk: int, value: Any) -> list[torch.Tensor]:
        """Returns the tensors that the next chunk gets."""
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, tuple) and len(value) > 1 and all(isinstance(each, torch.Tensor) for each in value):
            return list(value)
        kind = type(value).__name__
        if isinstance(value, tuple):
            kind += f" of ({', '.join(type(each).__name__ for each in value)})"
        raise _core.ConfigError(
            f"[{_WHERE}] layer {self._indices[chunk][-1]}, the last of its chunk, returned a {kind}; expected a tensor, or a "
            "tuple of at least two tensors, which can be sent to the next stage"
        )

    @contextmanager
    def _collecting(self, computes_loss: bool, keeps_last: bool) -> Iterator[_Collected]:
        """Collects the losses, and perhaps the last output, or else all outputs, that a block computes."""
        self._collected = _Collected(computes_loss, keeps_last)
        try:
            yield self._collected
        finally:
            self._collected = None

    def _compute_loss(self, number: int) -> torch.Tensor:
        output, self._output = self._output, None
        collected = self._collected
        if collected is not None and not collected.computes_loss:
            collected.outputs.append(output)
            return torch.zeros(())
        if collected is not None and collected.keeps_last:
            collected.outputs = [output]
        loss = output if self.loss_fn is None else self.loss_fn(output, self._batch[1][number])
        if collected is not None:
            collected.losses.append(loss)
        if not isinstance(loss, torch.Tensor):
            raise _core.ConfigError(
                f"[{_WHERE}] the loss is a {type(loss).__name__}; expected a tensor of one number from "
                f"{'the last layer, as loss_fn is None' if self.loss_fn is None else 'loss_fn'}"
            )
        return loss

    def _run(self, chunk: int, value: Any) -> Any:
        """Computes the layers of a chunk."""
        functions, indices = self._functions[chunk], self._indices[chunk]
        self._forwards[chunk] += 1
        offset = self._forwards[chunk] + 1  # DeepSpeed's.
        interval = self.activation_checkpoint_interval
        if interval == 0 or not torch.is_grad_enabled():
            return self._run_layers(functions, indices, offset, value)
        for begin in range(0, len(functions), interval):
            part = functions[begin : begin + interval]
            run = partial(self._run_layers, part, indices[begin : begin + interval], offset)
            inputs = value if isinstance(value, tuple) else (value,)
            value = self.activation_checkpoint_func(run, *inputs) if self._is_checkpointable(part) else run(*inputs)
        return value

    def _run_layers(self, functions: list[Any], indices: list[int], offset: int, *inputs: Any) -> Any:
        value: Any = inputs[0] if len(inputs) == 1 else inputs
        for index, function in zip(indices, functions):
            if self.seed_layers:
                self.seed_fn(self.base_seed * offset + index)
            value = function(value)
        return value

    def _is_checkpointable(self, functions: list[Any]) -> bool:
        if self.checkpointable_layers is not None:
            return all(type(function).__name__ in self.checkpointable_layers for function in functions)
        return any(next(f.parameters(), None) is not None for f in functions if isinstance(f, torch.nn.Module))

    # --- facts
    @property
    def forward_funcs(self) -> list[Any]:
        """The layers of this process."""
        return [function for functions in self._functions for function in functions]

    def partitions(self) -> list[int]:
        """Returns the first layer of each chunk, then the number of layers."""
        return self.parts

    def stage_owner(self, layer_idx: int) -> int:
        """Returns the stage that has a layer."""
        for chunk, end in enumerate(self.parts[1:]):
            if 0 <= layer_idx < end:
                return chunk % self.num_stages
        raise _core.ConfigError(f"[stage_owner] the layer is {layer_idx}; expected from 0 to {self.parts[-1] - 1}")

    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        return self.stage_id == self.num_stages - 1

    def num_pipeline_stages(self) -> int:
        return self.num_stages

    def topology(self) -> PipeDataParallelTopology:
        return PipeDataParallelTopology(self.num_stages, PartialState().num_processes // self.num_stages)

    def set_checkpoint_interval(self, interval: int) -> None:
        """Sets the number of layers that backward computes again together; 0 keeps all activations."""
        if interval < 0:
            raise _core.ConfigError(f"[set_checkpoint_interval] got {interval}; expected at least 0")
        self.activation_checkpoint_interval = interval

    def mpu(self) -> NoReturn:
        raise _core.ConfigError("[mpu] Lockstep has no mpu; the engine has stage_id, num_stages, dp_world_size and dp_rank")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stage": None, "_line": None, "_scope": nullcontext, "_batch": None, "_output": None}


@dataclass
class _Collected:
    """The outputs and losses of micro-batches on the last stage."""

    computes_loss: bool
    keeps_last: bool
    outputs: list[Any] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)


class _Launched:
    """What the launcher, ParallelismConfig and MegatronLMPlugin say about pipelines."""

    def __init__(self) -> None:
        config = AcceleratorState().parallelism_config if AcceleratorState._shared_state else None
        options = {} if config is None else config._pipeline
        self.stages = launched_size("pp_size") if config is None else config.pp_size
        self.micro_batches = options.get("micro_batches") or 1
        self._layers = options.get("layers_per_chunk")

    def chunks_per_stage(self, layers: int, stages: int) -> int:
        if not self._layers:
            return 1
        chunks, rest = divmod(layers, stages * self._layers)
        if rest or not chunks:
            raise _core.ConfigError(
                f"[{_WHERE}] num_layers_per_virtual_pipeline_stage is {self._layers}, and there are {layers} layers on "
                f"{stages} stages; expected a number of layers that their product, {stages * self._layers}, divides"
            )
        return chunks


def _number_of_stages(given: int | None, topology: Any, launched: int | None, processes: int) -> int:
    if topology is not None:
        if not isinstance(topology, PipeDataParallelTopology):
            raise _core.ConfigError(
                f"[{_WHERE}] topology is a {type(topology).__name__}; expected a PipeDataParallelTopology, or None and "
                "num_stages"
            )
        given = topology.num_pp if given is None else given
        if (topology.num_pp, topology.world_size()) != (given, processes):
            raise _core.ConfigError(
                f"[{_WHERE}] the topology has {topology.num_pp} stages and {topology.world_size()} processes; expected "
                f"{given} stages and {processes} processes"
            )
    stages = launched if given is None else given
    if stages is None and AcceleratorState._shared_state:
        stages = 1  # The mesh of the Accelerator has no pp.
    if stages is None:
        raise _core.ConfigError(
            f"[{_WHERE}] the number of stages is unknown; pass num_stages, or start the job with `lockstep launch --mesh pp=N`"
        )
    if launched not in (None, stages):
        raise _core.ConfigError(
            f"[{_WHERE}] num_stages is {stages}, and the job was started with pp={launched}; expected the same; leave "
            "one of them out"
        )
    if stages < 1 or processes % stages != 0:
        raise _core.ConfigError(
            f"[{_WHERE}] num_stages is {stages}; expected a divisor of the number of processes, {processes}"
        )
    return stages


def _compute_chunk(alive: Callable[[], Any], chunk: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    result: list[torch.Tensor] = alive()._compute_chunk(chunk, tensors)
    return result


def _compute_loss(alive: Callable[[], Any], number: int) -> torch.Tensor:
    loss: torch.Tensor = alive()._compute_loss(number)
    return loss


def _tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _expect_attributes(module: torch.nn.Module, spec: TiedLayerSpec) -> None:
    for name in spec.tied_weight_attr:
        owner: Any = module
        for part in name.split("."):
            owner = getattr(owner, part, None)
        if not isinstance(owner, torch.Tensor):
            raise _core.ConfigError(
                f"[TiedLayerSpec] {spec.typename.__name__}, tied as {spec.key!r}, has no parameter {name!r}; expected "
                "tied_weight_attr to name its parameters"
            )


def _divided(value: Any, count: int, name: str) -> list[Any]:
    """Returns the micro-batches of a batch, a tensor or tuples, lists and dicts of them."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 or value.shape[0] == 0 or value.shape[0] % count != 0:
            raise _core.ConfigError(
                f"[{_WHERE}] the {name} have the shape {list(value.shape)}; expected a number of samples in dimension 0 "
                f"that {count} micro-batches divide"
            )
        return list(value.chunk(count))
    if isinstance(value, dict):
        parts = {key: _divided(each, count, name) for key, each in value.items()}
        return [{key: part[i] for key, part in parts.items()} for i in range(count)]
    if isinstance(value, (tuple, list)):
        columns = [_divided(each, count, name) for each in value]
        return [type(value)(column[i] for column in columns) for i in range(count)]
    raise _core.ConfigError(f"[{_WHERE}] the {name} have a {type(value).__name__}; expected tensors")

