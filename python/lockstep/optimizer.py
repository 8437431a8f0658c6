# SPDX-License-Identifier: Apache-2.0
"""The wrapper that `Accelerator.prepare` returns for an optimizer of torch.optim."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from . import _core
from ._codec import flatten, unflatten
from ._elementwise import ElementwiseUpdate
from .state import GradientState


def sparse_weights(models: Iterable[torch.nn.Module]) -> set[int]:
    """Returns the ids of the weights whose gradients are sparse: those of an Embedding with sparse=True."""
    return {
        id(module.weight)
        for model in models
        for module in model.modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
    }


def _core_class(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns the C++ optimizer with the same rule, or None if there is none for these options."""
    core_rule = getattr(optimizer, "core_rule", None)
    if callable(core_rule):  # A class of this package, such as deepspeed's FusedAdam.
        return core_rule()
    name = type(optimizer).__name__
    if type(optimizer) is not getattr(torch.optim, name, None):
        return None
    if name == "Adam" and all(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        name = "AdamW"
    known = _core.optimizer_options(name)
    if known is None:
        return None
    for group in optimizer.param_groups:
        decoupled = bool(group.get("decoupled_weight_decay"))
        if decoupled != (name == "AdamW") and "decoupled_weight_decay" not in known:
            return None
        if group.get("differentiable") or group.get("capturable") or isinstance(group["lr"], torch.Tensor):
            return None
        if any(not parameter.is_floating_point() for parameter in group["params"]):
            return None
    return name


def _options_of(group: dict[str, Any], known: list[str]) -> dict[str, Any]:
    return {name: float(group[name]) if name == "lr" else group[name] for name in known if name in group}


def _settings(inner: _core.InnerOptimizer, known: list[str], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings of `inner` with the options of `groups`, which may lack some that Python's class has not."""
    settings = inner.settings()
    own = settings["param_groups"]
    saved = [name for name in known if not own or name in own[0]]  # Not "capturable", which is no state.
    settings["param_groups"] = [
        {**(own[index] if index < len(own) else {}), **_options_of(group, saved)} for index, group in enumerate(groups)
    ]
    return settings


def _as_before(value: Any, old: Any) -> Any:
    """Returns an option that a checkpoint has restored, in the type that it had.

    JSON has no tuples and writes infinity as a text; C++ has no int.
    """
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str):
        return float(value)
    return int(value) if type(old) is int and value is not None and float(value).is_integer() else value


def _named_state(state_dict: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns {'0.exp_avg': tensor, ...}."""
    return {
        f"{index}.{field}": value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        for index, fields in state_dict["state"].items()
        for field, value in fields.items()
        if value is not None
    }


def _state_by_index(inner: _core.InnerOptimizer) -> dict[int, dict[str, torch.Tensor]]:
    """Returns the state by the index of the parameter over all groups: the reverse of _named_state."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in inner.state_tensors().items():
        index, field = name.split(".", 1)
        state.setdefault(int(index), {})[field] = tensor
    return state


def _state_by_parameter(state: dict[int, Any], groups: list[dict[str, Any]]) -> dict[torch.Tensor, Any]:
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {parameters[index]: fields for index, fields in state.items()}


def make_core_optimizer(rule: str, optimizer: torch.optim.Optimizer) -> _core.InnerOptimizer:
    """Returns a C++ optimizer of that rule, with the parameters, options and state of `optimizer`."""
    known = _core.optimizer_options(rule) or []
    inner = _core.make_optimizer(
        rule, [(group["params"], _options_of(group, known)) for group in optimizer.param_groups]
    )
    if optimizer.state:
        inner.load_state(_named_state(optimizer.state_dict()), inner.settings())
    return inner


def _state_functions(optimizer: torch.optim.Optimizer) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Returns functions that read and set the state of an optimizer that Python updates.

    The C++ optimizer owns the functions, so they must not refer to the wrapper, which owns the C++ optimizer.
    """

    def read() -> tuple[Any, dict[str, torch.Tensor]]:
        return flatten(optimizer.state_dict())

    def load(values: Any, tensors: dict[str, torch.Tensor]) -> None:
        optimizer.load_state_dict(unflatten(values, tensors))

    return read, load


class AcceleratedOptimizer(torch.optim.Optimizer):
    """A prepared optimizer.

    `step` and `zero_grad` do nothing in a micro-step that only accumulates. With fp16 `step` unscales the gradients and
    skips the update if they overflowed. Optimizers of torch.optim whose rule the C++ library has are updated by its
    fused kernels; they read lr and the other options from `param_groups` at each step, so schedulers and programs
    change them as usual. Others, and those of a weight in `sparse` (see sparse_weights), are updated by their own `step`;
    with `sharded`, for ZeRO, by their own rule on slices of parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: Any = None,
        sparse: set[int] | None = None,
        sharded: bool = False,
    ) -> None:
        if isinstance(optimizer, AcceleratedOptimizer):
            raise _core.ConfigError("[AcceleratedOptimizer] the optimizer is prepared already; use it as it is")
        self.optimizer = optimizer
        self.device_placement = device_placement
        self.scaler = scaler
        self._prepared: Any = None  # The C++ handle; set by Accelerator.prepare.
        self._no_sync: Any = None  # The Accelerator's blocks without averaging; set by Accelerator.prepare.
        self._max_norm = 0.0  # Of the gradients of an update; 0: any. Set by Accelerator.prepare.
        has_sparse = any(id(one) in (sparse or set()) for group in optimizer.param_groups for one in group["params"])
        self._name = None if has_sparse else _core_class(optimizer)
        self._known = (_core.optimizer_options(self._name) or []) if self._name else []
        is_elementwise = sharded and not has_sparse and self._name is None
        self._inner: Any = self._make_elementwise() if is_elementwise else self._make_inner()
        self._refuse_direct_steps()

    def _make_elementwise(self) -> Any:
        update = ElementwiseUpdate(self.optimizer)
        inner = update.make_inner()
        self._name = update.name
        self._known = list(inner.settings()["param_groups"][0])
        if self.optimizer.state:
            inner.load_state(_named_state(self.optimizer.state_dict()), inner.settings())
        return inner

    def _make_inner(self) -> Any:
        groups = self.optimizer.param_groups
        if self._name is None:
            lrs = [(group["params"], float(group.get("lr", 0))) for group in groups]
            return _core.python_optimizer(lrs, self.optimizer.step, *_state_functions(self.optimizer))
        return make_core_optimizer(self._name, self.optimizer)

    def _refuse_direct_steps(self) -> None:
        """Makes step() of the given optimizer an error: it would bypass accumulation, scaling and ZeRO."""

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise _core.ConfigError(
                "[optimizer] step() was called on the optimizer that was passed to prepare; expected a call of the "
                "prepared one; use the optimizer that prepare returned"
            )

        refuse._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch's schedulers look for it.
        self.optimizer.step = refuse  # type: ignore[method-assign]

    # --- options of an optimizer that C++ updates
    def _push_options(self) -> None:
        """Copies `param_groups` to the C++ optimizer."""
        if self._name is not None:
            self._inner.set_options(self.optimizer.param_groups)

    @contextmanager
    def _pushed_options(self) -> Iterator[None]:
        """Scope: the C++ optimizer has the options of `param_groups`, which it otherwise gets at the next step.

        Processes compare the rates that they have in C++, and the main process may save alone.
        """
        if self._name is None:
            yield
            return
        before = self._inner.settings()["param_groups"]
        self._push_options()
        try:
            yield
        finally:
            self._inner.set_options(before)

    def _pull_options(self) -> None:
        """Copies options that a checkpoint has restored to `param_groups`."""
        if self._name is not None:
            for group, saved in zip(self.optimizer.param_groups, self._inner.settings()["param_groups"]):
                for name, value in saved.items():
                    if name in group:
                        group[name] = _as_before(value, group[name])

    # --- torch.optim.Optimizer
    @property
    def state(self) -> Any:
        if self._name is None:
            return self.optimizer.state
        return _state_by_parameter(self._state_by_index(), self.optimizer.param_groups)

    @state.setter
    def state(self, state: Any) -> None:
        raise _core.ConfigError("[optimizer] the state of a prepared optimizer is set with load_state_dict")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def _state_by_index(self) -> dict[int, dict[str, torch.Tensor]]:
        if self._prepared is not None and self._prepared.is_sharded:
            raise _core.ConfigError(
                "[optimizer] each process has a shard of the state under ZeRO; save it with accelerator.save_state"
            )
        return _state_by_index(self._inner)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in torch.optim's form. Throws ConfigError under ZeRO."""
        if self._name is None:
            return self.optimizer.state_dict()
        groups, begin = [], 0
        for group in self.optimizer.param_groups:
            count = len(group["params"])
            groups.append({**group, "params": list(range(begin, begin + count))})
            begin += count
        return {"state": self._state_by_index(), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._name is None:
            self.optimizer.load_state_dict(state_dict)
            return
        settings = _settings(self._inner, self._known, state_dict["param_groups"])
        self._inner.load_state(_named_state(state_dict), settings)
        for group, saved in zip(self.optimizer.param_groups, state_dict["param_groups"]):
            group.update({name: value for name, value in saved.items() if name != "params"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)
        self._inner.add_group(self.optimizer.param_groups[-1]["params"], self.optimizer.param_groups)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients at the end of an accumulation group. False: sets them to zero instead."""
        if self._prepared is not None and GradientState().holds_updates:
            return
        if set_to_none is False and self._prepared is not None and not self._prepared.is_sharded:
            if self._syncs():
                self.optimizer.zero_grad(set_to_none=False)
            return
        if self._prepared is None:
            self.optimizer.zero_grad()
        else:
            self._prepared.zero_grad()

    def _syncs(self) -> bool:
        """Returns whether the current micro-step ends its accumulation group."""
        return GradientState().sync_gradients_of(self._no_sync.core)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self._prepared is None:
            raise _core.ConfigError("[optimizer] step() was called before accelerator.prepare(optimizer)")
        if GradientState().holds_updates:
            return None
        self._no_sync.on_step()
        if self._max_norm > 0 and self._syncs():
            self._clip(closure)
        if self._name is None:
            return self._run(closure)
        self._push_options()
        hooks = self._syncs()
        if hooks:
            self._call_hooks(self.optimizer._optimizer_step_pre_hooks)
        loss = self._run(closure)
        if hooks:
            self._call_hooks(self.optimizer._optimizer_step_post_hooks)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # Read by torch's schedulers.
        return loss

    def _clip(self, closure: Callable[[], Any] | None) -> None:
        if closure is not None:
            raise _core.ConfigError(
                "[optimizer] step(closure) computes gradients that the plugin's gradient_clipping cannot clip before; "
                "expected step(), or gradient_clipping=0"
            )
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self._no_sync.core.clip_grad_norm_(parameters, self._max_norm, 2.0)

    def _run(self, closure: Callable[[], Any] | None) -> Any:
        if closure is not None:
            return self._prepared.step_with_closure(closure)
        self._prepared.step()
        return None

    def _call_hooks(self, hooks: dict[int, Callable[..., Any]]) -> None:
        for hook in list(hooks.values()):
            hook(self.optimizer, (), {})

    def train(self) -> None:
        """Calls the optimizer's `train`, if it has one (schedule-free optimizers)."""
        train = getattr(self.optimizer, "train", None)
        if callable(train):
            train()

    def eval(self) -> None:
        """Calls the optimizer's `eval`, if it has one."""
        evaluate = getattr(self.optimizer, "eval", None)
        if callable(evaluate):
            evaluate()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last due step skipped the update because gradients had overflowed."""
        return self._prepared is not None and self._prepared.step_was_skipped

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"

    @property
    def _is_accelerate_prepared(self) -> bool:
        return self._prepared is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise _core.ConfigError(
            "[optimizer] a prepared optimizer cannot be copied, since its state is in the C++ library; use state_dict(), "
            "or accelerator.save_state()"
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickles the given optimizer and its state. The copy must be prepared. Throws ConfigError under ZeRO."""
        return _unpickled, (type(self), self.optimizer, self.device_placement, self.state_dict())


def _unpickled(
    kind: type[AcceleratedOptimizer],
    optimizer: torch.optim.Optimizer,
    device_placement: bool,
    state_dict: dict[str, Any],
) -> AcceleratedOptimizer:
    copy = kind(optimizer, device_placement)
    copy.load_state_dict(state_dict)
    return copy
