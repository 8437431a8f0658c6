#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes schedules.json: learning rates of torch, transformers and DeepSpeed, for lockstep/schedule's tests.

Run with the three installed (made with torch 2.13.0, transformers and deepspeed as `made_by` says):

    DS_BUILD_OPS=0 pip install torch transformers deepspeed
    python tests/golden/make_schedules.py

A case is the rate at construction and after each scheduler step, found by stepping the real scheduler;
`momentum`, where the schedule moves it, is SGD's momentum or Adam's first beta.
"""

import json
import logging
import math
import pathlib
import warnings

import deepspeed
import torch
import transformers
from deepspeed.runtime import lr_schedules as ds
from torch.optim import lr_scheduler as tl
from transformers import optimization as tr

BASE_LR = 0.3


def trace(make, steps=30, lrs=(BASE_LR,), momentum=None):
    """Every rate of `make(optimizer)`; one list of rates a group if there are several."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    if momentum == "momentum":
        optimizer = torch.optim.SGD(groups, lr=lrs[0], momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(groups, lr=lrs[0])
    scheduler = make(optimizer)
    rates, momenta = [], []

    def note():
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        group = optimizer.param_groups[0]
        momenta.append(group["momentum"] if momentum == "momentum" else group["betas"][0])

    note()
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        note()
    case = {"lr": rates if len(lrs) > 1 else [rate for (rate,) in rates]}
    if momentum:
        case["momentum"] = momenta
    return case


def torch_cases():
    yield "step_decay", trace(lambda o: tl.StepLR(o, 7, gamma=0.3))
    yield "step_decay/2", trace(lambda o: tl.StepLR(o, 2, gamma=0.5), 6)
    yield "multi_step_decay", trace(lambda o: tl.MultiStepLR(o, [15, 4, 9, 9], gamma=0.2))
    yield "exponential_decay", trace(lambda o: tl.ExponentialLR(o, 0.93))
    yield "cosine_annealing", trace(lambda o: tl.CosineAnnealingLR(o, 12, eta_min=0.01), 40)
    yield "cosine_warm_restarts", trace(lambda o: tl.CosineAnnealingWarmRestarts(o, 8, eta_min=0.02))
    yield "cosine_warm_restarts/2", trace(lambda o: tl.CosineAnnealingWarmRestarts(o, 4, T_mult=2), 32)
    yield "cosine_warm_restarts/3", trace(lambda o: tl.CosineAnnealingWarmRestarts(o, 1, T_mult=3), 14)
    yield "polynomial_decay", trace(lambda o: tl.PolynomialLR(o, 20, power=2.5), 24)
    yield "custom", trace(lambda o: tl.LambdaLR(o, lambda step: 1 / (1 + step)), 10)
    # The last step of one total: past it torch extrapolates to a rate that no update should use.
    yield "one_cycle", trace(lambda o: tl.OneCycleLR(o, 0.5, total_steps=25), 24, momentum="momentum")
    yield "one_cycle/linear", trace(
        lambda o: tl.OneCycleLR(
            o, 0.5, total_steps=25, pct_start=0.5, anneal_strategy="linear", base_momentum=0.7, max_momentum=0.97,
            div_factor=10, final_div_factor=100,
        ), 24, momentum="betas",
    )
    yield "one_cycle/three_phase", trace(
        lambda o: tl.OneCycleLR(o, 0.5, total_steps=30, pct_start=0.4, three_phase=True), 29, momentum="momentum")
    yield "one_cycle/no_momentum", trace(
        lambda o: tl.OneCycleLR(o, 0.5, total_steps=11, pct_start=0.0, cycle_momentum=False), 10)
    yield "constant_factor", trace(tl.ConstantLR, 8)
    yield "constant_factor/2", trace(lambda o: tl.ConstantLR(o, 0.2, 9), 12)
    yield "linear_factor", trace(tl.LinearLR, 8)
    yield "linear_factor/falls", trace(lambda o: tl.LinearLR(o, 0.9, 0.1, 12), 15)
    yield "cyclic", trace(lambda o: tl.CyclicLR(o, 0.05, 0.5, 6), momentum="momentum")
    yield "cyclic/triangular2", trace(
        lambda o: tl.CyclicLR(o, 0.05, 0.5, 4, 7, mode="triangular2", base_momentum=0.7, max_momentum=0.95),
        momentum="betas",
    )
    yield "cyclic/exp_range", trace(
        lambda o: tl.CyclicLR(o, 0.05, 0.5, 3, mode="exp_range", gamma=0.97), momentum="momentum")
    yield "cyclic/groups", trace(
        lambda o: tl.CyclicLR(o, [0.05, 0.01], [0.5, 0.2], 5, 0, cycle_momentum=False), 16, (0.3, 0.2))
    yield "one_cycle/groups", trace(lambda o: tl.OneCycleLR(o, [0.5, 0.1], total_steps=11), 10, (0.3, 0.2))


def transformers_cases():
    yield "constant", trace(tr.get_constant_schedule, 5)
    yield "warmup_constant", trace(lambda o: tr.get_constant_schedule_with_warmup(o, 6), 10)
    yield "warmup_linear", trace(lambda o: tr.get_linear_schedule_with_warmup(o, 7, 28))
    yield "warmup_linear/none", trace(lambda o: tr.get_linear_schedule_with_warmup(o, 0, 28))
    yield "warmup_cosine", trace(lambda o: tr.get_cosine_schedule_with_warmup(o, 5, 30))
    yield "warmup_cosine/2", trace(lambda o: tr.get_cosine_schedule_with_warmup(o, 5, 30, num_cycles=2.25))
    yield "warmup_cosine/min", trace(
        lambda o: tr.get_cosine_with_min_lr_schedule_with_warmup(o, 5, 30, min_lr_rate=0.1))
    yield "warmup_cosine_restarts", trace(
        lambda o: tr.get_cosine_with_hard_restarts_schedule_with_warmup(o, 5, 29, num_cycles=3))
    yield "warmup_polynomial", trace(lambda o: tr.get_polynomial_decay_schedule_with_warmup(o, 4, 27))
    yield "warmup_polynomial/2", trace(
        lambda o: tr.get_polynomial_decay_schedule_with_warmup(o, 4, 27, lr_end=0.05, power=2.0))
    yield "warmup_inverse_sqrt", trace(lambda o: tr.get_inverse_sqrt_schedule(o, 6))
    yield "warmup_inverse_sqrt/none", trace(lambda o: tr.get_inverse_sqrt_schedule(o, 0), 5)
    yield "warmup_inverse_sqrt/timescale", trace(lambda o: tr.get_inverse_sqrt_schedule(o, 6, timescale=50))
    yield "warmup_stable_decay", trace(lambda o: tr.get_wsd_schedule(o, 6, 12, num_training_steps=30), 33)
    for kind in ("linear", "cosine", "1-sqrt"):
        yield f"warmup_stable_decay/{kind}", trace(
            lambda o: tr.get_wsd_schedule(
                o, 6, 12, num_stable_steps=10, warmup_type=kind, decay_type=kind, min_lr_ratio=0.1),
            32,
        )


def deepspeed_cases():
    yield "deepspeed_warmup", trace(lambda o: ds.WarmupLR(o, 0.01, 0.2, 9), 14)
    yield "deepspeed_warmup/linear", trace(lambda o: ds.WarmupLR(o, 0.0, None, 9, "linear"), 14)
    yield "deepspeed_warmup/1", trace(lambda o: ds.WarmupLR(o, warmup_num_steps=1), 5)
    yield "deepspeed_warmup/groups", trace(lambda o: ds.WarmupLR(o, [0.0, 0.1], [0.2, 0.3], 5), 8, (0.3, 0.4))
    yield "deepspeed_warmup_decay", trace(lambda o: ds.WarmupDecayLR(o, 25, 0.01, 0.2, 9))
    yield "deepspeed_warmup_decay/linear", trace(lambda o: ds.WarmupDecayLR(o, 25, 0.01, 0.2, 9, "linear"))
    yield "deepspeed_warmup_decay/default", trace(lambda o: ds.WarmupDecayLR(o, 20), 21)
    yield "deepspeed_warmup_cosine", trace(lambda o: ds.WarmupCosineLR(o, 25, 0.05, 9))
    yield "deepspeed_warmup_cosine/linear", trace(lambda o: ds.WarmupCosineLR(o, 25, 0.05, 9, 0.02, "linear"))
    yield "deepspeed_one_cycle", trace(
        lambda o: ds.OneCycle(
            o, 0.01, 0.2, decay_lr_rate=0.3, cycle_first_step_size=7, cycle_second_step_size=11, decay_step_size=4,
            decay_mom_rate=0.01,
        ), 36, momentum="betas",
    )
    yield "deepspeed_one_cycle/stairs", trace(
        lambda o: ds.OneCycle(
            o, 0.01, 0.2, cycle_first_step_size=8, cycle_second_step_size=9, cycle_first_stair_count=4,
            cycle_second_stair_count=3, cycle_min_mom=0.85, cycle_max_mom=0.99,
        ), 24, momentum="betas",
    )
    yield "deepspeed_one_cycle/same_stairs", trace(
        lambda o: ds.OneCycle(o, 0.01, 0.2, cycle_first_step_size=6, cycle_first_stair_count=3, decay_step_size=2,
                              cycle_momentum=False), 18)
    yield "deepspeed_lr_range_test", trace(lambda o: ds.LRRangeTest(o, 0.01, 5, 1.5), 14)
    yield "deepspeed_lr_range_test/stairs", trace(lambda o: ds.LRRangeTest(o, 0.01, 5, 1.5, True), 14)


def plateau_cases():
    falling = [1.0, 0.9, 0.85, 0.85, 0.8499, 0.86, 0.9, 0.7, 0.71, 0.72, 0.73, 0.74, 0.6, 0.61, math.nan, math.inf,
               0.62, 0.63, 0.64, 0.5999, 0.599, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]
    rising = [0.1, 0.2, 0.2, 0.2, 0.2, 0.25, 0.24, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]
    options = [
        ("default", falling, dict(patience=2)),
        ("cooldown", falling, dict(patience=1, cooldown=2, factor=0.5, threshold=0.01)),
        ("abs", falling, dict(patience=1, factor=0.5, threshold=0.05, threshold_mode="abs")),
        ("max", rising, dict(mode="max", patience=1, factor=0.5, min_lr=0.05)),
        ("max_abs", rising, dict(mode="max", patience=0, factor=0.2, threshold_mode="abs", threshold=0.01)),
        ("eps", rising, dict(mode="max", patience=0, factor=0.9, eps=0.02)),
        ("groups", rising, dict(mode="max", patience=1, factor=0.1, min_lr=[0.05, 0.001])),
    ]
    for name, metrics, keywords in options:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = torch.optim.SGD(
            [{"params": [parameters[0]], "lr": 0.3}, {"params": [parameters[1]], "lr": 0.1}], lr=0.3)
        scheduler = tl.ReduceLROnPlateau(optimizer, **keywords)
        rates = []
        for metric in metrics:
            scheduler.step(metric)
            rates.append([group["lr"] for group in optimizer.param_groups])
        # JSON has no NaN or infinity.
        yield name, {"metrics": [m if math.isfinite(m) else str(m) for m in metrics], "lr": rates}


def compact(value):
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (torch, transformers, deepspeed))
    schedules = dict([*torch_cases(), *transformers_cases(), *deepspeed_cases()])
    lines = [f'"made_by":{compact("tests/golden/make_schedules.py, " + versions)}', f'"base_lr":{BASE_LR}']
    for key, cases in (("schedules", schedules), ("plateau", dict(plateau_cases()))):
        lines.append(f'"{key}":{{\n' + ",\n".join(f"{compact(n)}:{compact(c)}" for n, c in cases.items()) + "\n}")
    pathlib.Path(__file__).with_name("schedules.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
