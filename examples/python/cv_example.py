# SPDX-License-Identifier: Apache-2.0
"""Classifies pictures with a frozen backbone, as Accelerate's example of this name does with ResNet50 and pets.

The script uses only calls of Accelerate: with `accelerate` in the two imports below it is an Accelerate script. The
pictures are those of Fashion-MNIST, and the backbone is small and random, so it downloads nothing.

Examples:
  python cv_example.py --checkpointing_steps epoch --output_dir runs/cv
  lockstep launch -n 2 cv_example.py --output_dir runs/cv --resume_from_checkpoint runs/cv/epoch_1
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from common import FASHION_MNIST, fashion_mnist
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, Subset

from lockstep import Accelerator
from lockstep.utils import set_seed


class Pictures(Dataset):
    """Fashion-MNIST as {"image": float32 (1, 28, 28), "label": int64}."""

    def __init__(self, part: str, folder: str) -> None:
        self.samples = fashion_mnist(part, folder)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.samples[index]
        return {"image": image, "label": label}


class Classifier(nn.Module):
    """A backbone of random convolutions, and a linear classifier."""

    mean, std = (0.286,), (0.353,)

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 48, 5, padding=2), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.LayerNorm(48 * 7 * 7)
        )
        self.classifier = nn.Linear(48 * 7 * 7, num_classes)

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.backbone(image))


def training_function(config: dict[str, Any], args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision, project_dir=args.output_dir)
    set_seed(config["seed"])
    train_dataset = Subset(Pictures("train", args.data_dir), range(config["samples"]))
    eval_dataset = Subset(Pictures("t10k", args.data_dir), range(config["samples"] // 4))
    train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=config["batch_size"])
    eval_dataloader = DataLoader(eval_dataset, shuffle=False, batch_size=config["batch_size"])

    model = Classifier(num_classes=10).to(accelerator.device)
    for param in model.parameters():
        param.requires_grad = False
    for param in model.get_classifier().parameters():
        param.requires_grad = True
    mean = torch.tensor(model.mean, device=accelerator.device)[None, :, None, None]
    std = torch.tensor(model.std, device=accelerator.device)[None, :, None, None]

    lr = config["lr"]
    optimizer = torch.optim.Adam(params=model.parameters(), lr=lr / 25)
    lr_scheduler = OneCycleLR(
        optimizer=optimizer, max_lr=lr, epochs=config["num_epochs"], steps_per_epoch=len(train_dataloader)
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    starting_epoch = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        # Checkpoints are named after the last complete epoch.
        starting_epoch = int(os.path.basename(args.resume_from_checkpoint.rstrip("/")).split("_")[1]) + 1
        accelerator.print(f"resumed from {args.resume_from_checkpoint}")

    for epoch in range(starting_epoch, config["num_epochs"]):
        model.train()
        for batch in train_dataloader:
            inputs = (batch["image"] - mean) / std
            loss = nn.functional.cross_entropy(model(inputs), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        model.eval()
        accurate = num_elems = 0
        for batch in eval_dataloader:
            inputs = (batch["image"] - mean) / std
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["label"]))
            num_elems += references.shape[0]
            accurate += (predictions == references).long().sum().item()
        # Use accelerator.print to print only on the main process.
        accelerator.print(f"epoch {epoch}: {100 * accurate / num_elems:.2f} % of {num_elems}")

        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", default=FASHION_MNIST, help="folder with the four IDX files")
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], help="precision of the computation")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--checkpointing_steps", choices=["epoch"], help="epoch: save the state after each epoch")
    parser.add_argument("--output_dir", default="runs/cv", help="folder for checkpoints")
    parser.add_argument("--resume_from_checkpoint", help="folder of a checkpoint: its run continues")
    args = parser.parse_args()
    config = {"lr": 1e-2, "num_epochs": 3, "seed": 42, "batch_size": 64, "samples": 4000}
    training_function(config, args)


if __name__ == "__main__":
    main()
