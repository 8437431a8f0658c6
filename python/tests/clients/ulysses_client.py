# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's tutorial for long sequences: an engine trains transformers' Llama, whose sequences two ranks divide.

In one process register_with_transformers does nothing, and the program trains on the full sequences.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm as dist
import torch
import torch.distributed.nn
import transformers
from client_data import run_cases
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    texts = torch.stack(rows)
    labels = texts.masked_fill(torch.arange(texts.shape[1]) < 5, -100)  # A prompt, of which more is in the first part.
    return {"input_ids": texts, "position_ids": torch.arange(texts.shape[1]).expand_as(texts), "labels": labels}


def train(stage: int, kv_heads: int) -> Any:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=kv_heads))
    dist.init_distributed()
    ranks = dist.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    }
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=ranks,
        micro_batch_size=2,
    )
    engine, *_ = deepspeed.initialize(config=config, model=model, mpu=mpu)
    texts = torch.randint(64, (16, 16), generator=torch.Generator().manual_seed(3))
    # Each rank has batches of its own, which the ranks compute in turn.
    own = texts.view(-1, ranks, 2, 16)[:, dist.get_rank()].flatten(0, 1)
    loader: Any = torch.utils.data.DataLoader(own, batch_size=2, collate_fn=collate)
    if mpu is not None:
        group = mpu.get_sequence_parallel_group()
        loader = UlyssesSPDataLoaderAdapter(
            loader, mpu.get_sequence_parallel_rank(), group, mpu.get_sequence_parallel_world_size(), "cpu"
        )
    losses, norms = [], []
    for _ in range(2):
        for batch in loader:
            if mpu is None:
                loss = engine(**batch).loss
            else:
                outputs, labels = engine(**{**batch, "use_cache": False}), batch["shift_labels"]
                loss = engine.module.loss_function(
                    logits=outputs.logits, labels=None, shift_labels=labels, vocab_size=SIZES["vocab_size"]
                )
                all_losses = torch.distributed.nn.functional.all_gather(loss, group=group)
                counts = torch.distributed.nn.functional.all_gather((labels != -100).sum(), group=group)
                loss = sum(x * n for x, n in zip(all_losses, counts)) / sum(counts)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            norms.append(engine.get_global_grad_norm())
    return {"losses": losses, "norms": norms}




CASES = {
    "stage_1": lambda _folder: train(1, 2),
}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
