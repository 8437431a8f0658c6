# SPDX-License-Identifier: Apache-2.0
"""Cases of transformers.Trainer: python trainer_client.py FOLDER [CASE ...]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from client_data import TRAINING, Texts, files_of, make_gpt2, pad_batch, run_cases, sum_of


def arguments(folder: Path, **given: Any) -> Any:
    options = {
        **TRAINING,
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_eval_batch_size": 8,
        "warmup_steps": 2,
        **given,
    }
    return transformers.TrainingArguments(**options)


def history(trainer: Any) -> list[dict[str, float]]:
    """Returns what the Trainer logged, without times."""
    timed = ("runtime", "per_second", "flos")
    return [
        {key: value for key, value in row.items() if not any(word in key for word in timed)}
        for row in trainer.state.log_history
    ]


def record(trainer: Any, folder: Path | None = None) -> dict[str, Any]:
    result = {"log": history(trainer), "steps": trainer.state.global_step}
    if folder is not None:
        result["files"] = files_of(folder)
    return result


def train(folder: Path, model: Any = None, data: Any = None, callbacks: Any = None, **given: Any) -> Any:
    trainer = transformers.Trainer(
        model=make_gpt2() if model is None else model,
        args=arguments(folder, **given),
        train_dataset=Texts(64) if data is None else data,
        eval_dataset=Texts(20),
        data_collator=pad_batch,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def plain(folder: Path) -> Any:
    trainer = train(folder)
    return {**record(trainer), "sum": sum_of(trainer.model)}


def accumulation(folder: Path) -> Any:
    return record(train(folder, data=Texts(52), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=3))


def uneven(folder: Path) -> Any:
    """Sequences of different lengths, so that the mean over tokens differs from that over batches."""
    return record(train(folder, data=Texts(64, varied=True), gradient_accumulation_steps=2))


def bf16(folder: Path) -> Any:
    return record(train(folder, bf16=True))


def smoothing(folder: Path) -> Any:
    return record(train(folder, label_smoothing_factor=0.1))


def grouped(folder: Path) -> Any:
    return record(train(folder, data=Texts(64, varied=True), train_sampling_strategy="group_by_length"))


class Calls(transformers.TrainerCallback):
    """Counts events, and stops the training after the fourth step."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        self.events.append(f"step {state.global_step} {objects['optimizer'].param_groups[0]['lr']:.6f}")
        control.should_training_stop = state.global_step == 4
        return control

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        norm = sum(float(p.grad.norm() ** 2) for p in objects["model"].parameters() if p.grad is not None) ** 0.5
        self.events.append(f"norm {norm:.4f}")


def callbacks(folder: Path) -> Any:
    calls = Calls()
    return {**record(train(folder, callbacks=[calls])), "events": calls.events}


def evaluation(folder: Path) -> Any:
    """Evaluations within training, with a metric over all samples, and after it."""
    transformers.set_seed(5)

    def metric(prediction: Any) -> dict[str, float]:
        right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
        return {"accuracy": float(right.mean()), "samples": len(right)}

    trainer = transformers.Trainer(
        model=make_gpt2(),
        args=arguments(folder, eval_strategy="steps", eval_steps=3),
        train_dataset=Texts(64),
        eval_dataset=Texts(21),
        data_collator=pad_batch,
        compute_metrics=metric,
    )
    trainer.train()
    predicted = trainer.predict(Texts(13))
    return {**record(trainer), "shape": list(predicted.predictions.shape), "loss": predicted.metrics["test_loss"]}


def evaluate_only(folder: Path) -> Any:
    trainer = transformers.Trainer(
        model=make_gpt2(), args=arguments(folder), eval_dataset=Texts(21), data_collator=pad_batch
    )
    return {"loss": trainer.evaluate()["eval_loss"]}


def resume(folder: Path) -> Any:
    """A run that saves, and one that continues from the middle, with dropout and a shuffled order."""
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 7, "gradient_accumulation_steps": 2}
    first = train(folder / "a", model=make_gpt2(0.1), **options)
    trainer = transformers.Trainer(
        model=make_gpt2(0.1),
        args=arguments(folder / "b", **options),
        train_dataset=Texts(64),
        data_collator=pad_batch,
    )
    trainer.train(resume_from_checkpoint=str(folder / "a" / "checkpoint-3"))
    return {
        "first": history(first),
        "resumed": history(trainer),
        "files": files_of(folder / "a"),
        "sums": [sum_of(first.model), sum_of(trainer.model)],
    }


def best_model(folder: Path) -> Any:
    trainer = train(
        folder,
        learning_rate=0.3,  # Training gets worse.
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
    )
    best = trainer.state.best_model_checkpoint
    return {**record(trainer, folder), "best": Path(best).name, "sum": sum_of(trainer.model)}


def batch_size(folder: Path) -> Any:
    """auto_find_batch_size: the first batch size is too large."""

    class Hungry(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_gpt2()

        def forward(self, **batch: Any) -> Any:
            if self.training and len(batch["input_ids"]) > 4:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return self.model(**batch)

    return record(
        train(
            folder,
            model=Hungry(),
            per_device_train_batch_size=8,
            auto_find_batch_size=True,
            remove_unused_columns=False,
            max_steps=3,
        )
    )


def compiled(folder: Path) -> Any:
    trainer = train(folder, torch_compile=True, torch_compile_backend="eager", max_steps=3)
    return {**record(trainer), "wrapped": type(trainer.model_wrapped).__name__}


def generation(folder: Path) -> Any:
    transformers.set_seed(7)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    given = arguments(folder).to_dict()
    names = ("output_dir", "max_steps", "learning_rate", "logging_steps", "save_strategy", "report_to", "use_cpu", "seed")
    trainer = transformers.Seq2SeqTrainer(
        model=transformers.T5ForConditionalGeneration(config),
        args=transformers.Seq2SeqTrainingArguments(
            **{name: given[name] for name in names},
            disable_tqdm=True,
            dataloader_pin_memory=False,
            predict_with_generate=True,
            generation_max_length=9,
            generation_num_beams=2,
        ),
        train_dataset=Texts(64),
        eval_dataset=Texts(10),
        data_collator=pad_batch,
        compute_metrics=lambda prediction: {"sum": int(prediction.predictions.clip(0).sum())},
    )
    trainer.train()
    result = trainer.evaluate()
    return {**record(trainer), "generated": result["eval_sum"], "loss": result["eval_loss"]}


CASES = {
    case.__name__: case
    for case in (
        *(plain, accumulation, uneven, bf16, smoothing, grouped, callbacks, evaluation, evaluate_only, resume),
        *(best_model, batch_size, compiled, generation),
    )
}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
