# SPDX-License-Identifier: Apache-2.0
"""Cases of sentence-transformers: python sentence_client.py FOLDER [CASE ...]."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import datasets
import sentence_transformers
import transformers
from client_data import TRAINING, files_of, run_cases, sum_of
from sentence_transformers import losses, models
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from trainer_client import history
from trl_client import make_tokenizer, sentence


def base_of(folder: Path) -> Path:
    """Returns where this process has its pretrained models."""
    return folder / f"base_{os.environ.get('RANK', '0')}"


def save_encoders(folder: Path) -> None:
    """Saves tiny BERTs with a tokenizer, before the processes are connected: later only the first one would write."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(
        vocab_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=0, num_labels=1, **sizes,
    )  # fmt: skip
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 16
    for head in (transformers.BertModel, transformers.BertForSequenceClassification):
        transformers.set_seed(7)
        path = base_of(folder) / head.__name__
        head(config).save_pretrained(path)
        tokenizer.save_pretrained(path)


def make_model(folder: Path) -> Any:
    transformer = models.Transformer(str(base_of(folder.parent) / "BertModel"))
    return sentence_transformers.SentenceTransformer(modules=[transformer, models.Pooling(16)], device="cpu")


def pairs(count: int) -> Any:
    rows = range(count)
    return datasets.Dataset.from_dict(
        {"anchor": [sentence(row, 4) for row in rows], "positive": [sentence(row + 1, 5) for row in rows]}
    )


def scored(count: int) -> Any:
    rows = range(count)
    return pairs(count).add_column("score", [(row % 5) / 4 for row in rows])


def options(folder: Path, **given: Any) -> dict[str, Any]:
    return {
        **TRAINING,
        "output_dir": str(folder / "out"),
        "num_train_epochs": 2,
        "per_device_eval_batch_size": 4,
        **given,
    }


def contrastive(folder: Path) -> Any:
    """Negatives of the same batch, an evaluation within training, and saved models."""
    model = make_model(folder)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            **options(folder, eval_strategy="epoch", save_strategy="epoch", batch_sampler="no_duplicates")
        ),
        train_dataset=pairs(22),
        eval_dataset=pairs(8),  # Of an incomplete round that the sampler drops, Accelerate would remove other losses.
        loss=losses.MultipleNegativesRankingLoss(model),
        evaluator=EmbeddingSimilarityEvaluator(
            [sentence(row, 4) for row in range(9)], [sentence(row, 5, 2) for row in range(9)], [r / 9 for r in range(9)]
        ),
    )
    trainer.train()
    return {"log": history(trainer), "sum": sum_of(model), "files": files_of(folder / "out")}


def datasets_in_turn(folder: Path) -> Any:
    """Two datasets of different lengths, each with its own loss, whose batches are not evened out."""
    model = make_model(folder)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            **options(folder, gradient_accumulation_steps=2, multi_dataset_batch_sampler="round_robin")
        ),
        train_dataset={"pairs": pairs(32), "scored": scored(24)},
        loss={
            "pairs": losses.MultipleNegativesRankingLoss(model),
            "scored": losses.CosineSimilarityLoss(model),
        },
    )
    trainer.train()
    return {"log": history(trainer), "sum": sum_of(model)}


def cross_encoder(folder: Path) -> Any:
    """Batches of a class of sentence-transformers over torch's random sampler."""
    path = str(base_of(folder.parent) / "BertForSequenceClassification")
    model = sentence_transformers.CrossEncoder(path, device="cpu", num_labels=1)
    trainer = sentence_transformers.cross_encoder.CrossEncoderTrainer(
        model=model,
        args=sentence_transformers.cross_encoder.CrossEncoderTrainingArguments(**options(folder)),
        train_dataset=scored(24).rename_column("score", "label"),
        loss=sentence_transformers.cross_encoder.losses.BinaryCrossEntropyLoss(model),
    )
    trainer.train()
    return {"log": history(trainer), "sum": sum_of(model)}


CASES = {case.__name__: case for case in (contrastive, datasets_in_turn, cross_encoder)}

if __name__ == "__main__":
    save_encoders(Path(sys.argv[1]))
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
