# SPDX-License-Identifier: Apache-2.0
"""Trains a small CNN on Fashion-MNIST, on one process or many.

Examples:
  python fashion_mnist.py --epochs 1
  lockstep launch -n 2 fashion_mnist.py --epochs 3 --output runs/two
  lockstep launch -n 2 fashion_mnist.py --epochs 5 --output runs/two --resume
  lockstep launch -n 2 fashion_mnist.py --zero 3 --output runs/sharded

It is examples/fashion_mnist in Python: the same network, options and schedule.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from common import FASHION_MNIST, Progress, check_output, fashion_mnist, parser_of, positive, resume_if
from torch.nn import functional
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from lockstep import Accelerator
from lockstep.utils import ProjectConfiguration, set_seed


class Net(torch.nn.Module):
    """Classifies 28 x 28 grey pictures: x is (B, 1, 28, 28), the result, 10 class scores, is (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 7 * 7, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: Net, test: Any) -> tuple[float, float]:
    """Returns the accuracy and the mean loss on all test pictures, the same on every process. Collective."""
    model.eval()
    scores, targets = zip(*(accelerator.gather_for_metrics((model(data), target)) for data, target in test))
    model.train()
    all_scores, all_targets = torch.cat(scores), torch.cat(targets)
    loss = functional.cross_entropy(all_scores, all_targets).item()
    return (all_scores.argmax(1) == all_targets).double().mean().item(), loss


def train(options: argparse.Namespace) -> None:
    accelerator = Accelerator(
        gradient_accumulation_steps=options.accumulate,
        log_with=["tensorboard", "jsonl"],
        project_config=ProjectConfiguration(
            str(options.output), logging_dir=str(options.output / "logs"), automatic_checkpoint_naming=True
        ),
        zero={"stage": options.zero} if options.zero else None,
    )
    check_output(options.output, options.resume)
    accelerator.wait_for_everyone()
    set_seed(options.seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    train_loader = DataLoader(fashion_mnist("train", options.data), batch_size=options.batch_size, shuffle=True)
    test_loader = DataLoader(fashion_mnist("t10k", options.data), batch_size=options.batch_size)
    # A schedule counts the batches of all processes, as in Accelerate: this is the length of the plain loader.
    total = options.epochs * math.ceil(len(train_loader) / options.accumulate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    resume_if(options.resume, accelerator, options.output)
    accelerator.init_trackers("fashion_mnist", {"lr": options.lr, "batch_size": options.batch_size})

    began, samples = time.monotonic(), 0
    accuracy = test_loss = math.nan
    for epoch in range(train_loader.iteration, options.epochs):
        bar = tqdm(train_loader, desc=f"epoch {epoch + 1}", disable=not accelerator.is_local_main_process)
        for data, target in bar:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(data), target)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            samples += len(data) * accelerator.num_processes
            if not accelerator.sync_gradients:
                continue
            progress.steps += 1
            if progress.steps % 50 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.log({"train/loss": mean}, step=progress.steps)
                bar.set_postfix_str(f"loss {mean:.3f}")
            if progress.steps == options.steps:
                break
        bar.close()
        accuracy, test_loss = evaluate(accelerator, model, test_loader)
        accelerator.log({"test/accuracy": accuracy, "test/loss": test_loss}, step=progress.steps)
        accelerator.save_state()
        accelerator.print(f"epoch {epoch + 1}: accuracy {100 * accuracy:.1f} %, test loss {test_loss:.3f}")
        if progress.steps == options.steps:
            break
    seconds = time.monotonic() - began
    accelerator.end_training()
    if math.isnan(accuracy):
        accelerator.print("the checkpoint has all --epochs already; give a larger number to continue")
        accuracy, test_loss = evaluate(accelerator, model, test_loader)
    accelerator.print(
        f"Speed     {samples / seconds:,.0f} pictures a second on {accelerator.num_processes} processes\n"
        f"Accuracy  {100 * accuracy:.1f} % of {len(test_loader.dataset):,} test pictures\nFiles     {options.output}"
    )
    if options.json:
        result = {"loss": test_loss, "accuracy": accuracy, "steps": progress.steps}
        accelerator.print(json.dumps(result | {"samples_per_second": samples / seconds}))


def main() -> None:
    parser = parser_of(__doc__, epochs=7, output=Path("runs/fashion_mnist"))
    parser.add_argument("--lr", type=positive, default=2e-3, help="initial learning rate of AdamW, which falls to zero")
    parser.add_argument("--data", default=FASHION_MNIST, help="folder with the four IDX files")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
