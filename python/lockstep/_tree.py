# SPDX-License-Identifier: Apache-2.0
"""Nested values: lists, tuples, named tuples and mappings whose leaves are tensors or other objects."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
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
    if isinstance(value, (tuple, list)):
        return sequence_like(value, (map_leaves(item, function) for item in value))
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_leaves(item, function) for key, item in value.items()})
    return function(value)


def sequence_like(original: Any, items: Iterable[Any]) -> Any:
    """Returns a list, tuple or named tuple of the type of `original` with these items."""
    is_namedtuple = isinstance(original, tuple) and hasattr(original, "_fields")
    return type(original)(*items) if is_namedtuple else type(original)(items)


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Returns a mapping of the type of `original` with these items."""
    build: Callable[[dict[Any, Any]], Any] = type(original)
    try:
        return build(items)
    except TypeError:
        if not isinstance(original, MutableMapping):
            raise
    clone = copy.copy(original)  # The constructor takes something else, as that of a defaultdict its factory.
    clone.clear()
    clone.update(items)
    return clone


def map_tensors(value: Any, function: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """Returns a nested value of the same types with the results of `function`, which gets all tensors at once."""
    tensors = [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]
    results = iter(function(tensors))
    return map_leaves(value, lambda leaf: next(results) if isinstance(leaf, torch.Tensor) else leaf)


def first_rows(value: Any, rows: int, count: int) -> Any:
    """Returns a nested value of a batch of `rows` samples without those after the first `count`.

    Tensors, and lists with a value for each row, are cut; other values are kept. A tuple of such lists is not a list of
    samples, even if it has as many elements as the batch has rows. A tuple of tuples is, as zip() makes it.
    """
    if isinstance(value, torch.Tensor):
        return value[:count] if _has_rows(value, rows) else value
    if isinstance(value, (list, tuple)):
        is_zipped = all(isinstance(item, tuple) for item in value)
        is_fields = isinstance(value, tuple) and not is_zipped and all(_has_rows(item, rows) for item in value)
        if len(value) == rows and not is_fields and not hasattr(value, "_fields"):
            return value[:count]
        return sequence_like(value, (first_rows(item, rows, count) for item in value))
    if isinstance(value, Mapping):
        return mapping_like(value, {key: first_rows(item, rows, count) for key, item in value.items()})
    return value


def _has_rows(value: Any, rows: int) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and value.shape[0] == rows
    return isinstance(value, (list, tuple)) and len(value) == rows
