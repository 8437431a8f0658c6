# SPDX-License-Identifier: Apache-2.0
"""Cases of peft and TRL: python trl_client.py FOLDER [CASE ...]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import peft
import tokenizers
import transformers
import trl
from client_data import LORA, TRAINING, Texts, files_of, make_gpt2, pad_batch, run_cases, sum_of
from trainer_client import arguments, history

WORDS = [f"w{number}" for number in range(58)]


def make_tokenizer() -> Any:
    special = ["<pad>", "<eos>", "<unk>", "user", "assistant", ":"]
    words = {word: index for index, word in enumerate([*special, *WORDS])}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>", unk_token="<unk>"
    )


def sentence(start: int, count: int, step: int = 1) -> str:
    return " ".join(WORDS[(start + step * index) % len(WORDS)] for index in range(count))


def options(folder: Path, **given: Any) -> dict[str, Any]:
    return {
        **TRAINING,
        "output_dir": str(folder),
        "max_steps": 4,
        "bf16": False,
        "gradient_checkpointing": False,
        **given,
    }


def numbers(trainer: Any) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if "time" not in key} for row in history(trainer)]


def lora(folder: Path) -> Any:
    """LoRA with saved adapters, and a resumed run."""
    given = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}

    def make(name: str) -> Any:
        transformers.set_seed(3)
        return transformers.Trainer(
            model=peft.get_peft_model(make_gpt2(), peft.LoraConfig(**LORA)),
            args=arguments(folder / name, **given),
            train_dataset=Texts(64),
            data_collator=pad_batch,
        )

    first, second = make("a"), make("b")
    first.train()
    second.train(resume_from_checkpoint=str(folder / "a" / "checkpoint-2"))
    return {
        "first": history(first),
        "second": history(second),
        "sums": [sum_of(first.model), sum_of(second.model)],
        "files": files_of(folder / "a" / "checkpoint-4"),
    }


def sft(folder: Path) -> Any:
    data = datasets.Dataset.from_dict({"text": [sentence(row, 5 + row % 4) for row in range(40)]})
    trainer = trl.SFTTrainer(
        model=make_gpt2(),
        args=trl.SFTConfig(**options(folder, max_length=16, gradient_accumulation_steps=2)),
        train_dataset=data,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return {"log": numbers(trainer), "sum": sum_of(trainer.model)}


def sft_lora(folder: Path) -> Any:
    """Only the completion counts, and two sequences are packed."""
    rows = range(40)
    data = datasets.Dataset.from_dict(
        {"prompt": [sentence(row, 3) for row in rows], "completion": [" " + sentence(row + 3, 4) for row in rows]}
    )
    transformers.set_seed(3)
    trainer = trl.SFTTrainer(
        model=make_gpt2(),
        args=trl.SFTConfig(**options(folder, max_length=16)),
        train_dataset=data,
        processing_class=make_tokenizer(),
        peft_config=peft.LoraConfig(**LORA, task_type="CAUSAL_LM"),
    )
    trainer.train()
    return {"log": numbers(trainer), "sum": sum_of(trainer.model)}


def preferences() -> Any:
    rows = range(32)
    return datasets.Dataset.from_dict(
        {
            "prompt": [sentence(row, 3) for row in rows],
            "chosen": [" " + sentence(row + 3, 4) for row in rows],
            "rejected": [" " + sentence(row + 9, 4, 5) for row in rows],
        }
    )


def dpo(folder: Path) -> Any:
    trainer = trl.DPOTrainer(
        model=make_gpt2(),
        ref_model=make_gpt2(),
        args=trl.DPOConfig(**options(folder, max_length=16)),
        train_dataset=preferences(),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return {"log": numbers(trainer), "sum": sum_of(trainer.model)}


def reward(folder: Path) -> Any:
    transformers.set_seed(7)
    config = make_gpt2().config
    config.num_labels = 1
    trainer = trl.RewardTrainer(
        model=transformers.GPT2ForSequenceClassification(config),
        args=trl.RewardConfig(**options(folder, max_length=16)),
        train_dataset=preferences(),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return {"log": numbers(trainer), "sum": sum_of(trainer.model)}


def grpo(folder: Path) -> Any:
    """Generated completions, rewarded by their number of different words."""

    def different_words(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(set(text.split()))) for text in completions]

    trainer = trl.GRPOTrainer(
        model=make_gpt2(),
        reward_funcs=different_words,
        args=trl.GRPOConfig(**options(folder, max_steps=3, num_generations=4, max_completion_length=6)),
        train_dataset=preferences().select_columns(["prompt"]),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return {"log": numbers(trainer), "sum": sum_of(trainer.model)}


CASES = {case.__name__: case for case in (lora, sft, sft_lora, dpo, reward, grpo)}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
