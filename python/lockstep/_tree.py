# SPDX-License-Identifier: Apache-2.0
"""Nested values: lists, tuples, named tuples and mappings whose leaves are tensors or other objects."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def leaves_of(value: Any) -> list[Any]:
    """Returns the leaves of a nested value, in order."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    return [value]


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a nested value of the same types with `function` of each leaf."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, function) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(item, function) for item in value)
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_leaves(item, function) for key, item in value.items()})
    return function(value)


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Returns a mapping of the type of `original` with these items. The type's constructor takes a dict."""
    build: Callable[[dict[Any, Any]], Any] = type(original)
    return build(items)


def map_tensors(value: Any, function: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """Returns a nested value of the same types with the results of `function`, which gets all tensors at once."""
    tensors = [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]
    results = iter(function(tensors))
    return map_leaves(value, lambda leaf: next(results) if isinstance(leaf, torch.Tensor) else leaf)
