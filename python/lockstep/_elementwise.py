# SPDX-License-Identifier: Apache-2.0
"""Optimizer classes of the program under ZeRO, where each rank updates its slices of the parameters.

That gives the same numbers only if the class updates each element by that element's own value, gradient and state, as
SGD and Adam do and LAMB does not. No class says so, hence it is tried on a small tensor, in full and in slices.
"""
from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import _core

# The trial's gradients differ in size, so that thresholds of norms are met.
_GRADIENT_SCALES = (1.0, 1000.0, 0.001, 1.0)
_SHAPE = (4, 6)
# The trial's tensor is cut within a row, and at no multiple of a vector's length.
_CUT_AT = 7
# A schedule may begin with a rate of 0, which would hide every update.
_RATE = 0.1


class _NotElementwise(Exception):
    """Says why a class cannot update slices."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value)


def _kept_options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a checkpoint keeps: numbers, flags and pairs of numbers."""
    kept = {
        name: value
        for name, value in group.items()
        if name != "params" and (isinstance(value, (bool, int, float)) or _is_pair(value))
    }
    return kept | ({"lr": float(group["lr"])} if isinstance(group.get("lr"), (float, int, torch.Tensor)) else {})


def _copied(value: Any) -> Any:
    """Returns a value that a step may change, without the original."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, (dict, list, set)) else value


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)


def _simple_attributes(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}


class _Slices(NamedTuple):
    """Slices of parameters of one group, and what their update needs."""

    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor]
    state: list[list[torch.Tensor]]  # [field][slice]
    steps: list[int]  # The number of updates of each slice, including this one.
    first: bool  # The state was created for this update.


class ElementwiseUpdate:
    """Updates slices of parameters by the rule of an optimizer of the program, whose state the C++ library keeps.

    Throws ConfigError for a class whose update of a slice would differ from that of the full parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._class = type(optimizer)
        self._step_form: Any = None  # How the class counts updates: a value of its state's "step", or None.
        self.fields: list[str] = []
        try:
            found = []
            for index in range(len(optimizer.param_groups)):
                self._run_trial(index)
                found.append((self.fields, type(self._step_form)))
            if any(one != found[0] for one in found):
                raise _NotElementwise("its parameter groups have different state")
        except _NotElementwise as error:
            raise _core.ConfigError(
                f"[prepare] under ZeRO each rank updates slices of the parameters, which {self._class.__name__} "
                f"cannot: {error}; use an optimizer of torch.optim whose rule Lockstep has, such as AdamW or SGD, or train "
                "without ZeRO"
            ) from error.__cause__

    @property
    def name(self) -> str:
        return self._class.__name__

    def make_inner(self) -> _core.InnerOptimizer:
        """Returns the optimizer of the C++ library that updates by this."""
        groups = [(group["params"], _kept_options(group)) for group in self._optimizer.param_groups]
        return _core.elementwise_optimizer(self.name, self.fields, self._step_form is not None, groups, self)

    def __call__(self, index: int, lr: float, *slices: Any) -> None:
        """Updates slices (the fields of _Slices) in place, with the options of parameter group `index`."""
        group = dict(self._optimizer.param_groups[index])
        if "lr" in group and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = lr
        self._update(self._new_optimizer(group), _Slices(*slices))

    def _update(self, optimizer: Any, slices: _Slices) -> None:
        parameters, gradients, state, steps, first = slices
        leaves = [parameter.detach() for parameter in parameters]
        optimizer.param_groups[0]["params"] = leaves
        for tensor, (leaf, gradient) in enumerate(zip(leaves, gradients)):
            leaf.grad = gradient
            if not first:
                given = {field: state[position][tensor] for position, field in enumerate(self.fields)}
                if self._step_form is not None:
                    given["step"] = self._counted(steps[tensor] - 1)
                optimizer.state[leaf].update(given)
        self._class.step(optimizer)
        for tensor, leaf in enumerate(leaves):
            kept = optimizer.state[leaf]
            more = {name for name, value in kept.items() if isinstance(value, torch.Tensor)} - {"step", *self.fields}
            if more:
                raise _core.ConfigError(
                    f"[optimizer] {self.name} has created state '{min(more)}' in update {steps[tensor]}; expected the "
                    f"fields of its first update, {self.fields}: under ZeRO others are not kept"
                )
            for position, field in enumerate(self.fields):
                if kept[field] is not state[position][tensor]:
                    state[position][tensor].copy_(kept[field])

    def _new_optimizer(self, group: dict[str, Any]) -> Any:
        """Returns an optimizer of the program's class, with its attributes as they are now, without state.

        Each update has one of its own: those of several buckets may run at the same time.
        """
        optimizer = object.__new__(self._class)
        attributes = {name: value for name, value in vars(self._optimizer).items() if name != "step"}
        vars(optimizer).update(attributes)
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):  # The wrapper calls them.
            setattr(optimizer, hooks, OrderedDict())
        optimizer.param_groups = [dict(group)]
        optimizer.state = defaultdict(dict)
        return optimizer

    def _counted(self, updates: int) -> Any:
        if isinstance(self._step_form, torch.Tensor):
            return torch.full_like(self._step_form, updates)
        return type(self._step_form)(updates)

    # --- the trial
    def _run_trial(self, index: int) -> None:
        """Updates a full tensor by one optimizer, and in slices as under ZeRO. Throws _NotElementwise."""
        group = {name: _copied(value) for name, value in self._optimizer.param_groups[index].items()}
        parameters = group.pop("params")
        device = parameters[0].device if parameters else torch.device("cpu")
        if "lr" in group:
            group["lr"] = torch.full_like(group["lr"], _RATE) if isinstance(group["lr"], torch.Tensor) else _RATE
        generator = torch.Generator().manual_seed(1)
        full = torch.randn(_SHAPE, generator=generator).to(device)
        slices = [part.clone() for part in (full.flatten()[:_CUT_AT], full.flatten()[_CUT_AT:])]
        before = full.clone()
        full_optimizer = self._trial_optimizer(group)
        full_optimizer.param_groups[0]["params"] = [full]
        state: list[list[torch.Tensor]] = []
        self._step_form = None
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for update, scale in enumerate(_GRADIENT_SCALES, 1):
                gradient = torch.randn(_SHAPE, generator=generator).to(device) * scale
                full.grad = gradient.clone()
                self._run(full_optimizer, group, lambda: self._class.step(full_optimizer))
                self._find_state(full_optimizer, full, update)
                if update == 1:
                    state = [[torch.zeros_like(part) for part in slices] for _ in self.fields]
                slice_optimizer = self._trial_optimizer(group)
                parts = [gradient.flatten()[:_CUT_AT].clone(), gradient.flatten()[_CUT_AT:].clone()]
                cut = _Slices(slices, parts, state, [update] * len(slices), update == 1)
                self._run(slice_optimizer, group, lambda: self._update(slice_optimizer, cut))
                self._compare(full, slices, before)
                for position, field in enumerate(self.fields):
                    self._compare(full_optimizer.state[full][field], state[position], torch.zeros_like(full))
        if torch.equal(full, before):
            raise _NotElementwise("its step() changed nothing of a plain tensor with a gradient")

    def _trial_optimizer(self, group: dict[str, Any]) -> Any:
        optimizer = self._new_optimizer({name: _copied(value) for name, value in group.items()})
        for name, value in list(vars(optimizer).items()):
            if name not in ("state", "param_groups"):
                setattr(optimizer, name, _copied(value))
        return optimizer

    def _run(self, optimizer: Any, group: dict[str, Any], step: Callable[[], Any]) -> None:
        attributes = _simple_attributes(vars(optimizer))
        try:
            step()
        except _core.ConfigError as error:
            raise _NotElementwise(str(error).split("] ", 1)[-1]) from None
        except Exception as error:  # Whatever a program's class throws for the trial's tensors.
            raise _NotElementwise(f"its step() failed for a slice of a parameter: {error}") from error
        after = optimizer.param_groups[0]
        for name, value in group.items():
            if not _is_equal(after.get(name), value):
                raise _NotElementwise(f"its step() changes the option '{name}' of its parameter group")
        for name, value in _simple_attributes(vars(optimizer)).items():
            if not name.startswith("_opt_called") and attributes.get(name) != value:
                raise _NotElementwise(f"its step() changes its attribute '{name}', which is kept in no checkpoint")

    def _find_state(self, optimizer: Any, parameter: torch.Tensor, update: int) -> None:
        """Sets the fields of the state in the first update. Throws _NotElementwise for state that cannot be cut."""
        for key in optimizer.state:
            if key is not parameter:
                raise _NotElementwise(f"its state has the key {key!r}, which is no parameter")
        fields = []
        for name, value in optimizer.state[parameter].items():
            if value is None:
                continue
            if name == "step":
                if float(value) != update:
                    raise _NotElementwise(f"its state's step is {float(value):g} after update {update}")
                self._step_form = value.detach().clone() if isinstance(value, torch.Tensor) else value
            elif not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise _NotElementwise(f"its state's {name!r} is a {type(value).__name__}; expected a tensor")
            elif value.shape != parameter.shape or not value.is_floating_point():
                raise _NotElementwise(
                    f"its state's '{name}' is {value.dtype} of {list(value.shape)} for a parameter of "
                    f"{list(parameter.shape)}; expected floating-point values of the parameter's shape"
                )
            else:
                fields.append(name)
        if update > 1 and sorted(fields) != self.fields:
            raise _NotElementwise(f"its state has {self.fields} after the first update, and {fields} after another")
        self.fields = sorted(fields)
        if self._step_form is not None and not fields:
            raise _NotElementwise("its state has nothing but a step")

    @staticmethod
    def _compare(full: torch.Tensor, slices: list[torch.Tensor], before: torch.Tensor) -> None:
        """Compares changes. Vectors and the elements after the last full vector may be rounded differently."""
        difference = (full.flatten() - torch.cat(slices)).abs().max()
        largest = torch.maximum((full - before).abs().max(), 1e-3 * before.abs().max())
        if not bool(difference <= 1e-4 * largest):
            raise _NotElementwise("its update of an element depends on other elements, or on random numbers")
