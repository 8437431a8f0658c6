# SPDX-License-Identifier: Apache-2.0
"""Batches of texts that processes divide along the sequence."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import _core


def is_divisible(batch: Any) -> bool:
    """Returns whether a loader divides a batch: it has the keys that DeepSpeed's UlyssesSPDataLoaderAdapter expects."""
    return isinstance(batch, Mapping) and all(
        isinstance(batch.get(name), torch.Tensor) for name in ("input_ids", "position_ids", "labels")
    )


def with_shifted_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a batch whose tensors [B, T] may be divided, with shift_labels in place of labels.

    Throws ConfigError for tensors of other shapes, for several texts in a row, and for padding that counts.
    """
    labels = batch["labels"]
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    ready = {name: value for name, value in batch.items() if name != "labels"} | {"shift_labels": shifted}
    shape = batch["input_ids"].shape[:2]
    for name, value in ready.items():
        if isinstance(value, torch.Tensor) and value.shape[:2] != shape:
            raise _core.ConfigError(
                f"[DataLoader] {name} of the batch has the shape {tuple(value.shape)}, and input_ids {tuple(shape)}; expected "
                "the same first two dimensions, since sp_size is above 1 and the loader divides all tensors"
            )
    if not bool((batch["position_ids"].diff(dim=1) == 1).all()):
        raise _core.ConfigError(
            "[DataLoader] position_ids of the batch are not consecutive, as of several texts in one row, which would see each "
            "other; expected one text in each row"
        )
    mask = ready.get("attention_mask")
    if mask is not None:
        padded = mask == 0
        grows = (mask.long().diff(dim=1) > 0).any()  # The difference of booleans is no difference of numbers.
        if mask.dim() != 2 or bool(grows) or bool((padded & (shifted != -100)).any()):
            raise _core.ConfigError(
                "[DataLoader] attention_mask of the batch hides positions that count; expected zeros at the end of the texts "
                "only, with the label -100: a causal model's other positions do not see those"
            )
        ready["attention_mask"] = torch.ones_like(mask)
    return ready
