# SPDX-License-Identifier: Apache-2.0
"""Options and data that the examples share."""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

import numpy
import torch
from torch.utils.data import TensorDataset

from lockstep import Accelerator, ConfigError

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # The Debian package dataset-fashion-mnist.


def whole(least: int):
    """Returns a type for argparse: a whole number of at least `least`."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"got {text}, expected a whole number of at least {least}")
        return number

    return parse


def positive(text: str) -> float:
    """A type for argparse: a number above 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"got {text}, expected a number above 0")
    return number


def parser_of(text: str, **defaults: object) -> argparse.ArgumentParser:
    """Returns a parser with the options of every example, whose defaults may be given."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--epochs", type=whole(1), default=1, help="passes over the training data")
    add("--steps", type=whole(0), default=0, help="updates after which training stops; 0: at the end of the epochs")
    add("--batch-size", type=whole(1), default=64, help="samples of a batch, on each process")
    add("--accumulate", type=whole(1), default=1, help="batches for one update, on each process")
    add("--zero", type=int, choices=range(4), default=0, help="stage of ZeRO, from 0 (data parallel) to 3")
    add("--seed", type=whole(0), default=42, help="seed of the initial weights and of the order of samples")
    add("--output", type=Path, help="folder for logs and checkpoints")
    # `lockstep launch --resume` sets this variable.
    resume = os.environ.get("LOCKSTEP_RESUME", "0") not in ("", "0", "false")
    add("--resume", action="store_true", default=resume, help="resume from the newest checkpoint in --output")
    add("--json", action="store_true", help="print the result as one JSON object on the last line")
    parser.set_defaults(**defaults)
    return parser


def check_output(output: Path, resume: bool) -> None:
    """Throws ConfigError if `output` has an earlier run and `resume` is false: their logs would mix."""
    if not resume and (output / "logs").exists():
        raise ConfigError(
            f"[--output] {output} has an earlier run; add --resume to continue it, or choose another --output"
        )


def resume_if(resume: bool, accelerator: Accelerator, output: Path) -> bool:
    """Loads the newest checkpoint of the run if `resume` is true. Returns whether there was one. Collective."""
    if not resume:
        return False
    if not any((output / "checkpoints").glob("checkpoint_*")):
        accelerator.print("no checkpoint to resume from; starting from the beginning")
        return False
    accelerator.load_state()
    accelerator.print(f"resumed from {output}")
    return True


class Progress:
    """The number of updates of a run, which its checkpoints contain. Loaders count their passes."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def fashion_mnist(part: str, folder: str) -> TensorDataset:
    """Reads Fashion-MNIST. `part`: train or t10k. Samples: float32 (1, 28, 28) from 0 to 1, int64 class."""
    arrays = []
    for kind, offset in (("images-idx3", 16), ("labels-idx1", 8)):
        path = Path(folder, f"{part}-{kind}-ubyte.gz")
        if not path.is_file():
            raise ConfigError(f"[--data] {path} is missing; install the Debian package dataset-fashion-mnist")
        arrays.append(numpy.frombuffer(gzip.decompress(path.read_bytes()), numpy.uint8, offset=offset).copy())
    images = torch.from_numpy(arrays[0]).reshape(-1, 1, 28, 28).float().div(255)
    return TensorDataset(images, torch.from_numpy(arrays[1]).long())
