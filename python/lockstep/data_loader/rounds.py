# SPDX-License-Identifier: Apache-2.0
"""Batches that are joined to a round of all processes, and divided again.

Three kinds of values are distinguished. Tensors have a row for each sample. So have lists of other values whose length
is the batch's number of rows. Everything else, such as a flag, belongs to its batch.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import _core
from .._tree import leaves_of, mapping_like, sequence_like


class _RowValues(list[Any]):
    """A list with one value for each row of a round."""


class _BatchValues:
    """The values of a round that belong to batches, not to rows: one for each, with the batch's first row."""

    def __init__(self, values: list[tuple[int, Any]], path: str) -> None:
        self._values = values
        self._path = path

    def of_rows(self, begin: int, end: int) -> Any:
        """Returns the value of the batches that have the rows. Throws ConfigError if they have several."""
        ends = [first for first, _ in self._values[1:]] + [end]
        found = [value for (first, value), last in zip(self._values, ends) if first < end and last > begin]
        found = found or [self._values[-1][1]]  # Rows that complete the round.
        if any(not _equal(found[0], other) for other in found[1:]):
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] batch{self._path} differs between batches whose samples one process gets "
                f"together; got {found[0]!r} and {next(one for one in found if not _equal(found[0], one))!r}; give "
                "each sample its own value in a list or tensor"
            )
        return found[0]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)


def rows_of(batch: Any) -> int:
    """Returns the rows of the first tensor, or else the length of the first list of values."""
    tensors = [leaf for leaf in leaves_of(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    if tensors:
        return tensors[0].shape[0]
    first = batch
    while isinstance(first, Mapping) and first:
        first = next(iter(first.values()))
    if isinstance(first, (list, tuple)) and first and not isinstance(first[0], (list, tuple)):
        return len(first)
    raise _core.ConfigError(
        f"[DataLoaderDispatcher] a batch of type {type(batch).__name__} has no tensor and no list of values, so its "
        "number of samples is unknown; expected tensors or lists of values, in lists, tuples or dicts; change "
        "collate_fn, or use DataLoaderConfiguration(dispatch_batches=False)"
    )


def _is_list_of_samples(value: Any, rows: int) -> bool:
    """Returns whether a list without tensors has a value for each row.

    torch's collate function returns the fields of samples that are tuples as a list of tuples.
    """
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) != rows:
        return False
    is_fields = all(isinstance(item, tuple) and len(item) == rows for item in value)
    return not is_fields and not any(isinstance(leaf, torch.Tensor) for leaf in leaves_of(value))


def join(batches: Sequence[Any], rows: Sequence[int], real: int) -> Any:
    """Returns the batches as one value for share(). The batches after `real` only complete the round."""
    firsts = [sum(rows[:index]) for index in range(real)]

    def join_parts(parts: list[Any], path: str) -> Any:
        first = parts[0]
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            return _concatenated(parts, path) if len(parts) > 1 else first
        if all(_is_list_of_samples(part, count) for part, count in zip(parts, rows)):
            return _RowValues(item for part in parts for item in part)
        if isinstance(first, (list, tuple)) and all(len(part) == len(first) for part in parts):
            items = (join_parts([part[index] for part in parts], f"{path}[{index}]") for index in range(len(first)))
            return sequence_like(first, items)
        if isinstance(first, Mapping):
            items_of = {key: join_parts([part.get(key) for part in parts], f"{path}[{key!r}]") for key in first}
            return mapping_like(first, items_of)
        if any(isinstance(leaf, torch.Tensor) and leaf.dim() > 0 for part in parts for leaf in leaves_of(part)):
            _concatenated(parts, path)
        return _BatchValues(list(zip(firsts, parts)), path)

    return join_parts(list(batches), "")


def _concatenated(parts: list[Any], path: str) -> torch.Tensor:
    try:
        return torch.cat(parts, dim=0)
    except (RuntimeError, TypeError) as error:
        found = [list(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__ for part in parts]
        raise _core.ConfigError(
            f"[DataLoaderDispatcher] batch{path} has different shapes in the batches of a round, so they cannot be "
            f"concatenated; got {found}; pad them in collate_fn, or use DataLoaderConfiguration(dispatch_batches=False, "
            "even_batches=False)"
        ) from error


def _resolved(value: Any, samples: Callable[[Any], Any], batch_values: Callable[[_BatchValues], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return samples(value)
    if isinstance(value, _RowValues):
        return list(samples(value))
    if isinstance(value, _BatchValues):
        return batch_values(value)
    if isinstance(value, Mapping):
        return mapping_like(value, {key: _resolved(item, samples, batch_values) for key, item in value.items()})
    return sequence_like(value, (_resolved(item, samples, batch_values) for item in value))


def share(joined: Any, begin: int, end: int) -> Any:
    """Returns the rows `begin` to `end` of a result of join(), as a batch."""
    return _resolved(joined, lambda value: value[begin:end], lambda value: value.of_rows(begin, end))

