# SPDX-License-Identifier: Apache-2.0
"""The checks of the Python package in `lockstep test --python`: a process of the job that the command starts.

Usage: python -m lockstep.test_utils.selftest FOLDER [--silent]. The main process prints each result, and appends it to
FOLDER/checks.jsonl, which the command reads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from .. import Accelerator, CommError
from ..utils.operations import gather_object


def _net(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def _data(count: int) -> TensorDataset:
    inputs = torch.sin(torch.arange(count * 8, dtype=torch.float)).reshape(count, 8)
    return TensorDataset(inputs, torch.arange(count) % 4)


def _train(accelerator: Accelerator, first: int, last: int, save_at: int, saved: str) -> list[torch.Tensor]:
    """Trains a network of its own from one update to another. Returns its weights. Loads `saved` unless first is 0."""
    net = _net()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=1e-2), DataLoader(_data(64), batch_size=4, shuffle=True)
    )
    if first > 0:
        accelerator.load_state(saved)
    done = first
    while done < last:
        for inputs, targets in loader:
            accelerator.backward(torch.nn.functional.cross_entropy(net(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == save_at:
                accelerator.save_state(saved)
            if done == last:
                break
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    accelerator.free_memory()
    return weights


def check_values(accelerator: Accelerator, folder: Path) -> str:
    rank, world = accelerator.process_index, accelerator.num_processes
    gathered = accelerator.gather({"a": torch.tensor([rank])})["a"].tolist()
    total = accelerator.reduce(torch.tensor([rank])).item()
    objects = gather_object([f"of {rank}"])
    expected = (list(range(world)), world * (world - 1) // 2, [f"of {other}" for other in range(world)])
    return "" if (gathered, total, objects) == expected else f"got {(gathered, total, objects)}, expected {expected}"


def check_loader(accelerator: Accelerator, folder: Path) -> str:
    loader = accelerator.prepare(DataLoader(_data(50), batch_size=4, shuffle=True))
    seen = sorted(value for inputs, _ in loader for value in accelerator.gather_for_metrics(inputs[:, 0]).tolist())
    accelerator.free_memory()
    expected = sorted(_data(50).tensors[0][:, 0].tolist())
    return "" if seen == expected else f"got {len(seen)} samples, expected each of {len(expected)} once"


def check_training(accelerator: Accelerator, folder: Path) -> str:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net, optimizer = accelerator.prepare(net, optimizer)
    reference = _net()
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    rows = 4 * accelerator.num_processes
    inputs, targets = _data(64).tensors
    for step in range(8):
        chosen = torch.arange(step * rows, (step + 1) * rows) % 64
        own = chosen[4 * accelerator.process_index :][:4]
        accelerator.backward(torch.nn.functional.cross_entropy(net(inputs[own]), targets[own]))
        torch.nn.functional.cross_entropy(reference(inputs[chosen]), targets[chosen]).backward()
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
    pairs = zip(net.parameters(), reference.parameters(), strict=True)
    worst = max((own - other).abs().max().item() for own, other in pairs)
    accelerator.free_memory()
    # One process adds the samples of a batch in another order.
    return "" if worst < 1e-4 else f"got weights that differ by {worst} from those of one process, expected 1e-4"


def check_checkpoint(accelerator: Accelerator, folder: Path) -> str:
    saved = str(folder / "checkpoint")
    unbroken = _train(accelerator, 0, 9, save_at=5, saved=saved)
    resumed = _train(accelerator, 5, 9, save_at=0, saved=saved)
    equal = all(torch.equal(own, other) for own, other in zip(resumed, unbroken, strict=True))
    return "" if equal else "got other weights after the resumption, expected those of the unbroken training"


CHECKS: list[tuple[str, str, Callable[[Accelerator, Path], str]]] = [
    ("py.values", "values between Python processes", check_values),
    ("py.loader", "every sample once over a prepared DataLoader", check_loader),
    ("py.training", "training of an nn.Module equals one process", check_training),
    ("py.checkpoint", "a resumed training equals the unbroken one", check_checkpoint),
]


def _run(accelerator: Accelerator, folder: Path, check: Callable[[Accelerator, Path], str]) -> tuple[float, list[Any]]:
    began = time.monotonic()
    try:
        failure = check(accelerator, folder)
    except CommError:
        raise
    except Exception as error:
        failure = str(error) or repr(error)
    seconds = time.monotonic() - began
    everyone = gather_object([{"rank": accelerator.process_index, "message": failure}])
    return seconds, [one for one in everyone if one["message"]]


def main(words: list[str]) -> None:
    folder, silent = Path(words[0]), "--silent" in words[1:]
    accelerator = Accelerator(cpu=True)
    for name, what, check in CHECKS:
        seconds, failures = _run(accelerator, folder, check)
        if not accelerator.is_main_process:
            continue
        line = {"name": name, "what": what, "ok": not failures, "seconds": seconds, "failures": failures}
        with open(folder / "checks.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if not silent:
            print(f"  {'FAIL' if failures else 'ok  '}  {name:<14} {seconds * 1000:7.1f} ms  {what}", flush=True)
            for failure in failures:
                print(f"        rank {failure['rank']}: {failure['message']}", flush=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(sys.argv[1:])
