# SPDX-License-Identifier: Apache-2.0
"""Cases about values, training, learning rates and attributes; see accelerate_cases.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from accelerate_case_tools import (
    Stream,
    case,
    lib,
    make,
    numbers,
    plain,
)

# --- values of all processes


@case
def metrics_of_numbers() -> Any:
    accelerator = make()
    return {
        size: torch.cat([accelerator.gather_for_metrics(batch) for batch in numbers(accelerator, size)]).tolist()
        for size in range(1, 26)
    }


@case
def metrics_of_split_batches() -> Any:
    accelerator = make(split_batches=True)
    return {
        size: torch.cat([accelerator.gather_for_metrics(batch) for batch in numbers(accelerator, size)]).tolist()
        for size in range(4, 26)
    }


@case
def metrics_of_dropped_batches() -> Any:
    accelerator = make()
    return {
        size: [accelerator.gather_for_metrics(batch).tolist() for batch in numbers(accelerator, size, drop_last=True)]
        for size in (8, 15, 16, 22)
    }


@case
def metrics_of_a_dispatched_stream() -> Any:
    accelerator = make()
    result = {}
    for size in (8, 9, 15, 16, 17, 22):
        loader = accelerator.prepare(DataLoader(Stream(size), batch_size=4))
        result[size] = torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist()
    return result


@case
def nested_metrics() -> Any:
    accelerator = make()
    result = []
    for batch in numbers(accelerator, 13):
        value = {"x": (batch, batch * 2), "y": [batch.float()[:, None]]}
        result.append(plain(accelerator.gather_for_metrics(value)))
    return result


@case
def metrics_of_objects() -> Any:
    accelerator = make()
    return [
        accelerator.gather_for_metrics([f"sample {index}" for index in batch.tolist()], use_gather_object=True)
        for batch in numbers(accelerator, 16)
    ]


@case
def gathered_values() -> Any:
    accelerator = make()
    rank = accelerator.process_index
    value = torch.arange(6.0).reshape(2, 3) + 10 * rank
    padded = accelerator.pad_across_processes(torch.ones(2 + rank, 3 - rank), dim=1, pad_index=7)
    rows = accelerator.pad_across_processes(torch.full((2 + rank, 2), float(rank)), dim=0, pad_first=True)
    return plain(
        {
            "gather": accelerator.gather({"a": value, "b": [torch.tensor(rank)]}),
            "sum": accelerator.reduce(value),
            "mean": accelerator.reduce((value, value.double() * 3), "mean"),
            "padded": padded,
            "rows": rows,
            "rows gathered": accelerator.gather(rows),
        }
    )


# --- training


def net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


class Samples(Dataset):
    """64 samples of 8 features and a class of 3."""

    def __init__(self, size: int = 64) -> None:
        generator = torch.Generator()
        generator.manual_seed(1)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = torch.randint(3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def train(
    accelerator: Any,
    make_optimizer: Callable[[Any], Any],
    steps: int = 20,
    limit: Callable[[Any], Any] | None = None,
    make_schedule: Callable[[Any], Any] | None = None,
    shuffled: bool = True,
    size: int = 64,
) -> Any:
    """Trains for `steps` micro-steps. Returns losses, gradient norms, rates and the sum of the weights."""
    model = net()
    optimizer = make_optimizer(model.parameters())
    schedule = make_schedule(optimizer) if make_schedule else None
    torch.manual_seed(3)
    loader = DataLoader(Samples(size), batch_size=4, shuffle=shuffled)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    result: dict[str, Any] = {"loss": [], "norm": [], "rate": [], "sync": [], "skipped": 0}
    done = 0
    while done < steps:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and limit is not None:
                    norm = limit(model.parameters())
                    result["norm"].append(None if norm is None else norm.item())
                optimizer.step()
                if schedule is not None:
                    schedule.step()
                    result["rate"].append(schedule.get_last_lr()[0])
                optimizer.zero_grad()
            result["loss"].append(loss.item())
            result["sync"].append(accelerator.sync_gradients)
            result["skipped"] += accelerator.optimizer_step_was_skipped
            done += 1
            if done == steps:
                break
    result["weights"] = [parameter.double().sum().item() for parameter in model.parameters()]
    return result


@case
def train_sgd() -> Any:
    return train(make(), lambda p: torch.optim.SGD(p, lr=0.1))


@case
def train_sgd_momentum() -> Any:
    return train(make(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))


@case
def train_adamw() -> Any:
    return train(make(), lambda p: torch.optim.AdamW(p, lr=1e-2))


@case
def train_adam() -> Any:
    return train(make(), lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, amsgrad=True))


@case
def train_rmsprop() -> Any:
    return train(make(), lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5))


@case
def train_adagrad() -> Any:
    return train(make(), lambda p: torch.optim.Adagrad(p, lr=1e-2))


@case
def train_adamax() -> Any:
    return train(make(), lambda p: torch.optim.Adamax(p, lr=1e-2))


@case
def train_parameter_groups() -> Any:
    def optimizer(parameters: Any) -> Any:
        weights = list(parameters)
        return torch.optim.AdamW(
            [{"params": weights[:2], "lr": 1e-3}, {"params": weights[2:], "weight_decay": 0.0}], lr=1e-2
        )

    return train(make(), optimizer)


@case
def train_split_batches() -> Any:
    return train(make(split_batches=True), lambda p: torch.optim.AdamW(p, lr=1e-2))


@case
def train_accumulated() -> Any:
    return train(make(gradient_accumulation_steps=4), lambda p: torch.optim.SGD(p, lr=0.1), steps=24)


@case
def train_clipped() -> Any:
    accelerator = make(gradient_accumulation_steps=2)
    limit = lambda parameters: accelerator.clip_grad_norm_(parameters, 0.1)  # noqa: E731
    return train(accelerator, lambda p: torch.optim.AdamW(p, lr=1e-2), limit=limit)


@case
def train_clipped_by_infinity_norm() -> Any:
    accelerator = make()
    limit = lambda parameters: accelerator.clip_grad_norm_(parameters, 0.01, norm_type=float("inf"))  # noqa: E731
    return train(accelerator, lambda p: torch.optim.SGD(p, lr=0.1), limit=limit)


@case
def train_clipped_by_value() -> Any:
    accelerator = make()
    limit = lambda parameters: accelerator.clip_grad_value_(parameters, 0.01)  # noqa: E731
    return train(accelerator, lambda p: torch.optim.SGD(p, lr=0.1), limit=limit)


@case
def train_without_accumulate() -> Any:
    """Accumulates by hand with no_sync."""
    accelerator = make()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(Samples(), batch_size=4, shuffle=True)
    )
    losses = []
    for _ in range(2):
        for index, (x, y) in enumerate(loader):
            due = (index + 1) % 2 == 0
            if due:
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss / 2)
                optimizer.step()
                optimizer.zero_grad()
            else:
                with accelerator.no_sync(model):
                    loss = functional.cross_entropy(model(x), y)
                    accelerator.backward(loss / 2)
            losses.append(loss.item())
    return {"loss": losses}


@case
def train_two_models() -> Any:
    accelerator = make(gradient_accumulation_steps=2)
    one, two = net(1), net(2)
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.AdamW(two.parameters(), lr=1e-2)
    torch.manual_seed(3)
    one, two, first, second, loader = accelerator.prepare(
        one, two, first, second, DataLoader(Samples(), batch_size=4, shuffle=True)
    )
    losses = []
    for x, y in loader:
        with accelerator.accumulate(one, two):
            loss = functional.cross_entropy(one(x) + two(x), y)
            accelerator.backward(loss)
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
        losses.append(loss.item())
    return {"loss": losses}


@case
def train_local_sgd() -> Any:
    accelerator = make(gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(Samples(), batch_size=4, shuffle=True)
    )
    losses = []
    # Accelerate counts micro-steps and Lockstep updates: here every call averages in both.
    with importlib.import_module(lib.__name__ + ".local_sgd").LocalSGD(
        accelerator=accelerator, model=model, local_sgd_steps=1, enabled=True
    ) as local_sgd:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()
            losses.append(loss.item())
    return {"loss": losses, "weights": [p.double().sum().item() for p in model.parameters()]}


@case
def train_bf16() -> Any:
    # 16-bit sums may be rounded elsewhere, so the test compares these losses loosely.
    return train(make(mixed_precision="bf16"), lambda p: torch.optim.SGD(p, lr=0.1))


@case
def bf16_outputs() -> Any:
    accelerator = make(mixed_precision="bf16")
    model = accelerator.prepare(net())
    x = torch.ones(2, 8, device=accelerator.device)
    output = model(x)
    with accelerator.autocast():
        product = x @ x.T
    return [str(output.dtype), str(product.dtype), str(accelerator.unwrap_model(model)[0].weight.dtype)]


# --- learning rates


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=48),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=48),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, total_iters=10),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=4),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.95),
        ],
        milestones=[4],
    ),
}


def rates(**options: Any) -> Any:
    results = {}
    for name, schedule in SCHEDULES.items():
        result = train(make(**options), lambda p: torch.optim.SGD(p, lr=0.1), steps=24, make_schedule=schedule)
        results[name] = {"rate": result["rate"], "sync": result["sync"], "loss": result["loss"]}
    return results


@case
def rates_of_each_step() -> Any:
    return rates()


@case
def rates_with_accumulation() -> Any:
    return rates(gradient_accumulation_steps=2)


@case
def rates_of_a_short_cycle() -> Any:
    """A schedule that ends before the loop keeps its last rate."""
    cycle = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=14)  # noqa: E731
    sgd = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    return [
        train(make(gradient_accumulation_steps=count), sgd, 24, make_schedule=cycle)["rate"] for count in (1, 2)
    ]


@case
def rates_with_split_batches() -> Any:
    return rates(split_batches=True)


@case
def rates_stepped_freely() -> Any:
    return rates(step_scheduler_with_optimizer=False, gradient_accumulation_steps=2)


@case
def rates_unadjusted() -> Any:
    module = importlib.import_module(lib.__name__ + ".utils")
    plugin = module.GradientAccumulationPlugin(num_steps=2, adjust_scheduler=False)
    return rates(gradient_accumulation_plugin=plugin)


@case
def accumulation_over_the_end_of_a_loader() -> Any:
    """Both libraries also update with the last batch of a loader. (64 samples: no partial group here.)"""
    module = importlib.import_module(lib.__name__ + ".utils")
    results = {}
    for sync_with_dataloader in (True, False):
        plugin = module.GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=sync_with_dataloader)
        accelerator = make(gradient_accumulation_plugin=plugin)
        # 40 samples: 5 batches for each of 2 processes, and 10 for one.
        result = train(accelerator, lambda p: torch.optim.SGD(p, lr=0.0), steps=25, size=40, shuffled=False)
        results[str(sync_with_dataloader)] = result["sync"]
    return results


# --- attributes


@case
def attributes() -> Any:
    accelerator = make(gradient_accumulation_steps=2)
    names = (
        "num_processes",
        "process_index",
        "local_process_index",
        "is_main_process",
        "is_local_main_process",
        "is_last_process",
        "mixed_precision",
        "use_distributed",
        "gradient_accumulation_steps",
        "split_batches",
        "even_batches",
        "dispatch_batches",
        "optimizer_step_was_skipped",
        "save_iteration",
        "project_dir",
        "logging_dir",
    )
    values = {name: getattr(accelerator, name) for name in names}
    values["distributed_type"] = str(accelerator.distributed_type)
    values["device"] = accelerator.device.type
    values["trigger"] = accelerator.check_trigger()
    if accelerator.is_last_process:
        accelerator.set_trigger()
    values["triggered"] = [accelerator.check_trigger(), accelerator.check_trigger()]
    return values


@case
def one_process_at_a_time() -> Any:
    accelerator = make()
    ran = []
    accelerator.on_main_process(lambda: ran.append("main"))()
    accelerator.on_local_main_process(lambda: ran.append("local main"))()
    accelerator.on_last_process(lambda: ran.append("last"))()
    accelerator.on_process(lambda: ran.append("1"), process_index=1)()
    accelerator.on_local_process(lambda: ran.append("local 0"), local_process_index=0)()

    @accelerator.on_process(process_index=0)
    def decorated() -> None:
        ran.append("decorated")

    decorated()
    return ran


@case
def freed_memory() -> Any:
    accelerator = make()
    model, loader = accelerator.prepare(net(), DataLoader(Samples(), batch_size=4))
    model, loader = accelerator.free_memory(model, loader)
    return [model is None, loader is None, len(accelerator._models)]
