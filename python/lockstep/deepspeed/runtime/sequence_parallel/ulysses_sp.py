# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.sequence_parallel.ulysses_sp: Ulysses for transformers' models, and loaders that divide batches."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...._core import ConfigError
from ...._sequence_batches import is_divisible, with_shifted_labels
from ...sequence.layer import exchange, heads_of_ranks
from . import parallel_state_sp

__all__ = ["UlyssesSPAttentionHF", "UlyssesSPDataLoaderAdapter"]

_WHERE = "UlyssesSPAttentionHF"


class UlyssesSPAttentionHF:
    """The attention of transformers' models over sequences that the ranks of a group divide.

    Each rank has consecutive positions, and computes all positions of some heads. Needs position_ids of one text in each
    row, and no mask. Collective in the group, forward and backward.
    """

    def __init__(
        self,
        attn: Callable[..., Any],
        process_group: Any,
        seq_length: int | None = None,
        disable_in_eval: bool = False,
    ) -> None:
        self.attn = attn
        self.process_group = process_group
        self.seq_length = seq_length
        self.disable_in_eval = disable_in_eval

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Returns the attention of query, key and value [batch, heads, own seq, size], as transformers' functions do."""
        if self.disable_in_eval and not module.training:
            return self.attn(module, query, key, value, attention_mask, *args, **kwargs)
        ranks, rank, own = self.process_group.size(), self.process_group.rank(), query.shape[2]
        if attention_mask is not None:
            raise ConfigError(
                f"[{_WHERE}] got an attention_mask; expected None: one text in each row, padded at the end with the label "
                "-100, and the full sequence's position_ids"
            )
        if self.seq_length is not None and own * ranks != self.seq_length:
            raise ConfigError(f"[{_WHERE}] the sequences have {own * ranks} positions; expected seq_length, {self.seq_length}")
        kwargs["position_ids"] = self._all_positions(kwargs.get("position_ids"))
        if key.shape[1] < ranks and ranks % key.shape[1] == 0:  # Some ranks have the same keys.
            key, value = (x.repeat_interleave(ranks // x.shape[1], dim=1) for x in (key, value))
        groups = key.shape[1]
        heads = heads_of_ranks(query.shape[1], groups, ranks)
        query, key, value = (
            exchange(x, self.process_group, 1, heads_of_ranks(x.shape[1], groups, ranks), 2, [own] * ranks)
            for x in (query, key, value)
        )
        given: Any = module
        queries_of_key = getattr(given, "num_key_value_groups", None)
        if queries_of_key is not None:
            given.num_key_value_groups = query.shape[1] // key.shape[1]
        try:
            context, weights = self.attn(module, query, key, value, None, *args, **kwargs)
        finally:
            if queries_of_key is not None:
                given.num_key_value_groups = queries_of_key
        return exchange(context, self.process_group, 1, [own] * ranks, 2, heads), weights

    def _all_positions(self, own: torch.Tensor | None) -> torch.Tensor:
        """Returns the positions of the full sequences. Collective. Throws ConfigError if they are not consecutive."""
        if own is None:
            raise ConfigError(f"[{_WHERE}] got no position_ids; pass those of this rank's part: model(**batch)")
        parts = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(self.process_group.size())]
        dist.all_gather(parts, own.contiguous(), group=self.process_group)
        positions = torch.cat(parts, dim=1)
        if not bool((positions.diff(dim=1) == 1).all()):
            raise ConfigError(
                f"[{_WHERE}] the position_ids of the ranks are not consecutive; expected those of one text in each row, of "
                "which each rank has its part; load batches by UlyssesSPDataLoaderAdapter"
            )
        return positions

    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Replaces transformers' attention "sdpa" in this process, and returns the mpu for initialize().

        A size of 1 does nothing, and returns None. `micro_batch_size` may be any number: batches of all sizes work.
        Collective. Throws ConfigError for another attention, which the model must have.
        """
        del micro_batch_size
        if sequence_parallel_size == 1:
            return None
        seq_length = seq_length if seq_length is not None else max_length
        config = getattr(model_name_or_path, "config", None)
        own = core_attn_implementation if config is None else getattr(config, "_attn_implementation", "sdpa")
        if core_attn_implementation != "sdpa" or own != "sdpa":
            raise ConfigError(
                f"[{_WHERE}] core_attn_implementation is {core_attn_implementation!r}, and the model's is {own!r}; expected "
                "'sdpa' for both"
            )
        if not seq_length_is_variable and seq_length is None:
            raise ConfigError(f"[{_WHERE}] seq_length_is_variable is False, and seq_length None; expected the length")
        functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size)
        attention = cls(
            functions["sdpa"],
            parallel_state_sp.get_sequence_parallel_group(),
            None if seq_length_is_variable else seq_length,
            disable_in_eval,
        )
        functions["sdpa"] = attention
        return parallel_state_sp


class UlyssesSPDataLoaderAdapter:
    """Divides the batches of a loader among the ranks of a group, which compute each other's batches in turn.

    Each rank's loader has batches of its own: dicts with input_ids, position_ids and labels [batch, seq], the same number
    on each rank, with the same names. One batch of each rank makes one micro-step for each rank: first all ranks compute
    the first rank's batch, then the second's. A rank gets its part of the positions, and shift_labels in place of labels.
    The loop may run several times. Collective in the group. Throws ConfigError for other batches, on all ranks.
    """

    def __init__(self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any) -> None:
        if (sp_group.rank(), sp_group.size()) != (sp_rank, sp_world_size):
            raise ConfigError(
                f"[UlyssesSPDataLoaderAdapter] sp_rank is {sp_rank} of {sp_world_size}; expected those of sp_group, "
                f"{sp_group.rank()} of {sp_group.size()}"
            )
        self.dl = dl
        self.sp_rank, self.sp_group, self.sp_world_size = sp_rank, sp_group, sp_world_size
        self.device = device
        self._iterator: Iterator[Any] = iter(dl)
        self._parts: deque[dict[str, Any]] = deque()

    def __len__(self) -> int:
        return len(self.dl) * self.sp_world_size

    def __iter__(self) -> UlyssesSPDataLoaderAdapter:
        return self

    def __next__(self) -> dict[str, Any]:
        if not self._parts:
            self._refill()
        return self._parts.popleft()

    def _refill(self) -> None:
        """Reads the next batch of each rank, and stores this rank's parts. Throws the same on all ranks."""
        sent: list[dict[str, Any]] = []
        report: dict[str, Any] = {}  # What the other ranks must know before they exchange parts.
        error: Exception | None = None
        try:
            sent = self._divided(next(self._iterator))
            report["part"] = {name: _description(value) for name, value in sent[0].items()}
        except StopIteration:
            self._iterator = iter(self.dl)  # That of the next epoch.
            report["ended"] = True
        except Exception as caught:  # The other ranks wait for this one.
            error = caught
            report["error"] = str(caught) or repr(caught)
        reports: list[Any] = [None] * self.sp_world_size
        dist.all_gather_object(reports, report, group=self.sp_group)
        if error is not None:
            raise error
        self._expect_equal(reports)
        if "ended" in report:
            raise StopIteration
        self._parts.extend(self._exchanged(sent, [one["part"] for one in reports]))

    def _divided(self, batch: Any) -> list[dict[str, Any]]:
        """Returns each rank's part of a batch. Throws ConfigError for a batch that cannot be divided."""
        if not is_divisible(batch):
            raise ConfigError(
                f"[UlyssesSPDataLoaderAdapter] a batch is a {type(batch).__name__}"
                + (f" with {sorted(batch)}" if isinstance(batch, dict) else "")
                + "; expected a dict with the tensors input_ids, position_ids and labels"
            )
        ready = with_shifted_labels(batch)
        length = ready["input_ids"].shape[1]
        if length % self.sp_world_size != 0:
            raise ConfigError(
                f"[UlyssesSPDataLoaderAdapter] the sequences have {length} positions; expected a multiple of "
                f"{self.sp_world_size}; pad them"
            )
        parts = []
        for rank in range(self.sp_world_size):
            part = slice(rank * length // self.sp_world_size, (rank + 1) * length // self.sp_world_size)
            parts.append(
                {name: value[:, part].contiguous() if isinstance(value, torch.Tensor) else value for name, value in ready.items()}
            )
        return parts

    @staticmethod
    def _expect_equal(reports: list[Any]) -> None:
        """Throws ConfigError unless all ranks have a batch with the same names, or all have none."""
        for rank, report in enumerate(reports):
            if "error" in report:
                raise ConfigError(f"[UlyssesSPDataLoaderAdapter] rank {rank} of the group has no batch: {report['error']}")
        ended = [rank for rank, report in enumerate(reports) if "ended" in report]
        if len(ended) not in (0, len(reports)):
            raise ConfigError(
                f"[UlyssesSPDataLoaderAdapter] the loaders of the ranks {ended} of the group have fewer batches than the "
                "others; expected the same number; drop the last batches, or use a DistributedSampler"
            )
        if ended:
            return
        names = [sorted((name, isinstance(value, _Described)) for name, value in report["part"].items()) for report in reports]
        for rank, other in enumerate(names):
            if other != names[0]:
                raise ConfigError(
                    f"[UlyssesSPDataLoaderAdapter] the batch of rank {rank} of the group has {_words(other)}, and that of rank "
                    f"0 {_words(names[0])}; expected the same"
                )

    def _exchanged(self, sent: list[dict[str, Any]], described: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns this rank's part of each rank's batch. `described` has the values of the parts, tensors as _Described."""
        received: list[dict[str, Any]] = [{} for _ in sent]
        for name in sorted(described[0]):
            if not isinstance(described[0][name], _Described):
                for part, theirs in zip(received, described):
                    part[name] = theirs[name]
                continue
            outputs = [torch.empty(theirs[name].shape, dtype=theirs[name].dtype, device=self.device) for theirs in described]
            dist.all_to_all(outputs, [part[name].to(self.device) for part in sent], group=self.sp_group)
            for part, output in zip(received, outputs):
                part[name] = output
        return received


class _Described(NamedTuple):
    """The shape and dtype of a tensor that another rank has."""

    shape: torch.Size
    dtype: torch.dtype


def _description(value: Any) -> Any:
    return _Described(value.shape, value.dtype) if isinstance(value, torch.Tensor) else value


def _words(names: list[tuple[str, bool]]) -> str:
    return ", ".join(f"{name} ({'a tensor' if is_tensor else 'no tensor'})" for name, is_tensor in names)
