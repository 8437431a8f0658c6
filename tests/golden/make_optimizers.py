#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes optimizers.json: the parameters after 50 and 100 steps of torch.optim's optimizers, for
lockstep/optim/optimizers_test.cpp.

Run with the torch that Lockstep is built against (made with torch 2.13.0+cpu, ./.venv/bin/python):

    python tests/golden/make_optimizers.py

torch.optim runs as by default on the CPU, one parameter at a time, except in "fused" cases. It lacks Lion and
LAMB, which are written out below from their papers, and two options of DeepSpeed, from its kernels. Parameters,
gradients and learning rates come from integer formulas that the C++ test repeats.
"""

import json
import math
import pathlib

import torch

SHAPES = [(3, 5), (7,), (), (2, 3, 2, 2), (4, 1)]
STEPS = 100
MIDDLE = 50


def numbers(shape, first, step, modulus, scale):
    """((first + step * i) % modulus - modulus // 2) / scale for the i-th element, exact in every dtype."""
    count = math.prod(shape)
    index = torch.arange(count, dtype=torch.int64)
    return (((first + step * index) % modulus - modulus // 2).to(torch.float64) / scale).reshape(shape)


def start(k):
    return numbers(SHAPES[k], 3 * k, 5, 11, 4)


def gradient(k, t):
    """The gradient of parameter k in step t = 0, 1, ...; None in steps without one."""
    if (k == 1 and t % 3 == 1) or (k == 3 and t < 10):
        return None
    return numbers(SHAPES[k], 13 * t + 29 * k, 7, 18, 8) + 1 / 16  # Never 0.


def learning_rate(base, t):
    return base * (1 + t % 4) / 4


class Written(torch.optim.Optimizer):
    """An optimizer written out here: `update` changes one parameter that has a gradient."""

    def update(self, p, state, group):
        raise NotImplementedError

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, self.state[p], group)


def moments(p, state, grad, betas):
    """Adam's first and second moment of `p` after this step."""
    beta1, beta2 = betas
    state["step"] = state.get("step", 0) + 1
    m = state.setdefault("exp_avg", torch.zeros_like(p))
    v = state.setdefault("exp_avg_sq", torch.zeros_like(p))
    m.copy_(beta1 * m + (1 - beta1) * grad)
    v.copy_(beta2 * v + (1 - beta2) * grad**2)
    return m, v


class Lion(Written):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    def update(self, p, state, group):
        beta1, beta2 = group["betas"]
        m = state.setdefault("exp_avg", torch.zeros_like(p))
        c = beta1 * m + (1 - beta1) * p.grad
        p.copy_(p - group["lr"] * (torch.sign(c) + group["weight_decay"] * p))
        m.copy_(beta2 * m + (1 - beta2) * p.grad)


class LAMB(Written):
    """You et al. 2020, algorithm 2, with the trust ratio limited by DeepSpeed's two bounds."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
                 bias_correction=True, eps_inside_sqrt=False, max_coeff=10.0, min_coeff=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                      bias_correction=bias_correction, eps_inside_sqrt=eps_inside_sqrt,
                                      max_coeff=max_coeff, min_coeff=min_coeff))

    def update(self, p, state, group):
        beta1, beta2 = group["betas"]
        m_hat, v_hat = moments(p, state, p.grad, group["betas"])
        if group["bias_correction"]:
            m_hat = m_hat / (1 - beta1 ** state["step"])
            v_hat = v_hat / (1 - beta2 ** state["step"])
        root = (v_hat + group["eps"]).sqrt() if group["eps_inside_sqrt"] else v_hat.sqrt() + group["eps"]
        u = m_hat / root + group["weight_decay"] * p
        size, update_size = p.norm().item(), u.norm().item()
        trust = 1.0
        if size > 0 and update_size > 0:
            trust = min(max(size / update_size, group["min_coeff"]), group["max_coeff"])
        p.copy_(p - group["lr"] * trust * u)


class UncorrectedAdam(Written):
    """DeepSpeed's FusedAdam with bias_correction off; `adam_w_mode` selects the weight decay."""

    adam_w_mode = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def update(self, p, state, group):
        grad = p.grad if self.adam_w_mode else p.grad + group["weight_decay"] * p
        m, v = moments(p, state, grad, group["betas"])
        u = m / (v.sqrt() + group["eps"])
        p.copy_(p - group["lr"] * (u + group["weight_decay"] * p if self.adam_w_mode else u))


class UncorrectedAdamW(UncorrectedAdam):
    adam_w_mode = True


CLASSES = {
    name: getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "Adadelta", "Adamax", "NAdam", "RAdam",
                 "ASGD", "Rprop")
}
CLASSES |= {"Lion": Lion, "LAMB": LAMB}
UNCORRECTED = {"Adam": UncorrectedAdam, "AdamW": UncorrectedAdamW}

# Type, dtype, options of the one group, or of two: the even parameters and the odd ones.
CASES = [
    ("SGD", "float32", [{"lr": 0.1}]),
    ("SGD", "float32", [{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}]),
    ("SGD", "float64", [{"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}]),
    ("SGD", "float64", [{"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}]),
    ("SGD", "float32", [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.02, "weight_decay": 0.2}]),
    ("SGD", "bfloat16", [{"lr": 0.1, "momentum": 0.9}]),
    ("Adam", "float32", [{}]),
    ("Adam", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}]),
    ("Adam", "float32", [{"lr": 0.02, "maximize": True}, {"lr": 0.01, "amsgrad": True}]),
    ("AdamW", "float32", [{}]),
    ("AdamW", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}]),
    ("AdamW", "float32", [{"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.02, "weight_decay": 0.0, "maximize": True}]),
    ("AdamW", "bfloat16", [{"lr": 0.02}]),
    ("Adagrad", "float32", [{}]),
    ("Adagrad", "bfloat16", [{"lr": 0.1}]),
    ("Adagrad", "float64", [{"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5,
                             "eps": 1e-4, "maximize": True}]),
    ("RMSprop", "float32", [{}]),
    ("RMSprop", "float64", [{"lr": 0.02, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.8,
                             "centered": True}]),
    ("RMSprop", "float32", [{"momentum": 0.9, "maximize": True}, {"centered": True}]),
    ("RMSprop", "bfloat16", [{"lr": 0.02}]),
    ("Lion", "float32", [{"lr": 0.01, "weight_decay": 0.1}]),
    ("Lion", "float64", [{"lr": 0.01, "betas": (0.95, 0.98), "weight_decay": 0.5}, {}]),
    ("Adafactor", "float32", [{}]),
    ("Adafactor", "float64", [{"lr": 0.3, "beta2_decay": -0.6, "eps": (1e-4, 1e-2), "d": 1.5, "weight_decay": 0.1,
                               "maximize": True}]),
    ("Adafactor", "bfloat16", [{"lr": 0.05}]),
    ("Adafactor", "float32", [{"lr": 0.3}, {"eps": (None, 0.1)}]),
    ("LAMB", "float32", [{"lr": 0.02, "weight_decay": 0.1}]),
    ("LAMB", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1,
                          "bias_correction": False}]),
    ("LAMB", "float64", [{"lr": 0.02, "max_coeff": 0.4, "min_coeff": 0.3}, {"lr": 0.1, "weight_decay": 0.02}]),
    ("LAMB", "float64", [{"lr": 0.02, "eps": 1e-2, "weight_decay": 0.1, "eps_inside_sqrt": True},
                         {"lr": 0.02, "eps": 1e-2, "eps_inside_sqrt": True, "bias_correction": False}]),
    ("Adam", "float64", [{"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1, "bias_correction": False}]),
    ("AdamW", "float32", [{"lr": 0.02, "weight_decay": 0.1, "bias_correction": False}]),
    ("AdamW", "float64", [{"lr": 0.02, "weight_decay": 0.1, "bias_correction": False}]),
    ("Adadelta", "float32", [{}]),
    ("Adadelta", "float64", [{"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1, "maximize": True}]),
    ("Adadelta", "float32", [{"maximize": True}, {"lr": 2.0, "weight_decay": 0.1}]),
    ("Adadelta", "bfloat16", [{}]),
    ("Adamax", "float32", [{}]),
    ("Adamax", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}]),
    ("Adamax", "bfloat16", [{"lr": 0.02}]),
    ("NAdam", "float32", [{}]),
    ("NAdam", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1,
                           "maximize": True}]),
    ("NAdam", "float32", [{"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}, {"maximize": True}]),
    ("NAdam", "bfloat16", [{"lr": 0.02}]),
    ("RAdam", "float32", [{}]),
    ("RAdam", "float64", [{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}]),
    ("RAdam", "float32", [{"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}, {"maximize": True}]),
    ("RAdam", "bfloat16", [{"lr": 0.02}]),
    ("ASGD", "float32", [{}]),
    ("ASGD", "float64", [{"lr": 0.1, "lambd": 0.1, "alpha": 0.6, "t0": 5, "weight_decay": 0.1, "maximize": True}]),
    ("ASGD", "float32", [{"lr": 0.1, "t0": 20}, {"lr": 0.02, "lambd": 0.5, "maximize": True}]),
    ("ASGD", "bfloat16", [{"lr": 0.1, "t0": 30}]),
    ("Rprop", "float32", [{}]),
    ("Rprop", "float64", [{"lr": 0.1, "etas": (0.7, 1.1), "step_sizes": (1e-3, 0.2), "maximize": True}]),
    ("Rprop", "bfloat16", [{"lr": 0.02}]),
]


# One parameter longer than the vectors of any CPU (and no multiple of them), in half precision: type,
# dtype, options. The fused kernels where C++ uses them.
LONG_SHAPE = (8, 125)
LONG_STEPS = 20
LONG_CASES = [(name, dtype, {"lr": 0.02, **options})
              for name, options in (("SGD", {"momentum": 0.9, "weight_decay": 0.1}), ("Adam", {}), ("AdamW", {}),
                                    ("Adagrad", {}), ("RMSprop", {}), ("Adafactor", {}), ("Adadelta", {}), ("Adamax", {}),
                                    ("NAdam", {}), ("RAdam", {}), ("ASGD", {"t0": 5}), ("Rprop", {}))
              for dtype in ("bfloat16", "float16")]


def snapshot(optimizer, parameters):
    """Parameter values, then state: {field: [values of parameter 0, ...]}; null where there is none."""
    fields = sorted({field for p in parameters for field, value in optimizer.state.get(p, {}).items()
                     if value is not None})
    taken = {"parameter": [p.detach().double().flatten().tolist() for p in parameters]}
    for field in fields:
        values = [optimizer.state.get(p, {}).get(field) for p in parameters]
        taken[field] = [None if v is None else torch.as_tensor(v).double().flatten().tolist() for v in values]
    return taken


def fused_where_cpp_is(name, dtype):
    return {"fused": True} if dtype in ("bfloat16", "float16") and name in ("Adam", "AdamW", "Adagrad") else {}


def run_long(name, dtype, options):
    """The sum of all elements, exact in double, and every 41st."""
    parameter = torch.nn.Parameter(numbers(LONG_SHAPE, 3, 5, 11, 4).to(getattr(torch, dtype)))
    optimizer = CLASSES[name]([parameter], **options, **fused_where_cpp_is(name, dtype))
    for t in range(LONG_STEPS):
        parameter.grad = (numbers(LONG_SHAPE, 13 * t, 7, 18, 8) + 1 / 16).to(parameter.dtype)
        optimizer.step()
    values = parameter.detach().double().flatten()
    return {"type": name, "dtype": dtype, "groups": [options], "steps": LONG_STEPS, "sum": values.sum().item(),
            "elements": values[::41].tolist()}


def run(name, dtype, options):
    parameters = [torch.nn.Parameter(start(k).to(getattr(torch, dtype))) for k in range(len(SHAPES))]
    # In half precision torch's loop rounds after every operation, its fused kernels only at the end. Its
    # fused SGD is wrong there in 2.13 (parameters stay unchanged), so C++ follows the loop.
    extra = fused_where_cpp_is(name, dtype)
    groups = [{"params": parameters[g :: len(options)], **group} for g, group in enumerate(options)]
    uncorrected = any(not group.get("bias_correction", True) for group in options) and name in UNCORRECTED
    optimizer = (UNCORRECTED if uncorrected else CLASSES)[name](groups, **extra)
    bases = [group["lr"] for group in optimizer.param_groups]
    middle = None
    for t in range(STEPS):
        for group, base in zip(optimizer.param_groups, bases):
            group["lr"] = learning_rate(base, t)
        for k, p in enumerate(parameters):
            g = gradient(k, t)
            p.grad = None if g is None else g.to(p.dtype)
        optimizer.step()
        if t + 1 == MIDDLE:
            middle = snapshot(optimizer, parameters)["parameter"]
    return {"type": name, "dtype": dtype, "fused": bool(extra), "groups": options, "middle": middle,
            "end": snapshot(optimizer, parameters)}


def rounded(value, digits):
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    return value


def main():
    torch.set_num_threads(1)
    digits = {"bfloat16": 9, "float32": 9, "float64": 14}
    lines = [f'"made_by":"tests/golden/make_optimizers.py, torch {torch.__version__}"']
    cases = []
    for case in CASES:
        result = run(*case)
        for key in ("middle", "end"):
            result[key] = rounded(result[key], digits[case[1]])
        cases.append(json.dumps(result, separators=(",", ":")))
    lines.append('"cases":[\n' + ",\n".join(cases) + "\n]")
    long_cases = [json.dumps(run_long(*case), separators=(",", ":")) for case in LONG_CASES]
    lines.append('"long_cases":[\n' + ",\n".join(long_cases) + "\n]")
    pathlib.Path(__file__).with_name("optimizers.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
