# SPDX-License-Identifier: Apache-2.0
"""Loops over diffusers' models as its training scripts have them: python diffusers_client.py FOLDER [CASE ...].

The main process alone saves checkpoints, with hooks that write the models, and saves averaged weights at the end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import accelerate
import diffusers
import peft
import torch
import transformers
from client_data import CONDITIONED_UNET, UNET, files_of, run_cases, sums_in
from diffusers.training_utils import EMAModel

UPDATES_AN_EPOCH = 3


def make_unet() -> Any:
    transformers.set_seed(7)
    return diffusers.UNet2DModel(sample_size=8, **UNET)


def make_conditioned() -> Any:
    transformers.set_seed(7)
    return diffusers.UNet2DConditionModel(cross_attention_dim=8, **CONDITIONED_UNET)


class Images(torch.utils.data.Dataset):
    """Generated images, each with its own noise and time, so that results do not depend on random states."""

    def __init__(self, channels: int, count: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.images = torch.rand(count, channels, 8, 8, generator=generator)
        self.noises = torch.randn(count, channels, 8, 8, generator=generator)
        self.times = torch.randint(0, 100, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "noise": self.noises[index], "time": self.times[index]}


def loss_of(model: Any, scheduler: Any, batch: dict[str, Any], **conditions: Any) -> Any:
    noisy = scheduler.add_noise(batch["image"], batch["noise"], batch["time"])
    return torch.nn.functional.mse_loss(model(noisy, batch["time"], **conditions).sample, batch["noise"])


def train_averaged(folder: Path, resumes: bool) -> dict[str, Any]:
    """Trains two epochs with averaged weights, or the second one from a checkpoint after the first."""
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    unet = make_unet()
    average = EMAModel(unet.parameters(), decay=0.9, model_cls=diffusers.UNet2DModel, model_config=unet.config)

    def save_models(models: list[Any], weights: list[Any], output_dir: str) -> None:
        if accelerator.is_main_process:
            average.save_pretrained(os.path.join(output_dir, "unet_ema"))
            for model in models:
                accelerator.unwrap_model(model).save_pretrained(os.path.join(output_dir, "unet"))
                weights.pop()

    def load_models(models: list[Any], input_dir: str) -> None:
        saved = EMAModel.from_pretrained(os.path.join(input_dir, "unet_ema"), diffusers.UNet2DModel)
        average.load_state_dict(saved.state_dict())
        while models:
            model = accelerator.unwrap_model(models.pop())
            loaded = diffusers.UNet2DModel.from_pretrained(input_dir, subfolder="unet")
            model.register_to_config(**loaded.config)
            model.load_state_dict(loaded.state_dict())

    accelerator.register_save_state_pre_hook(save_models)
    accelerator.register_load_state_pre_hook(load_models)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Images(3, 24 // (2 // accelerator.num_processes)), batch_size=2)
    schedule = diffusers.optimization.get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=12)
    unet, optimizer, loader, schedule = accelerator.prepare(unet, optimizer, loader, schedule)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    first_epoch = 0
    if resumes:
        accelerator.load_state(str(folder / "checkpoint"))
        first_epoch = 1
    losses = []
    updates = first_epoch * UPDATES_AN_EPOCH
    for _ in range(first_epoch, 2):
        for batch in loader:
            with accelerator.accumulate(unet):
                loss = loss_of(unet, scheduler, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
            if accelerator.sync_gradients:
                average.step(unet.parameters())
                updates += 1
                if updates == UPDATES_AN_EPOCH and not resumes and accelerator.is_main_process:
                    accelerator.save_state(str(folder / "checkpoint"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        trained = accelerator.unwrap_model(unet)
        average.copy_to(trained.parameters())
        trained.save_pretrained(folder / "final")
    if resumes:  # The last case: Accelerate closes the processes' connection.
        accelerator.end_training()
    return {
        "losses": losses,
        "updates": updates,
        "rate": schedule.get_last_lr(),
        "files": files_of(folder / "final"),
        "sums": sums_in(folder / "final" / "diffusion_pytorch_model.safetensors"),
    }


def averaged(folder: Path) -> Any:
    return train_averaged(folder, resumes=False)


def averaged_resumed(folder: Path) -> Any:
    return train_averaged(folder.with_name("averaged"), resumes=True)


def adapters(folder: Path) -> Any:
    """Trains adapters of a conditioned model, which hooks save alone."""
    accelerator = accelerate.Accelerator()
    unet = make_conditioned()
    unet.requires_grad_(False)
    unet.add_adapter(peft.LoraConfig(r=2, lora_alpha=2, init_lora_weights="gaussian", target_modules=["to_q", "to_v"]))

    def save_models(models: list[Any], weights: list[Any], output_dir: str) -> None:
        if accelerator.is_main_process:
            for model in models:
                values = peft.get_peft_model_state_dict(accelerator.unwrap_model(model))
                torch.save(values, os.path.join(output_dir, "adapters.pt"))
                weights.pop()

    accelerator.register_save_state_pre_hook(save_models)
    trained = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    loader = torch.utils.data.DataLoader(Images(4, 16), batch_size=2)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    text = torch.linspace(-1, 1, 2 * 4 * 8).view(2, 4, 8)
    losses = []
    for step, batch in enumerate(loader):
        loss = loss_of(unet, scheduler, batch, encoder_hidden_states=text)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        if step == 1 and accelerator.is_main_process:
            accelerator.save_state(str(folder / "checkpoint"))
    accelerator.wait_for_everyone()
    values = peft.get_peft_model_state_dict(accelerator.unwrap_model(unet))
    return {"losses": losses, "sums": {name: float(value.double().abs().sum()) for name, value in values.items()}}


CASES = {case.__name__: case for case in (adapters, averaged, averaged_resumed)}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:], Path(sys.argv[1]))
