# SPDX-License-Identifier: Apache-2.0
"""Accelerate's FullyShardedDataParallelPlugin, on Lockstep's ZeRO."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import Any

from .._core import ConfigError
from .constants import FSDP_AUTO_WRAP_POLICY, FSDP_BACKWARD_PREFETCH, FSDP_SHARDING_STRATEGY, FSDP_STATE_DICT_TYPE
from .environment import parse_flag_from_env, str_to_bool

logger = logging.getLogger(__name__)

_WHERE = "FullyShardedDataParallelPlugin"
_KEEP_PARAMETERS = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")  # torch's strategies that shard no parameters.


@dataclass
class FullyShardedDataParallelPlugin:
    """Shards a model's parameters, gradients and optimizer state over the processes.

    Fields that are None come from variables FSDP_*, then from Accelerate's defaults; `backward_prefetch` is
    BACKWARD_PRE by default. Lockstep always has the effect of `use_orig_params=True`, `sync_module_states=True` and
    `limit_all_gathers=True`; with prefetching, of `forward_prefetch=True`. Fields may have the types of
    torch.distributed.fsdp. The precision is the Accelerator's `mixed_precision`. `state_dict_type` is that of
    checkpoints.
    """

    fsdp_version: int | None = None
    sharding_strategy: Any = None
    reshard_after_forward: Any = None
    backward_prefetch: Any = None
    mixed_precision_policy: Any = None
    auto_wrap_policy: Any = None
    cpu_offload: Any = None
    ignored_modules: Any = None
    state_dict_type: Any = None
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = None
    param_init_fn: Any = None
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_offload: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    transformer_cls_names_to_wrap: Any = None
    min_num_params: int | None = None

    def __post_init__(self) -> None:
        if self.fsdp_version is None:
            self.fsdp_version = int(os.environ.get("FSDP_VERSION", "1"))
        if self.fsdp_version not in (1, 2):
            raise ConfigError(f"[{_WHERE}] fsdp_version is {self.fsdp_version}; expected 1 or 2")
        self._refuse_unsupported()
        self._read_sharding()
        self._read_wrapping()
        self.cpu_offload = self._read_offload()
        self.backward_prefetch = self._read_prefetch()
        self.set_state_dict_type()

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Sets the format of checkpoints: SHARDED_STATE_DICT or FULL_STATE_DICT."""
        from torch.distributed.fsdp import StateDictType

        if state_dict_type is not None:
            self.state_dict_type = state_dict_type
        if self.state_dict_type is None:
            default = "FULL_STATE_DICT" if self.fsdp_version == 1 else "SHARDED_STATE_DICT"
            self.state_dict_type = os.environ.get("FSDP_STATE_DICT_TYPE", default)
        name = _word("state_dict_type", self.state_dict_type, FSDP_STATE_DICT_TYPE)
        if name == "LOCAL_STATE_DICT":
            raise ConfigError(
                f"[{_WHERE}] state_dict_type LOCAL_STATE_DICT is not supported: only the same number of processes "
                "could load it; use SHARDED_STATE_DICT"
            )
        self.state_dict_type = StateDictType[name]

    def set_auto_wrap_policy(self, model: Any) -> None:
        """Fills `transformer_cls_names_to_wrap` from transformers' `model._no_split_modules`, if it is None."""
        if self.auto_wrap_policy == "TRANSFORMER_BASED_WRAP" and self.transformer_cls_names_to_wrap is None:
            self.transformer_cls_names_to_wrap = list(getattr(model, "_no_split_modules", None) or ())

    def _refuse_unsupported(self) -> None:
        if self.ignored_modules is None:
            self.ignored_modules = os.environ.get("FSDP_IGNORED_MODULES")
        for name in ("activation_checkpointing", "activation_checkpointing_offload", "cpu_ram_efficient_loading"):
            if getattr(self, name) is None:
                setattr(self, name, parse_flag_from_env("FSDP_" + name.upper(), False))
        reasons = {
            "mixed_precision_policy": "pass mixed_precision='bf16' or 'fp16' to the Accelerator",
            "ignored_modules": "every parameter of a prepared model is sharded; prepare a model without these modules",
            "param_init_fn": "create the model with its values; prepare copies those of rank 0 to all processes",
            "activation_checkpointing": "call torch.utils.checkpoint.checkpoint in the model, or transformers' "
            "model.gradient_checkpointing_enable()",
            "activation_checkpointing_offload": "use torch.autograd.graph.save_on_cpu in the model",
            "cpu_ram_efficient_loading": "load the weights on every process",
        }
        for name, hint in reasons.items():
            value = getattr(self, name)
            if value is not None and value is not False:
                raise ConfigError(f"[{_WHERE}] {name} is not supported; got {value!r}, expected it unset; {hint}")
        if not self.limit_all_gathers:
            raise ConfigError(f"[{_WHERE}] limit_all_gathers=False is not supported: prefetching is always limited")
        for name in ("state_dict_config", "optim_state_dict_config"):
            config = getattr(self, name)
            if config is not None and not (
                getattr(config, "offload_to_cpu", True) and getattr(config, "rank0_only", True)
            ):
                raise ConfigError(
                    f"[{_WHERE}] {name} is not supported; got {config!r}, expected offload_to_cpu=True and "
                    "rank0_only=True, which the state dict of a sharded model always has; remove it"
                )

    def _read_sharding(self) -> None:
        from torch.distributed.fsdp import ShardingStrategy

        if self.fsdp_version == 2:
            if self.sharding_strategy is not None:
                raise ConfigError(
                    f"[{_WHERE}] sharding_strategy is FSDP 1's; with fsdp_version=2 use reshard_after_forward"
                )
            value = self.reshard_after_forward
            if value is None:
                value = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true")
            try:
                self.reshard_after_forward = value if isinstance(value, bool) else bool(str_to_bool(value))
            except (ValueError, AttributeError):
                raise ConfigError(
                    f"[{_WHERE}] reshard_after_forward is {value!r}; expected a bool with fsdp_version=2"
                ) from None
            return
        if isinstance(self.reshard_after_forward, bool):
            raise ConfigError(
                f"[{_WHERE}] reshard_after_forward is {self.reshard_after_forward}; expected a sharding strategy; a "
                "bool needs fsdp_version=2"
            )
        if self.sharding_strategy is None and self.reshard_after_forward is None:
            self.sharding_strategy = os.environ.get(
                "FSDP_SHARDING_STRATEGY", os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "FULL_SHARD")
            )
        chosen = self.reshard_after_forward if self.sharding_strategy is None else self.sharding_strategy
        name = _word("sharding_strategy", chosen, FSDP_SHARDING_STRATEGY)
        torch_name = "_HYBRID_SHARD_ZERO2" if name == "HYBRID_SHARD_ZERO2" else name
        self.sharding_strategy = self.reshard_after_forward = ShardingStrategy[torch_name]

    def _read_wrapping(self) -> None:
        policy = self.auto_wrap_policy
        if policy is None:
            policy = os.environ.get("FSDP_AUTO_WRAP_POLICY", "NO_WRAP")
        if callable(policy):
            policy = self._policy_of_function(policy)
        self.auto_wrap_policy = _word("auto_wrap_policy", policy, FSDP_AUTO_WRAP_POLICY)
        if self.auto_wrap_policy == "TRANSFORMER_BASED_WRAP":
            if self.transformer_cls_names_to_wrap is None:
                self.transformer_cls_names_to_wrap = os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP")
            if isinstance(self.transformer_cls_names_to_wrap, str):
                self.transformer_cls_names_to_wrap = self.transformer_cls_names_to_wrap.split(",")
        elif self.transformer_cls_names_to_wrap is not None:
            raise ConfigError(
                f"[{_WHERE}] transformer_cls_names_to_wrap needs auto_wrap_policy='transformer_based_wrap'; got "
                f"{self.auto_wrap_policy}"
            )
        if self.auto_wrap_policy == "SIZE_BASED_WRAP":
            if self.min_num_params is None and "FSDP_MIN_NUM_PARAMS" in os.environ:
                self.min_num_params = int(os.environ["FSDP_MIN_NUM_PARAMS"])
        elif self.min_num_params is not None:
            raise ConfigError(
                f"[{_WHERE}] min_num_params needs auto_wrap_policy='size_based_wrap'; got {self.auto_wrap_policy}"
            )

    def _policy_of_function(self, policy: Any) -> str:
        """Returns the name of a policy of torch.distributed.fsdp.wrap, and reads its bound arguments."""
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

        function, bound = policy, {}
        if isinstance(policy, functools.partial) and not policy.args:
            function, bound = policy.func, dict(policy.keywords)
        if function is transformer_auto_wrap_policy:
            classes = bound.pop("transformer_layer_cls", None)
            if classes is not None:
                self.transformer_cls_names_to_wrap = sorted(cls.__name__ for cls in classes)
            name = "TRANSFORMER_BASED_WRAP"
        elif function is size_based_auto_wrap_policy:
            self.min_num_params = bound.pop("min_num_params", self.min_num_params)
            name = "SIZE_BASED_WRAP"
        else:
            bound = {"policy": policy}
            name = ""
        if bound:
            raise ConfigError(
                f"[{_WHERE}] auto_wrap_policy is {policy!r}; expected 'transformer_based_wrap', 'size_based_wrap' or "
                "'no_wrap', or torch's transformer_auto_wrap_policy with transformer_layer_cls, or "
                "size_based_auto_wrap_policy with min_num_params"
            )
        return name

    def _read_offload(self) -> bool:
        value = self.cpu_offload
        if value is None:
            return parse_flag_from_env("FSDP_OFFLOAD_PARAMS", False)
        if isinstance(value, bool):
            return value
        from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy

        if isinstance(value, CPUOffload):
            return value.offload_params
        if isinstance(value, OffloadPolicy):
            return isinstance(value, CPUOffloadPolicy)
        raise ConfigError(f"[{_WHERE}] cpu_offload is {value!r}; expected a bool, CPUOffload or CPUOffloadPolicy")

    def _read_prefetch(self) -> str:
        value = self.backward_prefetch
        from_variable = value is None and "FSDP_BACKWARD_PREFETCH" in os.environ
        if from_variable:
            value = os.environ["FSDP_BACKWARD_PREFETCH"]
        name = _word("backward_prefetch", "BACKWARD_PRE" if value is None else value, FSDP_BACKWARD_PREFETCH)
        if name == "BACKWARD_POST":
            if not from_variable:
                raise ConfigError(f"[{_WHERE}] backward_prefetch BACKWARD_POST is not supported; use BACKWARD_PRE")
            logger.warning("FSDP_BACKWARD_PREFETCH: BACKWARD_POST runs as BACKWARD_PRE, with the same results")
            name = "BACKWARD_PRE"
        if self.forward_prefetch is None:
            self.forward_prefetch = name == "BACKWARD_PRE"
        elif self.forward_prefetch and name == "NO_PREFETCH":
            raise ConfigError(f"[{_WHERE}] forward_prefetch needs backward_prefetch='BACKWARD_PRE'; got NO_PREFETCH")
        return name

    def _core_options(self, is_hybrid: bool = False) -> dict[str, Any]:
        """Returns the value of the Accelerator's option fsdp_plugin. Throws ConfigError for missing class names.

        `is_hybrid`: each host keeps a copy of the model, whatever the plugin says.
        """
        options: dict[str, Any] = {
            "auto_wrap_policy": self.auto_wrap_policy.lower(),
            "backward_prefetch": self.backward_prefetch,
            "cpu_offload": self.cpu_offload,
            "state_dict_type": self.state_dict_type.name,
        }
        if is_hybrid:
            keeps = self.reshard_after_forward is False or getattr(self.sharding_strategy, "name", "") in _KEEP_PARAMETERS
            options["sharding_strategy"] = "HYBRID_SHARD_ZERO2" if keeps else "HYBRID_SHARD"
        elif self.fsdp_version == 2:
            options["reshard_after_forward"] = self.reshard_after_forward
        else:
            options["sharding_strategy"] = self.sharding_strategy.name.lstrip("_")
        if self.auto_wrap_policy == "TRANSFORMER_BASED_WRAP":
            if not self.transformer_cls_names_to_wrap:
                raise ConfigError(
                    f"[{_WHERE}] auto_wrap_policy 'transformer_based_wrap' needs the names of the layers' classes; "
                    "pass transformer_cls_names_to_wrap=['...']"
                )
            options["transformer_cls_names_to_wrap"] = list(self.transformer_cls_names_to_wrap)
        if self.min_num_params is not None:
            options["min_num_params"] = self.min_num_params
        return options


def _word(name: str, value: Any, words: list[str]) -> str:
    """Returns the word that `value` means: a word in any case, its number from 1, or torch's enumeration."""
    text = str(getattr(value, "name", value)).lstrip("_").upper()
    if text.isdigit() and 1 <= int(text) <= len(words):
        return words[int(text) - 1]
    if text not in words:
        raise ConfigError(f"[{_WHERE}] {name} is {value!r}; expected one of {', '.join(words)}")
    return text
