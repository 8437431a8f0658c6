# SPDX-License-Identifier: Apache-2.0
"""Accelerate's DeepSpeedPlugin, on Lockstep's ZeRO."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._core import ConfigError
from .deepspeed import HfDeepSpeedConfig
from .environment import str_to_bool

_WHERE = "DeepSpeedPlugin"

# The fields that a ds_config has, too.
_FIELD_KEYS = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}


@dataclass
class DeepSpeedPlugin:
    """Shards a model by ZeRO, with the fields or with a ds_config.

    `hf_ds_config` is a dict, a file or an HfDeepSpeedConfig. Fields that are None come from variables ACCELERATE_*,
    and the config's "auto" values from the fields. `deepspeed_config` is the completed dict, and `uses_ds_config` says
    whether `hf_ds_config` was given. State dicts are always full, so `zero3_save_16bit_model` may have either value.
    """

    hf_ds_config: Any = None
    gradient_accumulation_steps: Any = None
    gradient_clipping: Any = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool | None = None
    msamp_opt_level: str | None = None

    def __post_init__(self) -> None:
        self._read_variables()
        self._refuse_unsupported()
        self._selected = False
        given = self.hf_ds_config
        self.uses_ds_config = given is not None and given != "none"
        if self.uses_ds_config:
            self.hf_ds_config = given if isinstance(given, HfDeepSpeedConfig) else HfDeepSpeedConfig(given)
            self._merge_config()
        else:
            self.hf_ds_config = HfDeepSpeedConfig(self._config_of_fields())
        self._own_config = self.hf_ds_config
        self.deepspeed_config = self.hf_ds_config.config

    def _read_variables(self) -> None:
        def variable(field: str, name: str, default: Any) -> Any:
            if getattr(self, field) is None:
                setattr(self, field, os.environ.get("ACCELERATE_" + name, default))
            return getattr(self, field)

        variable("gradient_accumulation_steps", "GRADIENT_ACCUMULATION_STEPS", "auto")
        variable("gradient_clipping", "GRADIENT_CLIPPING", "auto")
        stage = variable("zero_stage", "DEEPSPEED_ZERO_STAGE", 2)
        variable("offload_optimizer_device", "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none")
        variable("offload_param_device", "DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none")
        variable("offload_optimizer_nvme_path", "DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "none")
        variable("offload_param_nvme_path", "DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "none")
        variable("zero3_save_16bit_model", "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false")
        variable("zero3_init_flag", "DEEPSPEED_ZERO3_INIT", "false")
        variable("transformer_moe_cls_names", "DEEPSPEED_MOE_LAYER_CLS_NAMES", None)
        variable("hf_ds_config", "DEEPSPEED_CONFIG_FILE", None)
        if self.enable_msamp is None:
            self.enable_msamp = os.environ.get("ACCELERATE_FP8_BACKEND") == "MSAMP"
        self.zero_stage = int(stage)
        if self.gradient_accumulation_steps != "auto":
            self.gradient_accumulation_steps = int(self.gradient_accumulation_steps)
        if self.gradient_clipping != "auto":
            self.gradient_clipping = float(self.gradient_clipping)
        for name in ("zero3_save_16bit_model", "zero3_init_flag"):
            if isinstance(getattr(self, name), str):
                setattr(self, name, bool(str_to_bool(getattr(self, name))))

    def _refuse_unsupported(self) -> None:
        reasons = {
            "zero3_init_flag": "create the model as usual; prepare shards it",
            "transformer_moe_cls_names": "Lockstep does not need to know layers with experts",
            "enable_msamp": "Lockstep does not train in fp8; use mixed_precision='bf16'",
            "msamp_opt_level": "Lockstep does not train in fp8; use mixed_precision='bf16'",
        }
        for name, hint in reasons.items():
            value = getattr(self, name)
            if value:
                raise ConfigError(f"[{_WHERE}] {name} is not supported; got {value!r}, expected it unset; {hint}")
        if not self.is_train_batch_min:
            raise ConfigError(
                f"[{_WHERE}] is_train_batch_min=False is not supported: every loader keeps its own batch size"
            )

    def _merge_config(self) -> None:
        config = self.hf_ds_config
        if "zero_optimization" not in config.config:
            raise ConfigError(f"[{_WHERE}] the ds_config has no section zero_optimization; add {{'stage': 0}} for none")
        named = [name for name in os.environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",") if name]
        ambiguous = [name for name in named if name in _FIELD_KEYS or name == "mixed_precision"]
        if ambiguous:
            raise ConfigError(
                f"[{_WHERE}] {', '.join(ambiguous)} is set in the configuration file and in the ds_config; remove it "
                "from the configuration file"
            )
        config.config.setdefault("gradient_accumulation_steps", 1)
        kwargs = {key: getattr(self, name) for name, key in _FIELD_KEYS.items()}
        for key in kwargs:
            self.fill_match(key, must_match=False, **kwargs)
        config.set_stage_and_offload()
        for name, key in _FIELD_KEYS.items():
            value = config.get_value(key)
            if value is not None and value != "auto":
                setattr(self, name, value)

    def _config_of_fields(self) -> dict[str, Any]:
        def offload(device: str | None, folder: str | None) -> dict[str, Any]:
            return {"device": device, "nvme_path": folder if device == "nvme" else None}

        return {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "gradient_clipping": self.gradient_clipping,
            "zero_optimization": {
                "stage": self.zero_stage,
                "offload_optimizer": offload(self.offload_optimizer_device, self.offload_optimizer_nvme_path),
                "offload_param": offload(self.offload_param_device, self.offload_param_nvme_path),
                "stage3_gather_16bit_weights_on_model_save": self.zero3_save_16bit_model,
            },
        }

    def fill_match(
        self, ds_key_long: str, mismatches: list[str] | None = None, must_match: bool = True, **kwargs: Any
    ) -> None:
        """Replaces the "auto" of a key with its value in `kwargs`, or notes in `mismatches` that they differ.

        Throws ConfigError if the key is "auto" and has no value.
        """
        node, key = self.hf_ds_config.find_config_node(ds_key_long)
        if node is None:
            return
        if node.get(key) == "auto":
            if ds_key_long not in kwargs:
                raise ConfigError(
                    f"[{_WHERE}] the key {ds_key_long} of the ds_config is 'auto', but has no value; write the value "
                    "in the ds_config"
                )
            node[key] = kwargs[ds_key_long]
        elif must_match and node.get(key) is not None and ds_key_long in kwargs:
            if node[key] != kwargs[ds_key_long] and mismatches is not None:
                mismatches.append(f"{ds_key_long} is {node[key]} in the ds_config and {kwargs[ds_key_long]} elsewhere")

    def deepspeed_config_process(
        self,
        prefix: str = "",
        mismatches: list[str] | None = None,
        config: dict[str, Any] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Replaces all "auto" of the ds_config with values in `kwargs`. Throws ConfigError for values that differ."""
        mismatches = [] if mismatches is None else mismatches
        for key, value in list((self.deepspeed_config if config is None else config).items()):
            if isinstance(value, dict):
                self.deepspeed_config_process(f"{prefix}{key}.", mismatches, value, must_match, **kwargs)
            else:
                self.fill_match(prefix + key, mismatches, must_match, **kwargs)
        if mismatches and not prefix:
            raise ConfigError(f"[{_WHERE}] {'; '.join(mismatches)}; set the keys of the ds_config to 'auto'")

    def is_auto(self, ds_key_long: str) -> bool:
        """Returns whether a key of the ds_config is "auto"."""
        return self.hf_ds_config.get_value(ds_key_long) == "auto"

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Returns a key of the ds_config, or `default`."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def set_mixed_precision(self, mixed_precision: str) -> None:
        """Sets fp16.enabled and bf16.enabled of the ds_config. Throws ConfigError if it enables the other one."""
        config = self.deepspeed_config
        other = {"fp16": "bf16", "bf16": "fp16"}.get(mixed_precision)
        if other and str(config.get(other, {}).get("enabled", False)).lower() == "true":
            raise ConfigError(
                f"[{_WHERE}] mixed_precision is '{mixed_precision}', but the ds_config enables {other}; remove one"
            )
        if mixed_precision == "fp16":
            config.setdefault("fp16", {"enabled": True, "auto_cast": True})
        elif mixed_precision == "bf16":
            config.setdefault("bf16", {"enabled": True})
        for dtype in ("fp16", "bf16"):
            config.setdefault(dtype, {"enabled": False})
            if config[dtype].get("enabled") == "auto":
                config[dtype]["enabled"] = mixed_precision == dtype

    def is_zero3_init_enabled(self) -> bool:
        """Returns false: models are created in full, and prepare shards them."""
        return bool(self.zero3_init_flag)

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        """Runs a block without deepspeed.zero.Init, which Lockstep never enters. Throws ConfigError for `enable`."""
        if enable:
            raise ConfigError(f"[{_WHERE}] zero3_init is not supported; create the model as usual; prepare shards it")
        yield

    def select(self, _from_accelerator_state: bool = False) -> None:
        """Marks this plugin as the one in use. Throws ConfigError for a direct call."""
        if not _from_accelerator_state:
            raise ConfigError(f"[{_WHERE}] select a plugin by AcceleratorState().select_deepspeed_plugin(name)")
        self._selected = True

    def _unselect(self) -> None:
        self._selected = False

    @property
    def selected(self) -> bool:
        return self._selected

    @property
    def mixed_precision(self) -> str | None:
        """The precision that the ds_config enables: "fp16", "bf16", or None."""
        enabled = [dtype for dtype in ("fp16", "bf16") if self._enables(dtype)]
        if len(enabled) > 1:
            raise ConfigError(f"[{_WHERE}] the ds_config enables fp16 and bf16; remove one")
        return enabled[0] if enabled else None

    def _enables(self, dtype: str) -> bool:
        return str(self.deepspeed_config.get(dtype, {}).get("enabled", False)).lower() == "true"

    @property
    def has_engine(self) -> bool:
        """Whether prepare returns DeepSpeed's engine: for a ds_config, also one that the program has set later."""
        return self.uses_ds_config or self.hf_ds_config is not self._own_config

    def given_config(self) -> dict[str, Any]:
        """Returns a copy of the ds_config without the keys that mean the default. Throws ConfigError for odd values."""
        return json.loads(json.dumps(_given(self.deepspeed_config), default=_refuse_value))

    def _core_options(self) -> dict[str, Any]:
        """Returns the value of the Accelerator's option deepspeed_plugin, for a plugin without a ds_config."""
        if self.gradient_clipping != "auto":
            raise ConfigError(
                f"[{_WHERE}] gradient_clipping is {self.gradient_clipping}; expected it unset; call "
                "accelerator.clip_grad_norm_(model.parameters(), max_norm) before optimizer.step()"
            )
        options = {
            "zero_stage": self.zero_stage,
            "offload_optimizer_device": self.offload_optimizer_device,
            "offload_param_device": self.offload_param_device,
            "offload_optimizer_nvme_path": _folder(self.offload_optimizer_nvme_path),
            "offload_param_nvme_path": _folder(self.offload_param_nvme_path),
        }
        if self.gradient_accumulation_steps != "auto":
            options["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        return options


def _given(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a ds_config without the keys that mean the default: "auto", null, and printing after infinite steps."""
    return {
        key: _given(value) if isinstance(value, dict) else _finite(value)
        for key, value in config.items()
        if value is not None and value != "auto" and (key, value) != ("steps_per_print", math.inf)
    }


def _finite(value: Any) -> Any:
    return _refuse_value(value) if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_value(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise ConfigError(
        f"[{_WHERE}] the ds_config has a value {value!r} of type {type(value).__name__}; expected what JSON has: "
        "finite numbers, texts, true, false, null, lists and dicts"
    )


def _folder(path: Any) -> str:
    return "" if path in (None, "none") else os.fspath(path)
