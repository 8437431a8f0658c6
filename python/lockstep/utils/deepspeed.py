# SPDX-License-Identifier: Apache-2.0
"""Accelerate's names for programs that use DeepSpeed's configuration."""

from __future__ import annotations

import copy
import os
from typing import Any

from .._core import ConfigError, ds_config_content
from ._deepspeed_wrappers import (
    DeepSpeedEngineWrapper,
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
    DummyOptim,
    DummyScheduler,
)

__all__ = [
    "DeepSpeedEngineWrapper",
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedSchedulerWrapper",
    "DummyOptim",
    "DummyScheduler",
    "HfDeepSpeedConfig",
    "get_active_deepspeed_plugin",
]


class HfDeepSpeedConfig:
    """A ds_config: `config` is its dict. The constructor takes a dict, a file, JSON text, or its base64 form."""

    def __init__(self, config_file_or_dict: Any) -> None:
        self.config: dict[str, Any] = _read_config(config_file_or_dict)
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        """Reads the ZeRO stage and whether anything is offloaded, after `config` has changed."""
        self._stage = self.get_value("zero_optimization.stage", -1)
        devices = {self.get_value(f"zero_optimization.offload_{what}.device") for what in ("optimizer", "param")}
        self._offload = self._stage in (2, 3) and bool(devices & {"cpu", "nvme"})

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Returns the section that contains the key "section.key", None if it is missing, and the key's last part."""
        *sections, key = ds_key_long.split(".")
        node: Any = self.config
        for section in sections:
            node = node.get(section)
            if node is None:
                return None, key
        return node, key

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Returns the value of the key "section.key", or `default`."""
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Removes a key or section. Throws ValueError if it is missing and `must_exist`."""
        node, key = self.find_config_node(ds_key_long)
        if node is not None and key in node:
            del node[key]
        elif must_exist:
            raise ValueError(f"the ds_config has no key {ds_key_long!r}")

    def is_true(self, ds_key_long: str) -> bool:
        """Returns whether the key is set to a true value."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Returns whether the key is set to a false value."""
        value = self.get_value(ds_key_long)
        return value is not None and not bool(value)

    def is_zero2(self) -> bool:
        return self._stage == 2

    def is_zero3(self) -> bool:
        return self._stage == 3

    def is_offload(self) -> bool:
        return self._offload


def _read_config(given: Any) -> dict[str, Any]:
    if isinstance(given, dict):
        return copy.deepcopy(given)
    text = os.fspath(given)
    why = ""
    if text:  # C++ reads the file of an environment variable for neither a path nor a text.
        try:
            config = ds_config_content(text, "") if os.path.exists(text) else ds_config_content("", text)
            if isinstance(config, dict):
                return config
        except ConfigError as error:
            why = f": {error}"
    raise ConfigError(f"[DeepSpeedPlugin] the ds_config is {given!r}; expected a dict, or a file with JSON{why}")


def get_active_deepspeed_plugin(state: Any) -> Any:
    """Returns the DeepSpeedPlugin that an AcceleratorState uses. Throws ConfigError if there is none."""
    plugin = getattr(state, "deepspeed_plugin", None)
    if plugin is None:
        raise ConfigError(
            "[get_active_deepspeed_plugin] the Accelerator has no DeepSpeedPlugin; pass deepspeed_plugin="
        )
    return plugin
