# SPDX-License-Identifier: Apache-2.0
"""Accelerate's functions for weights in files and on several devices, which Lockstep refuses."""

from __future__ import annotations

from .modeling import _refuses

__all__ = [
    "extract_submodules_state_dict",
    "get_balanced_memory",
    "load_offloaded_weight",
    "load_offloaded_weights",
    "offload_state_dict",
    "offload_weight",
    "save_offload_index",
]

_FILES = "keep a model's weights in files during inference"
_DEVICES = "spread one model over devices"

extract_submodules_state_dict = _refuses("extract_submodules_state_dict", _DEVICES)
get_balanced_memory = _refuses("get_balanced_memory", _DEVICES)
load_offloaded_weight = _refuses("load_offloaded_weight", _FILES)
load_offloaded_weights = _refuses("load_offloaded_weights", _FILES)
offload_state_dict = _refuses("offload_state_dict", _FILES)
offload_weight = _refuses("offload_weight", _FILES)
save_offload_index = _refuses("save_offload_index", _FILES)
