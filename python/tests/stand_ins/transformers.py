# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the package transformers: a tokenizer of words, and a small classifier with random weights."""

from __future__ import annotations

import random
import zlib
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import nn

_WORDS = 512
_NAMES = ("bert-base-cased", "hf-internal-testing/mrpc-bert-base-cased")

utils = SimpleNamespace(
    logging=SimpleNamespace(set_verbosity_warning=lambda: None, set_verbosity_error=lambda: None)
)


class BatchEncoding(UserDict):
    """A dict of lists or tensors, with `to`."""

    def to(self, device: Any) -> BatchEncoding:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, name: str) -> AutoTokenizer:
        assert name in _NAMES
        return cls()

    @staticmethod
    def _ids(text: str) -> list[int]:
        return [2 + zlib.crc32(word.encode()) % (_WORDS - 2) for word in text.split()]

    def __call__(self, first: list[str], second: list[str], truncation: bool, max_length: int | None) -> BatchEncoding:
        assert truncation and max_length is None
        pairs = [(self._ids(one) + [1], self._ids(other)) for one, other in zip(first, second)]
        return BatchEncoding(
            input_ids=[one + other for one, other in pairs],
            token_type_ids=[[0] * len(one) + [1] * len(other) for one, other in pairs],
            attention_mask=[[1] * (len(one) + len(other)) for one, other in pairs],
        )

    def pad(
        self,
        examples: list[dict[str, Any]],
        padding: str,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str = "pt",
    ) -> BatchEncoding:
        assert padding == ("longest" if max_length is None else "max_length") and return_tensors == "pt"
        multiple = pad_to_multiple_of or 1
        longest = max_length or max(len(example["input_ids"]) for example in examples)
        length = -(-longest // multiple) * multiple
        padded: dict[str, Any] = {"labels": torch.tensor([example["labels"] for example in examples])}
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            padded[name] = torch.tensor([example[name] + [0] * (length - len(example[name])) for example in examples])
        return BatchEncoding(padded)


class ModelOutput(dict[str, torch.Tensor]):
    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


class AutoModelForSequenceClassification(nn.Module):
    """Embeddings, one layer of attention, two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 32)
        self.sentences = nn.Embedding(2, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.hidden = nn.Linear(32, 64)
        self.scores = nn.Linear(64, 2)

    @classmethod
    def from_pretrained(cls, name: str, return_dict: bool) -> AutoModelForSequenceClassification:
        assert name in _NAMES and return_dict
        return cls()

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> ModelOutput:
        x = self.words(input_ids) + self.sentences(token_type_ids)
        x = x + self.attention(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        mask = attention_mask[..., None]
        # The factor makes the small rate of nlp_example.py, for trained weights, matter for random ones.
        logits = 100 * self.scores(torch.tanh(self.hidden((x * mask).sum(1) / mask.sum(1))))
        outputs = ModelOutput(logits=logits)
        if labels is not None:
            outputs["loss"] = nn.functional.cross_entropy(logits, labels)
        return outputs


def get_linear_schedule_with_warmup(
    optimizer: torch.optim.Optimizer, num_warmup_steps: int, num_training_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def set_seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
