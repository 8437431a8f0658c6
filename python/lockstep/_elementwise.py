# SPDX-License-Identifier: Apache-2.0
"""Optimizer classes of the program under ZeRO, where each rank updates its slices of the parameters.

That gives the same numbers only if the class updates each element by that element's own value, gradient and state, as
SGD and Adam do and LAMB does not. No class says so, hence it is tried on a small tensor, whole and in slices.
"""
from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import torch

from . import _core

_UPDATES = 3  # Of the trial; their gradients differ in size, so that thresholds of norms are met.
_SCALES = (1.0, 1000.0, 0.001)
_SHAPE = (4, 6)
_CUT = 7  # Where the trial's tensor is cut: within a row, and at no multiple of a vector's length.


class _NotElementwise(Exception):
    """Says why a class cannot update slices."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value)


def _kept_options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a checkpoint keeps: numbers, flags and pairs of numbers."""
    return {
        name: float(value) if name == "lr" else value
        for name, value in group.items()
        if name != "params" and (name == "lr" or isinstance(value, (bool, int, float)) or _is_pair(value))
    }


def _simple_attributes(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}


class ElementwiseUpdate:
    """Updates slices of parameters by the rule of an optimizer of the program, whose state the C++ library keeps.

    Throws ConfigError for a class whose update of a slice would differ from that of the full parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._class = type(optimizer)
        self._attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):  # The wrapper calls them.
            self._attributes[hooks] = OrderedDict()
        self._step_form: Any = None  # How the class counts updates: a value of its state's "step", or None.
        self.fields: list[str] = []
        try:
            found = [self._try(index) for index in range(len(optimizer.param_groups))]
            if any(one != found[0] for one in found):
                raise _NotElementwise("its parameter groups have different state")
        except _NotElementwise as error:
            raise _core.ConfigError(
                f"[prepare] under ZeRO each rank updates slices of the parameters, which {self._class.__name__} cannot: "
                f"{error}; use an optimizer of torch.optim whose rule Lockstep has, such as AdamW or SGD, or train "
                "without ZeRO"
            ) from error.__cause__
        self.fields = found[0] if found else []

    @property
    def name(self) -> str:
        return self._class.__name__

    def make_inner(self) -> _core.InnerOptimizer:
        """Returns the optimizer of the C++ library that updates by this."""
        groups = [(group["params"], _kept_options(group)) for group in self._optimizer.param_groups]
        return _core.elementwise_optimizer(self.name, self.fields, self._step_form is not None, groups, self)

    def __call__(
        self,
        index: int,
        lr: float,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        state: list[list[torch.Tensor]],
        steps: list[int],
        first: bool,
    ) -> None:
        """Updates `parameters` and `state`, [field][tensor], in place, with the options of parameter group `index`."""
        group = dict(self._optimizer.param_groups[index])
        if "lr" in group and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = lr
        leaves = [parameter.detach() for parameter in parameters]
        # A new object for each call: the updates of several buckets may run at the same time.
        optimizer = self._new_optimizer(group, leaves)
        for tensor, (leaf, gradient) in enumerate(zip(leaves, gradients)):
            leaf.grad = gradient
            if not first:
                given = {field: state[position][tensor] for position, field in enumerate(self.fields)}
                if self._step_form is not None:
                    given["step"] = self._counted(steps[tensor] - 1)
                optimizer.state[leaf].update(given)
        self._class.step(optimizer)
        for position, field in enumerate(self.fields):
            for leaf, kept in zip(leaves, state[position]):
                new = optimizer.state[leaf][field]
                if new is not kept:
                    kept.copy_(new)

    def _new_optimizer(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> Any:
        """Returns an optimizer of the program's class without state, for `parameters`."""
        optimizer = object.__new__(self._class)
        vars(optimizer).update(self._attributes)
        optimizer.param_groups = [{**group, "params": parameters}]
        optimizer.state = defaultdict(dict)
        return optimizer

    def _counted(self, updates: int) -> Any:
        if isinstance(self._step_form, torch.Tensor):
            return torch.full_like(self._step_form, updates)
        return type(self._step_form)(updates)

    # --- the trial
    def _try(self, index: int) -> list[str]:
        """Returns the fields of the state of one group. Throws _NotElementwise."""
        group = self._optimizer.param_groups[index]
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(_SHAPE, generator=generator).to(device)
        slices = [part.clone() for part in (whole.flatten()[:_CUT], whole.flatten()[_CUT:])]
        of_whole, of_slices = self._new_optimizer(group, [whole]), self._new_optimizer(group, slices)
        fields: list[str] = []
        with torch.random.fork_rng(devices=[]):
            for update in range(1, _UPDATES + 1):
                gradient = torch.randn(_SHAPE, generator=generator).to(device) * _SCALES[update - 1]
                whole.grad = gradient.clone()
                slices[0].grad, slices[1].grad = gradient.flatten()[:_CUT].clone(), gradient.flatten()[_CUT:].clone()
                for optimizer in (of_whole, of_slices):
                    self._run(optimizer, group)
                found = self._fields_of(of_whole.state[whole], whole, update)
                if update > 1 and found != fields:
                    raise _NotElementwise(f"its state has {fields} after the first update, and {found} after another")
                fields = found
                self._compare(whole, slices, of_whole, of_slices, fields)
        return fields

    def _run(self, optimizer: Any, group: dict[str, Any]) -> None:
        attributes = _simple_attributes(vars(optimizer))
        try:
            self._class.step(optimizer)
        except Exception as error:  # Whatever a program's class throws for the trial's tensors.
            raise _NotElementwise(f"its step() failed for a slice of a parameter: {error}") from error
        after = optimizer.param_groups[0]
        for name, value in group.items():
            if name != "params" and after.get(name) is not value and after.get(name) != value:
                raise _NotElementwise(f"its step() changes the option '{name}' of its parameter group")
        for name, value in _simple_attributes(vars(optimizer)).items():
            if not name.startswith("_opt_called") and attributes.get(name) != value:
                raise _NotElementwise(f"its step() changes its attribute '{name}', which is kept in no checkpoint")

    def _fields_of(self, state: dict[Any, Any], parameter: torch.Tensor, update: int) -> list[str]:
        fields = []
        for name, value in state.items():
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
        if self._step_form is not None and not fields:
            raise _NotElementwise("its state has nothing but a step")
        return sorted(fields)

    @staticmethod
    def _compare(
        whole: torch.Tensor, slices: list[torch.Tensor], of_whole: Any, of_slices: Any, fields: list[str]
    ) -> None:
        pairs = [(whole, slices)]
        pairs += [(of_whole.state[whole][name], [of_slices.state[one].get(name) for one in slices]) for name in fields]
        for full, parts in pairs:
            # Vectors and the elements after the last full vector may be rounded differently.
            if not torch.allclose(full.flatten(), torch.cat(parts), rtol=1e-4, atol=1e-6, equal_nan=True):
                raise _NotElementwise("its update of an element depends on other elements, or on random numbers")
