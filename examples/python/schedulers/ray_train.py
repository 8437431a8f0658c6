# SPDX-License-Identifier: Apache-2.0
"""Runs the loop on two workers of Ray Train, which keeps track of the checkpoints: `python ray_train.py FOLDER`."""
import sys
from pathlib import Path
from typing import Any

import ray.train
from loop import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from lockstep import Accelerator


def train_on_worker(config: dict[str, Any]) -> None:
    def report(accelerator: Accelerator, epoch: int, loss: float) -> None:
        folder = Path(config["folder"], f"state_{epoch}")  # On storage that all hosts share.
        accelerator.save_state(folder)
        checkpoint = Checkpoint.from_directory(folder) if accelerator.is_main_process else None
        ray.train.report({"epoch": epoch, "loss": loss}, checkpoint=checkpoint)

    latest = ray.train.get_checkpoint()  # Of the run that failed, when Ray starts the workers again.
    if latest is None:
        train(config["epochs"], after_epoch=report)
    else:
        with latest.as_directory() as folder:
            train(config["epochs"], folder, report)


def main(folder: str) -> None:
    result = TorchTrainer(
        train_on_worker,
        train_loop_config={"epochs": 3, "folder": folder},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="ray", storage_path=folder),
    ).fit()
    print(f"loss {result.metrics['loss']:.6f}, checkpoint {result.checkpoint.path}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
