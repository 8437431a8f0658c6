# SPDX-License-Identifier: Apache-2.0
"""Runs one training script of another project: python script_client.py FOLDER CASE.

The variables SCRIPT_TRANSFORMERS, SCRIPT_DIFFUSERS and SCRIPT_DATA name the projects' folders with examples, and the
folder that script_data.py has made.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import transformers
from client_data import files_of, run_cases

# A softmax over keys does not depend on their bias: its gradient is rounding, which Adam turns into updates.
ONLY_ROUNDING = ("self.key.bias", "self_attn.k_proj.bias")
STATES = ("epoch_", "step_", "checkpoint-")  # Folders of save_state, whose format is the library's.
TRANSFORMERS = (
    "--per_device_train_batch_size 4 --per_device_eval_batch_size 4 --learning_rate 1e-2 --num_train_epochs 2 "
    "--gradient_accumulation_steps 2 --num_warmup_steps 2 --seed 5 --output_dir {out} "
)
STABLE_DIFFUSION = (
    "--pretrained_model_name_or_path {data}/sd --resolution 16 --train_batch_size 2 --max_train_steps 4 --seed 5 "
    "--learning_rate 1e-3 --lr_scheduler constant_with_warmup --lr_warmup_steps 1 --output_dir {out} "
    "--checkpointing_steps 2 --checkpoints_total_limit 1 "
)
# Each script with its arguments. The file's first folder is a variable.
SCRIPTS = {
    "glue": (
        "{transformers}/text-classification/run_glue_no_trainer.py",
        TRANSFORMERS + "--model_name_or_path {data}/bert --train_file {data}/glue_train.json "
        "--validation_file {data}/glue_val.json --checkpointing_steps epoch",
    ),
    "token_classification": (
        "{transformers}/token-classification/run_ner_no_trainer.py",
        TRANSFORMERS + "--model_name_or_path {data}/bert --train_file {data}/ner_train.json "
        "--validation_file {data}/ner_val.json",
    ),
    "text_to_image": (
        "{diffusers}/text_to_image/train_text_to_image.py",
        STABLE_DIFFUSION + "--train_data_dir {data}/captioned --gradient_accumulation_steps 2 --snr_gamma 5 --use_ema",
    ),
    "text_to_image_lora": (
        "{diffusers}/text_to_image/train_text_to_image_lora.py",
        STABLE_DIFFUSION + "--train_data_dir {data}/captioned --gradient_accumulation_steps 2 --rank 2",
    ),
    "dreambooth": (
        "{diffusers}/dreambooth/train_dreambooth.py",
        STABLE_DIFFUSION + "--instance_data_dir {data}/instances --instance_prompt ba --train_text_encoder",
    ),
    "unconditional": (
        "{diffusers}/unconditional_image_generation/train_unconditional.py",
        "--train_data_dir {data}/captioned --model_config_name_or_path {data}/ddpm --resolution 16 --train_batch_size 2 "
        "--num_epochs 1 --gradient_accumulation_steps 2 --learning_rate 1e-3 --lr_warmup_steps 2 --ddpm_num_steps 20 "
        "--ddpm_num_inference_steps 2 --eval_batch_size 2 --dataloader_num_workers 0 --output_dir {out} "
        "--checkpointing_steps 2 --use_ema",
    ),
}


def run_script(script: str, arguments: str, folder: Path) -> dict[str, Any]:
    """Runs the script as the main program, and returns what the main process finds in its output folder."""
    places = {
        "transformers": os.environ.get("SCRIPT_TRANSFORMERS", ""),
        "diffusers": os.environ.get("SCRIPT_DIFFUSERS", ""),
        "data": os.environ["SCRIPT_DATA"],
        "out": str(folder),
    }
    os.chdir(Path(places["data"]) / "metrics")  # Metrics are found by their folders' names.
    transformers.set_seed(5)  # The unconditional script has no option for it.
    sys.argv[:] = [script.format(**places), *(word.format(**places) for word in arguments.split())]
    runpy.run_path(sys.argv[0], run_name="__main__")
    if os.environ.get("RANK", "0") != "0":
        return {}
    names = [name for name in files_of(folder) if not name.startswith((*STATES, "logs"))]
    values = {name: safetensors.torch.load_file(folder / name) for name in names if name.endswith(".safetensors")}
    return {
        "files": names,
        "states": sorted(path.name for path in folder.iterdir() if path.name.startswith(STATES)),
        "sums": {
            name: {
                key: float(value.double().abs().sum())
                for key, value in tensors.items()
                if not key.endswith(ONLY_ROUNDING)
            }
            for name, tensors in values.items()
        },
        "results": [json.loads(path.read_text()) for path in folder.glob("all_results.json")],
    }


CASES = {name: functools.partial(run_script, *script) for name, script in SCRIPTS.items()}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
