# SPDX-License-Identifier: Apache-2.0
"""Tiny models from configurations, generated data, and the record of a run, for client programs.

The programs import no name of Lockstep: real Accelerate and DeepSpeed, or Lockstep in their place, run them.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

VOCABULARY = 64
LENGTH = 12
# Arguments of a transformers.Trainer and of its subclasses.
TRAINING = {
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "seed": 5,
}
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "lora_dropout": 0.0, "fan_in_fan_out": True}

# Arguments of the smallest models of diffusers: UNet2DModel, and UNet2DConditionModel.
_UNET = {"layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}
UNET = {
    **_UNET,
    "down_block_types": ("DownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "UpBlock2D"),
}
CONDITIONED_UNET = {
    **_UNET,
    "sample_size": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 4,
}


class Texts(torch.utils.data.Dataset):
    """Generated sequences; `varied` gives them different lengths."""

    def __init__(self, count: int, varied: bool = False) -> None:
        generator = torch.Generator().manual_seed(11)
        first = torch.randint(2, VOCABULARY, (count, 1), generator=generator)
        steps = torch.arange(LENGTH)
        self.rows = (first + steps * (1 + first % 3)) % (VOCABULARY - 2) + 2
        self.lengths = [4 + 4 * (index % 3) if varied else LENGTH for index in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.rows[index, : self.lengths[index]].tolist()
        return {"input_ids": ids, "labels": ids, "attention_mask": [1] * len(ids)}


def pad_batch(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A collator that pads to the longest sequence."""
    longest = max(len(row["input_ids"]) for row in rows)
    pads = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        name: torch.tensor([row[name] + [pad] * (longest - len(row[name])) for row in rows])
        for name, pad in pads.items()
    }


def make_gpt2(dropout: float = 0.0) -> Any:
    transformers.set_seed(7)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def sum_of(model: Any) -> float:
    """Returns a number that depends on all trained values of a full model."""
    return sum(float(value.detach().double().abs().sum()) for value in model.parameters() if value.requires_grad)


def sums_in(file: Path) -> dict[str, float]:
    """Returns such a number for each tensor of a file, on the first process."""
    if os.environ.get("RANK", "0") != "0":
        return {}
    return {name: float(value.double().abs().sum()) for name, value in safetensors.torch.load_file(file).items()}


def files_of(folder: Path) -> list[str]:
    """Returns the files of a folder on the first process; others may see it while that process changes it."""
    if os.environ.get("RANK", "0") != "0":
        return []
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run_cases(cases: dict[str, Callable[[Path], Any]], names: list[str], out: Path) -> None:
    """Runs cases of this process, and writes what each returned, or its error, as `out`/rank_N.json."""
    rank = os.environ.get("RANK", "0")
    results: dict[str, Any] = {}
    for name in names or cases:
        print(f"case {name}", flush=True)
        try:
            results[name] = cases[name](out / name)
        except BaseException:
            results[name] = {"error": traceback.format_exc()}
            if os.environ.get("WORLD_SIZE", "1") != "1":  # The other processes wait in the case.
                break
    (out / f"rank_{rank}.json").write_text(json.dumps(results))
