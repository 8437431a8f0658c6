# SPDX-License-Identifier: Apache-2.0
"""deepspeed.zero: models that no rank holds in full, and their full values for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from ... import _core
from ...state import PartialState
from .._config import DTYPES, given_config, sequence_ranks_of
from .._registry import active_accelerator, core_accelerator_of

__all__ = [
    "GatheredParameters",
    "Init",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]

_pending: list[Any] = []  # Shards of models that have no engine yet.
_active: Init | None = None  # The outermost block that is open, which shards all tensors that it creates.


def take_pending() -> list[Any]:
    """Returns the shards of models that `Init` has built since the last call. `initialize` hands them over."""
    pending = list(_pending)
    _pending.clear()
    return pending


class Init:
    """Builds a model that no rank ever holds in full.

        with deepspeed.zero.Init(config_dict_or_path="ds_config.json"):
            model = Model()

    Each floating-point tensor of 4096 elements or more is sharded when the next one is created, with rank 0's values.
    `initialize` takes over the shards; a second model stays sharded. A configuration of another stage than 3 makes the
    block an ordinary one; a block within another leaves the sharding to the outer one. `dtype`, or the configuration's
    data_types.param_dtype, is the default dtype of the block. `mem_efficient_linear` changes nothing: backward always
    unshards parameters again, and keeps none. With a lockstep.Accelerator of stage 3, `prepare` takes over the shards.
    Collective: all ranks build the same model.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
    ) -> None:
        refusals = {
            "data_parallel_group": (data_parallel_group, "all ranks of the job share the model"),
            "remote_device": (remote_device not in (None, "none"), "set zero_optimization.offload_param in the file"),
            "pin_memory": (pin_memory, "set zero_optimization.offload_param.pin_memory in the file"),
            "zero_param_parallel_group": (zero_param_parallel_group, "set zero_hpz_partition_size in the file"),
            "zero_quantized_weights": (zero_quantized_weights, "set the key in the file"),
            "zero_quantized_nontrainable_weights": (zero_quantized_nontrainable_weights, "set the key in the file"),
        }
        for name, (value, instead) in refusals.items():
            if value is not None and value is not False:
                raise _core.ConfigError(f"[zero.Init] {name} is not supported here: {instead}")
        if config is not None and config_dict_or_path is not None:
            raise _core.ConfigError("[zero.Init] config is the old name of config_dict_or_path; pass only one")
        sequence_ranks = sequence_ranks_of(mpu, "zero.Init")
        state = PartialState()
        self._state = state
        self.enabled = enabled
        self.dtype = dtype
        given = config if config_dict_or_path is None else config_dict_or_path
        if given is not None:
            self._read(given, sequence_ranks)
        self._scope: Any = None
        self._end: Any = None
        self._former_dtype: torch.dtype | None = None
        self._modules: list[torch.nn.Module] = []  # Given to blocks within this one.
        if module is not None and self.enabled:
            self._take(module)

    def _read(self, given: Any, sequence_ranks: int) -> None:
        config = given_config(getattr(given, "config", given)).with_sequence_ranks(sequence_ranks)
        values = config.values(self._state.num_processes)
        self.enabled = self.enabled and values["zero_optimization.stage"] == 3
        if self.dtype is None:
            self.dtype = DTYPES.get(str(values.get("data_types.param_dtype")))

    def _take(self, module: torch.nn.Module) -> None:
        """Shards the parameters of a module that exists in full, now or at the end of the block around this one."""
        with torch.no_grad():
            for parameter in module.parameters():
                if self.dtype is not None and parameter.is_floating_point():
                    parameter.data = parameter.data.to(self.dtype)
        if _active is None:
            self._shard(module)
        else:
            _active._modules.append(module)

    def _shard(self, module: torch.nn.Module) -> None:
        """Shards the parameters of a module, with rank 0's values."""
        shards = _core.ZeroInit(self._state.group, self._state.device)
        shards.begin().end()
        shards.finish(list(module.parameters()))
        _pending.append(shards)

    def __enter__(self) -> Init:
        if not self.enabled:
            return self
        if self.dtype is not None:
            self._former_dtype = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
        global _active
        if _active is not None:
            return self
        accelerator = active_accelerator()
        scope = accelerator._core.begin_zero_init() if accelerator is not None else None
        if scope is not None:
            _active, self._scope = self, scope
            self._end = lambda: accelerator._core.finish_zero_init(torch.nn.Module())
            return self
        shards = _core.ZeroInit(self._state.group, self._state.device)
        _active, self._scope = self, shards.begin()

        def end() -> None:
            shards.finish([])
            _pending.append(shards)

        self._end = end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._former_dtype is not None:
            torch.set_default_dtype(self._former_dtype)
            self._former_dtype = None
        if self._scope is None:
            return
        global _active
        _active = None
        scope, self._scope = self._scope, None
        end, self._end = self._end, None
        modules, self._modules = self._modules, []
        scope.end()
        if error is None:  # Other ranks wait only for a block that has succeeded.
            end()
            for module in modules:
                self._shard(module)


class GatheredParameters:
    """Keeps parameters unsharded within a block, so that it may also read their memory.

        with deepspeed.zero.GatheredParameters(model.parameters(), modifier_rank=0):
            if rank == 0:
                torch.nn.init.normal_(model.weight)

    Changes are lost unless `modifier_rank` names the rank whose values all ranks get at the end. Parameters that are
    not sharded may be given, too. Collective. Throws ConfigError for a rank that does not exist.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | torch.Tensor | torch.nn.Module,
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        if fwd_module is not None:
            raise _core.ConfigError(
                "[GatheredParameters] fwd_module is not supported: an operation finds its parameters, whichever module "
                "owns them; leave it out"
            )
        if isinstance(params, torch.nn.Module):
            params = params.parameters()
        self.params = [params] if isinstance(params, torch.Tensor) else list(params)
        self.modifier_rank = modifier_rank
        self.enabled = enabled and bool(self.params)
        self._scope: Any = None

    def __enter__(self) -> None:
        if not self.enabled:
            return
        state = PartialState()
        rank = self.modifier_rank
        if rank is not None and not 0 <= rank < state.num_processes:
            raise _core.ConfigError(
                f"[GatheredParameters] modifier_rank does not exist; got {rank}, expected 0 to "
                f"{state.num_processes - 1}"
            )
        self._scope = _core.GatheredScope(self.params, rank is not None, state.group, core_accelerator_of(self.params))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.end(self.modifier_rank if error is None else None)


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Checks the arguments, as DeepSpeed does. An operation unshards its parameters, whichever module owns them."""
    if not isinstance(module, torch.nn.Module):
        raise RuntimeError(f"register_external_parameter needs a module; got {type(module).__name__}")
    if not isinstance(parameter, torch.nn.Parameter):
        raise RuntimeError(f"register_external_parameter needs a parameter; got {type(parameter).__name__}")


unregister_external_parameter = register_external_parameter


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[torch.nn.Module]:
    """Yields the module of an engine with all parameters unsharded, for text generation. Collective."""
    module = getattr(model, "module", model)
    with GatheredParameters(list(module.parameters())):
        yield module
