# SPDX-License-Identifier: Apache-2.0
"""Sequences that the processes of a cp or sp line divide."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from .._sequence_batches import is_divisible, with_shifted_labels
from .._tree import leaves_of
from .base import AcceleratorBase
from .sequence_block import SequenceBlock, SequenceBlocks

_WHERE = "maybe_context_parallel"
_IS_PART = "_is_part_of_sequence"  # The attribute of tensors that a loader has divided.


class _CheckForward:
    """Checks the arguments of a model, those of a transformers model also within a block. A forward pre-hook.

    Parts of a batch whose scope has ended are refused: outside of one, attention would be over the part only. A
    transformers model gets the positions of the part, and a mask of ones: without one it takes positions that are not
    consecutive for several texts in one row.
    """

    def __init__(self, blocks: SequenceBlocks, of_transformers: bool) -> None:
        self.blocks = blocks
        self.of_transformers = of_transformers

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        block = self.blocks.current
        if block is None:
            _expect_no_part(f"{type(module).__name__} is called with", leaves_of([args, kwargs]))
        if block is None or not self.of_transformers:
            return args, kwargs
        tokens = kwargs.get("input_ids", kwargs.get("inputs_embeds", args[0] if args else None))
        if len(args) > 1 or not isinstance(tokens, torch.Tensor):
            raise _core.ConfigError(
                f"[{_WHERE}] {type(module).__name__} is called with {len(args)} positional arguments; expected input_ids or "
                "inputs_embeds first, and others by their names"
            )
        if kwargs.get("labels") is not None and kwargs.get("shift_labels") is None:
            raise _core.ConfigError(
                f"[{_WHERE}] {type(module).__name__} is called with labels, which it shifts within this process's part of "
                "the sequence; shift them before: shift_labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:], "
                "add shift_labels to the buffers, and pass shift_labels beside labels"
            )
        mask = kwargs.get("attention_mask")
        if mask is not None and (mask.dim() != 2 or not bool((mask == 1).all())):
            raise _core.ConfigError(
                f"[{_WHERE}] the attention_mask hides positions; expected none, or ones; pad at the end of the texts, give "
                "padded positions the label -100, and omit the mask: a causal model's other positions do not see them"
            )
        positions = block.positions(tokens.device)
        given = kwargs.get("position_ids")
        if tokens.shape[1] != positions.shape[0]:
            raise _core.ConfigError(
                f"[{_WHERE}] {type(module).__name__} is called with {tokens.shape[1]} positions, and this process has "
                f"{positions.shape[0]}; pass the tokens in `buffers`"
            )
        if block.given_positions is not None:
            positions = block.given_positions.to(tokens.device)
            if given is None or given.shape != positions.shape:
                raise _core.ConfigError(
                    f"[{_WHERE}] {type(module).__name__} is called without the position_ids of the batch that the loader "
                    "has divided; pass them: model(**batch)"
                )
        if given is not None and not bool((given == positions).all()):
            raise _core.ConfigError(
                f"[{_WHERE}] position_ids are not those of this process's part; expected {positions.tolist()[:8]} and so "
                "on in each row; omit them, or pass the positions of the full sequence in `buffers`, too"
            )
        ones = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        return args, {**kwargs, "attention_mask": ones, "position_ids": positions.expand(tokens.shape[0], -1)}


def _expect_no_part(what: str, tensors: list[Any]) -> None:
    """Throws ConfigError for a tensor that a loader has divided. `what` begins the message."""
    if any(getattr(tensor, _IS_PART, False) for tensor in tensors):
        raise _core.ConfigError(
            f"[{_WHERE}] {what} a batch that the loader has divided, after the loop has left it: it has this process's part "
            "of each sequence only; use the batch within the body of the loop over the loader"
        )


def check_forwards(model: torch.nn.Module, blocks: SequenceBlocks) -> None:
    """Makes a model check its arguments, once. Throws ConfigError for attention that cannot be divided."""
    config: Any = getattr(model, "config", None)
    implementation = getattr(config, "_attn_implementation", None)
    if implementation is not None:
        _expect_full_attention(model, config, implementation)
    if not any(isinstance(hook, _CheckForward) for hook in model._forward_pre_hooks.values()):
        model.register_forward_pre_hook(_CheckForward(blocks, implementation is not None), with_kwargs=True)


def _expect_full_attention(model: torch.nn.Module, config: Any, implementation: str) -> None:
    """Throws ConfigError unless all layers of a transformers model have torch's attention over all positions."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if implementation != "sdpa":
        raise _core.ConfigError(
            f"[prepare] the attention of {type(model).__name__} is {implementation!r}, and cp_size or sp_size is above 1, "
            "which divide torch's attention; load the model with attn_implementation='sdpa'"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    kinds |= {"sliding_attention"} if not kinds and getattr(config, "sliding_window", None) else set()
    if kinds - {"full_attention"}:
        raise _core.ConfigError(
            f"[prepare] {type(model).__name__} has layers of {', '.join(sorted(kinds - {'full_attention'}))}, and cp_size "
            "or sp_size is above 1, which divide full attention only; use a model whose layers all have it"
        )


class SequenceCalls(AcceleratorBase):
    """The calls of an Accelerator about sequences that processes divide."""

    @contextmanager
    def maybe_context_parallel(
        self,
        buffers: list[torch.Tensor] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> Iterator[SequenceBlock]:
        """Runs one micro-step, forward and backward, whose sequences the processes of a cp or sp line divide.

        Each of `buffers`, such as tokens and shifted labels, has this process's part along its dimension in
        `buffer_seq_dims` until the block ends; those in `no_restore_buffers` also afterwards. Attention is over the full
        sequence, and torch.arange(T/P) returns this process's positions. Without cp_size and sp_size nothing changes. The
        block's value computes the mean of parts with different numbers of labels. Throws ConfigError.
        """
        tensors, dims, kept = buffers or [], buffer_seq_dims or [], no_restore_buffers or set()
        current = self._sequences.current
        if current is not None and current.given_positions is not None:
            if tensors:
                raise _core.ConfigError(
                    f"[{_WHERE}] the loader has divided this batch, since it has input_ids, position_ids and labels; omit the "
                    "buffers and use its shift_labels, or load batches without position_ids"
                )
            yield current
            return
        if len(tensors) != len(dims):
            raise _core.ConfigError(
                f"[{_WHERE}] there are {len(tensors)} buffers and {len(dims)} buffer_seq_dims; expected a dimension for each"
            )
        _expect_no_part("the buffers have", tensors)
        if any(all(tensor is not other for other in tensors) for tensor in kept):
            raise _core.ConfigError(f"[{_WHERE}] no_restore_buffers has a tensor that buffers lacks; expected a subset")
        self._expect_length([tensor.shape[dim] for tensor, dim in zip(tensors, dims)])
        given = [(tensor, dim, all(tensor is not other for other in kept)) for tensor, dim in zip(tensors, dims)]
        with self._within(SequenceBlock(_core.SequenceScope(self._core, given))) as block:
            yield block

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: Any) -> Any:
        """Returns `dl`, unless sp_size is above 1: then throws ConfigError, since prepare() makes loaders divide batches.

        transformers' Trainer calls it, and takes such loaders for sp_size times as long as they are.
        """
        del model
        if self.state.parallelism_config is None or not self.state.parallelism_config.sp_enabled:
            return dl
        raise _core.ConfigError(
            "[deepspeed_ulysses_dl_adapter] sp_size is above 1; the loaders that prepare() returns divide batches "
            "already, and transformers' Trainer would count their batches sp_size times; write the loop, or use cp_size=1 "
            "and sp_size=1"
        )

    @contextmanager
    def _divided(self, batch: Any) -> Iterator[Any]:
        """Runs the body of a loop on this process's part of a batch, if the loader divides it.

        As Accelerate's loaders with sp_size do: all tensors are cut along their second dimension, and shift_labels replace
        labels. Throws ConfigError.
        """
        if not is_divisible(batch):
            yield batch
            return
        ready = with_shifted_labels(batch)
        self._expect_length([ready["input_ids"].shape[1]])
        # Other tensors of the same values: those of the batch may be the dataset's.
        ready = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in ready.items()}
        tensors = [(value, 1, False) for value in ready.values() if isinstance(value, torch.Tensor)]
        scope = _core.SequenceScope(self._core, tensors)
        for tensor, _, _ in tensors:
            setattr(tensor, _IS_PART, True)
        with self._within(SequenceBlock(scope, ready["position_ids"])):
            yield ready

    def _expect_length(self, lengths: list[int]) -> None:
        config = self.state.parallelism_config
        handler = config.sp_handler if config is not None and config.sp_enabled else None
        if handler is None or handler.sp_seq_length_is_variable:
            return
        if any(length != handler.sp_seq_length for length in lengths):
            raise _core.ConfigError(
                f"[{_WHERE}] sp_seq_length is {handler.sp_seq_length}, and the sequences have {lengths} positions; expected "
                "the same, or sp_seq_length_is_variable"
            )

    @contextmanager
    def _within(self, block: SequenceBlock) -> Iterator[SequenceBlock]:
        self._sequences.begin(block)
        try:
            yield block
        finally:
            self._sequences.end(block)
