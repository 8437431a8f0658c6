# SPDX-License-Identifier: Apache-2.0
"""Cases of transformers.Trainer with deepspeed= and fsdp=: python sharded_client.py FOLDER [CASE ...]."""

from __future__ import annotations

import copy
import functools
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import peft
import transformers
from client_data import LORA, Texts, files_of, make_gpt2, pad_batch, run_cases, sums_in
from trainer_client import arguments, history

# Without this, the real package compiles C++ code at its first use.
for operation in (compiled := getattr(deepspeed.ops, "__compatible_ops__", {})):
    compiled[operation] = False

# Files of a checkpoint that exist with and without DeepSpeed.
KEPT = {
    *("model.safetensors", "config.json", "scheduler.pt", "trainer_state.json", "training_args.bin"),
    *("adapter_model.safetensors", "adapter_config.json"),
}
BATCH_SIZES = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
OPTIMIZER = {
    "type": "AdamW",
    "params": {
        **{"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        "torch_adam": True,
    },
}
SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {
        **{"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"},
        "warmup_type": "linear",
    },
}


def config_of(stage: int, **sections: Any) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
    return copy.deepcopy({**BATCH_SIZES, "zero_optimization": zero, **sections})


def run(folder: Path, resume_from: Path | None = None, make_model: Any = make_gpt2, **given: Any) -> Any:
    """Trains on a machine without GPUs. With use_cpu=True Accelerate would ignore `deepspeed`.

    Real transformers takes several processes for one when it trains with DeepSpeed on CPUs. With CLIENT_UNSHARDED it
    trains without DeepSpeed, which gives the same numbers.
    """
    options = {"max_steps": 4, "max_grad_norm": 0.5, "use_cpu": False, **given}
    if os.environ.get("CLIENT_UNSHARDED"):
        options |= {"deepspeed": None, "use_cpu": True}
    args = arguments(folder, **options)
    trainer = transformers.Trainer(
        model=make_model(),
        args=args,
        train_dataset=Texts(64),
        eval_dataset=Texts(20),
        data_collator=pad_batch,
    )
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return trainer


def zero(folder: Path, stage: int) -> Any:
    """The Trainer's optimizer and schedule, with accumulation."""
    trainer = run(folder, deepspeed=config_of(stage), gradient_accumulation_steps=2)
    return {"log": history(trainer), "eval": trainer.evaluate()["eval_loss"]}


def of_file(folder: Path, stage: int) -> Any:
    """Those of the ds_config."""
    trainer = run(folder, deepspeed=config_of(stage, optimizer=OPTIMIZER, scheduler=SCHEDULER))
    return {"log": history(trainer)}


def resumed(folder: Path, make_model: Any = functools.partial(make_gpt2, 0.1), **given: Any) -> Any:
    """A run that saves, and one that continues."""
    options = {"save_strategy": "steps", "save_steps": 2, "make_model": make_model}
    first = run(folder / "a", **options, **copy.deepcopy(given))
    second = run(folder / "b", folder / "a" / "checkpoint-2", **options, **copy.deepcopy(given))
    files = sorted(KEPT.intersection(files_of(folder / "a" / "checkpoint-4")))
    return {"first": history(first), "second": history(second), "files": files}


def make_lora() -> Any:
    return peft.get_peft_model(make_gpt2(0.1), peft.LoraConfig(**LORA))


def lora(folder: Path, stage: int) -> Any:
    """Frozen weights with trained adapters, which are all that is saved, and a resumed run."""
    results = resumed(folder, make_lora, deepspeed=config_of(stage))
    adapters = [sums_in(folder / name / "checkpoint-4" / "adapter_model.safetensors") for name in ("a", "b")]
    return {**results, "adapters": adapters}


def fsdp_options(**config: Any) -> dict[str, Any]:
    """Unlike `deepspeed`, `fsdp` needs use_cpu=True on a machine without GPUs."""
    return {"use_cpu": True, "fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["GPT2Block"], **config}}


def fsdp(folder: Path, **config: Any) -> Any:
    trainer = run(folder, gradient_accumulation_steps=2, **fsdp_options(**config))
    return {"log": history(trainer), "eval": trainer.evaluate()["eval_loss"]}


def without_files(results: Any) -> Any:
    return {key: value for key, value in results.items() if key != "files"}


CASES = {
    "zero_1": functools.partial(zero, stage=1),
    "zero_2": functools.partial(zero, stage=2),
    "zero_3": functools.partial(zero, stage=3),
    "file_1": functools.partial(of_file, stage=1),
    "file_3": functools.partial(of_file, stage=3),
    "resume_2": lambda folder: resumed(folder, deepspeed=config_of(2)),
    "resume_own_3": lambda folder: resumed(folder, deepspeed=config_of(3)),
    "resume_3": lambda folder: resumed(folder, deepspeed=config_of(3, optimizer=OPTIMIZER, scheduler=SCHEDULER)),
    "lora_1": functools.partial(lora, stage=1),
    "lora_2": functools.partial(lora, stage=2),
    "lora_3": functools.partial(lora, stage=3),
    "fsdp": fsdp,
    "resume_fsdp": lambda folder: resumed(folder, **fsdp_options()),
    # The Trainer writes its configuration beside full weights only, which the run without FSDP has.
    "resume_fsdp_sharded": lambda folder: without_files(
        resumed(folder, **fsdp_options(state_dict_type="SHARDED_STATE_DICT"))
    ),
}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
