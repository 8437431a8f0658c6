# SPDX-License-Identifier: Apache-2.0
"""transformers' models, unmodified, each on meshes such as "tp": two processes divide layers, sequences or experts.

A case is named for a model and its mesh, "llama tp". With "sp loader" the loop is the one that Accelerate documents for
sp_size, whose loader divides batches; with "file" an engine of DeepSpeed divides layers, as its ds_config says; with "dp"
processes only average. "trainer file" has a ds_config, too, in which the Trainer replaces each "auto".

Unlike the other clients it imports Lockstep: Accelerate cannot divide a full model, so one process is what it is compared
with.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn
import transformers
from client_data import TRAINING, Texts, pad_batch, run_cases

from lockstep import Accelerator, ParallelismConfig
from lockstep.state import AcceleratorState
from lockstep.utils import DeepSpeedPlugin

FILE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "tensor_parallel": {"autotp_size": 2},
}
AUTOMATIC = FILE | {
    key: "auto" for key in ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
}
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MODELS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(**SMALL),
    "tied": transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=8),  # It has norms of heads.
    # Without a loss for the balance of experts, which is of each process's samples, as in data parallel training.
    "mixtral": transformers.MixtralConfig(**SMALL, num_local_experts=4, router_aux_loss_coef=0.0),
    "balanced": transformers.MixtralConfig(**SMALL, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5),
    "phi3": transformers.Phi3Config(**SMALL, pad_token_id=0, eos_token_id=1),  # It fuses layers.
}


def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    texts = torch.stack(rows)
    return {"input_ids": texts, "position_ids": torch.arange(texts.shape[1]).expand_as(texts), "labels": texts}


def mean_of_parts(accelerator: Accelerator, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    outputs = model(**batch)
    shift_labels = batch["shift_labels"]
    vocab_size = model.config.vocab_size
    loss = model.loss_function(logits=outputs.logits, labels=None, shift_labels=shift_labels, vocab_size=vocab_size)
    group = accelerator.torch_device_mesh["sp"].get_group()
    losses = torch.distributed.nn.functional.all_gather(loss, group=group)
    good_tokens = torch.distributed.nn.functional.all_gather((shift_labels != -100).view(-1).sum(), group=group)
    total = sum(losses[rank] * good_tokens[rank] for rank in range(2))
    return total / max(sum(good_tokens), 1)


def update(accelerator: Accelerator, model: Any, optimizer: Any) -> None:
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def config_of(dimension: str) -> ParallelismConfig | None:
    return ParallelismConfig(**{f"{dimension}_size": 2}) if dimension not in ("dp", "file") else None


def train(name: str, mesh: str) -> Any:
    """Trains on a global batch of eight texts. Returns the losses and the sum of the saved weights' sizes."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name])
    dimension, _, loader_divides = mesh.partition(" ")
    plugin = DeepSpeedPlugin(hf_ds_config=FILE) if dimension == "file" else None
    accelerator = Accelerator(parallelism_config=config_of(dimension), deepspeed_plugin=plugin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    texts = torch.randint(64, (32, 16), generator=torch.Generator().manual_seed(3))
    rows = 8 * (2 if dimension not in ("dp", "ep") else 1) // accelerator.num_processes
    loader = torch.utils.data.DataLoader(texts, batch_size=rows, collate_fn=collate if loader_divides else None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        if loader_divides:
            loss = mean_of_parts(accelerator, model, batch)
            accelerator.backward(loss)
            update(accelerator, model, optimizer)
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            continue
        labels = torch.nn.functional.pad(batch, (0, 1), value=-100)[:, 1:].contiguous()
        with accelerator.maybe_context_parallel([batch, labels], [1, 1]) as block:
            if dimension in ("cp", "sp"):
                scores = model(input_ids=batch).logits.flatten(0, 1)
                total = torch.nn.functional.cross_entropy(scores, labels.flatten(), reduction="sum")
                loss = block.mean(total, (labels != -100).sum())
            else:
                loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
        update(accelerator, model, optimizer)
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    with torch.no_grad():
        words = model.generate(texts[:2, :4], max_new_tokens=4, do_sample=False, pad_token_id=0)
    state = accelerator.get_state_dict(model)
    shapes = {key: list(value.shape) for key, value in sorted(state.items())}
    total = sum(value.double().abs().sum().item() for value in state.values())
    accelerator.free_memory()
    AcceleratorState._reset_state()
    return {"losses": losses, "words": words.tolist(), "shapes": shapes, "sum": total}


def without_mask(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = pad_batch(rows)
    del batch["attention_mask"]
    return batch


def train_by_trainer(folder: Path, dimension: str) -> Any:
    """Trains by transformers' Trainer. Returns its log."""
    torch.manual_seed(0)
    arguments = {"max_steps": 4, "gradient_accumulation_steps": 2, "parallelism_config": config_of(dimension), **TRAINING}
    arguments |= {"deepspeed": AUTOMATIC} if dimension == "file" else {}
    trainer = transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_config(MODELS["llama"]),
        args=transformers.TrainingArguments(str(folder), **arguments),
        train_dataset=Texts(64),
        data_collator=without_mask,
    )
    trainer.train()
    keys = ("loss", "grad_norm", "learning_rate", "epoch")
    log = [{key: entry[key] for key in keys if key in entry} for entry in trainer.state.log_history]
    trainer.accelerator.free_memory()
    AcceleratorState._reset_state()
    return {"log": log}


MESHES = ("dp", "tp", "file", "cp", "sp", "sp loader", "ep")
CASES = {f"{name} {mesh}": lambda _folder, name=name, mesh=mesh: train(name, mesh) for name in MODELS for mesh in MESHES}
CASES |= {f"trainer {mesh}": lambda folder, mesh=mesh: train_by_trainer(folder, mesh) for mesh in ("dp", "tp", "file", "cp")}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
