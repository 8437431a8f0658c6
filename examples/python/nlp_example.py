# SPDX-License-Identifier: Apache-2.0
"""Classifies pairs of sentences as paraphrases, as Accelerate's example of this name does with BERT and MRPC.

The script uses only calls of Accelerate: with `accelerate` in the three imports below it is an Accelerate script. The
model is a small transformer, and the sentences are made here, so it needs no network.

Examples:
  python nlp_example.py
  lockstep launch -n 2 nlp_example.py --mixed_precision bf16
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.utils.data import DataLoader

from lockstep import Accelerator
from lockstep.utils import set_seed
from lockstep.utils.memory import find_executable_batch_size

MAX_BATCH_SIZE = 32  # A larger batch is accumulated from batches of this size.
EVAL_BATCH_SIZE = 64
SUBJECTS = "the bank;a doctor;our team;the mayor;some farmers;a young singer".split(";")
VERBS = [("bought", "purchased"), ("said", "stated"), ("started", "began"), ("ended", "finished"), ("helped", "aided")]
OBJECTS = "the house;a new plan;the old school;two games;a long report;the river bridge".split(";")
TIMES = "on monday;last year;this week;in june".split(";")


def make_pairs(size: int, seed: int) -> list[tuple[str, str, int]]:
    """Returns (sentence, sentence, label). Pairs with label 1 have one meaning: other word order, another verb."""
    source = random.Random(seed)
    pairs = []
    for _ in range(size):
        subject, verb, thing, time = (source.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, TIMES))
        label = source.randrange(2)
        other = thing if label else source.choice([one for one in OBJECTS if one != thing])
        first, second = f"{subject} {verb[0]} {thing} {time}", f"{time} {subject} {verb[1]} {other}"
        pairs.append((first, second, label))
    return pairs


class Tokenizer:
    """Numbers words: 0 is padding, 1 separates sentences."""

    def __init__(self, texts: list[str]) -> None:
        words = sorted({word for text in texts for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, start=2)}

    def __call__(self, first: str, second: str) -> torch.Tensor:
        ids = [self.numbers[word] for word in first.split()] + [1] + [self.numbers[word] for word in second.split()]
        return torch.tensor(ids)

    def __len__(self) -> int:
        return len(self.numbers) + 2


class PairClassifier(nn.Module):
    """A small transformer encoder with two class scores. Takes input_ids and attention_mask, int64 (B, T)."""

    def __init__(self, vocabulary: int, width: int = 48, length: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.sentences = nn.Embedding(2, width)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.scores = nn.Linear(width, 2)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        second = (input_ids == 1).cumsum(1).clamp(max=1)
        places = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.words(input_ids) + self.places(places) + self.sentences(second)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None]
        logits = self.scores((x * mask).sum(1) / mask.sum(1))
        outputs = {"logits": logits}
        if labels is not None:
            outputs["loss"] = nn.functional.cross_entropy(logits, labels)
        return outputs


def get_dataloaders(accelerator: Accelerator, batch_size: int, sizes: tuple[int, int]) -> tuple[Any, Any, Tokenizer]:
    train, validation = make_pairs(sizes[0], seed=0), make_pairs(sizes[1], seed=1)
    with accelerator.main_process_first():  # Where a tokenizer downloads or caches something.
        tokenizer = Tokenizer([text for first, second, _ in train + validation for text in (first, second)])

    def collate(pairs: list[tuple[str, str, int]]) -> dict[str, torch.Tensor]:
        # With 16-bit computation a multiple of 8 is faster on GPUs.
        multiple = 1 if accelerator.mixed_precision == "no" else 8
        ids = pad_sequence([tokenizer(first, second) for first, second, _ in pairs], batch_first=True)
        ids = nn.functional.pad(ids, (0, -ids.size(1) % multiple))
        labels = torch.tensor([label for *_, label in pairs])
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    train_dataloader = DataLoader(train, shuffle=True, collate_fn=collate, batch_size=batch_size, drop_last=True)
    eval_dataloader = DataLoader(validation, collate_fn=collate, batch_size=EVAL_BATCH_SIZE)
    return train_dataloader, eval_dataloader, tokenizer


def score(predictions: torch.Tensor, references: torch.Tensor) -> dict[str, float]:
    """Returns accuracy and F1, as the metric of GLUE MRPC."""
    hits = (predictions * references).sum().item()
    total = predictions.sum().item() + references.sum().item()
    return {"accuracy": (predictions == references).double().mean().item(), "f1": 2 * hits / max(1, total)}


def training_function(config: dict[str, Any], args: argparse.Namespace) -> None:
    accelerator = Accelerator(
        cpu=args.cpu,
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=max(1, config["batch_size"] // MAX_BATCH_SIZE),
    )

    @find_executable_batch_size(starting_batch_size=min(config["batch_size"], MAX_BATCH_SIZE))
    def train(batch_size: int) -> None:
        accelerator.free_memory()
        set_seed(config["seed"])
        train_dataloader, eval_dataloader, tokenizer = get_dataloaders(accelerator, batch_size, config["sizes"])
        model = PairClassifier(len(tokenizer)).to(accelerator.device)
        optimizer = AdamW(params=model.parameters(), lr=config["lr"])
        # A schedule counts the batches of all processes: those of the loader before prepare.
        total = len(train_dataloader) * config["num_epochs"] // accelerator.gradient_accumulation_steps
        lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.0, 1 - step / total)
        )
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
            model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
        )
        for epoch in range(config["num_epochs"]):
            model.train()
            for batch in train_dataloader:
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    accelerator.backward(loss)
                    optimizer.step()
                    lr_scheduler.step()
                    optimizer.zero_grad()

            model.eval()
            predictions, references = [], []
            for batch in eval_dataloader:
                with torch.no_grad():
                    outputs = model(**batch)
                found, wanted = accelerator.gather_for_metrics((outputs["logits"].argmax(dim=-1), batch["labels"]))
                predictions.append(found)
                references.append(wanted)
            assert sum(map(len, references)) == config["sizes"][1]
            result = score(torch.cat(predictions), torch.cat(references))
            accelerator.print(f"epoch {epoch}: accuracy {result['accuracy']:.3f}, F1 {result['f1']:.3f}")

    train()
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], help="precision of the computation")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--num_epochs", type=int, default=6, help="passes over the training data")
    args = parser.parse_args()
    config = {"lr": 2e-3, "num_epochs": args.num_epochs, "seed": 42, "batch_size": 16, "sizes": (2000, 405)}
    training_function(config, args)


if __name__ == "__main__":
    main()
