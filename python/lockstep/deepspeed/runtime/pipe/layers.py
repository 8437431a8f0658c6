# SPDX-License-Identifier: Apache-2.0
"""The layers of a PipelineModule, and which of them each stage has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .... import _core

__all__ = ["LayerSpec", "PipelineError", "TiedLayerSpec", "cut"]

_WHERE = "PipelineModule"


class PipelineError(_core.ConfigError):
    """A call that an engine of a pipeline does not have."""


class LayerSpec:
    """A layer that its stage makes: `typename(*module_args, **module_kwargs)`."""

    def __init__(self, typename: type[torch.nn.Module], *module_args: Any, **module_kwargs: Any) -> None:
        if not (isinstance(typename, type) and issubclass(typename, torch.nn.Module)):
            raise _core.ConfigError(f"[LayerSpec] the class is {typename!r}; expected a class of torch.nn.Module")
        self.typename = typename
        self.module_args = module_args
        self.module_kwargs = module_kwargs

    def __repr__(self) -> str:
        given = [repr(arg) for arg in self.module_args] + [f"{name}={arg!r}" for name, arg in self.module_kwargs.items()]
        return f"{self.typename.__name__}({', '.join(given)})"

    def build(self, log: bool = False) -> torch.nn.Module:
        """Returns a new layer."""
        del log
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer that shares its parameters with the others of the same `key`.

    `forward_fn(layer, input)` replaces its forward. All of its parameters are shared, and not only `tied_weight_attr`,
    as on a single stage.
    """

    def __init__(
        self,
        key: str,
        typename: type[torch.nn.Module],
        *module_args: Any,
        forward_fn: Callable[[torch.nn.Module, Any], Any] | None = None,
        tied_weight_attr: str | Sequence[str] = ("weight",),
        **module_kwargs: Any,
    ) -> None:
        super().__init__(typename, *module_args, **module_kwargs)
        self.key = key
        self.forward_fn = forward_fn
        self.tied_weight_attr = [tied_weight_attr] if isinstance(tied_weight_attr, str) else list(tied_weight_attr)


def cut(layers: Sequence[Any], method: str, stages: int, chunks_per_stage: int) -> list[int]:
    """Returns the first layer of each chunk, then the number of layers.

    `method`: "parameters" (trained ones), "uniform", or "type:REGEX", which counts layers whose class has a match. Throws
    ConfigError for a stage without trained parameters, which has nothing to update.
    """
    counts = [_count(layer) for layer in layers] if stages > 1 or method.lower() == "parameters" else []
    parts = _parts(layers, method, stages * chunks_per_stage, counts)
    for stage in range(stages if stages > 1 else 0):
        chunks = range(stage, stages * chunks_per_stage, stages)
        if not any(any(counts[parts[chunk] : parts[chunk + 1]]) for chunk in chunks):
            raise _core.ConfigError(
                f"[{_WHERE}] the layers of stage {stage} have no trained parameters; expected some in each of {stages} stages; "
                "pass another partition_method, or use fewer stages"
            )
    return parts


def _parts(layers: Sequence[Any], method: str, chunks: int, counts: list[int]) -> list[int]:
    kind, _, pattern = method.partition(":")
    if kind.lower() == "uniform" and not pattern:
        return _core.cut_uniformly(len(layers), chunks)
    if kind.lower() == "parameters" and not pattern:
        return _core.cut_by_cost([float(count) for count in counts], chunks)
    if kind.lower() == "type" and pattern:
        regex = re.compile(pattern, re.IGNORECASE)
        matches = [bool(regex.search(_name(layer))) for layer in layers]
        if sum(matches) < chunks:
            raise _core.ConfigError(
                f"[{_WHERE}] partition_method {method!r} matches {sum(matches)} of {len(layers)} layers; expected at least "
                f"{chunks}, one for each stage; the classes are {', '.join(sorted({_name(layer) for layer in layers}))}"
            )
        return _core.cut_by_cost([float(is_match) for is_match in matches], chunks)
    raise _core.ConfigError(
        f"[{_WHERE}] partition_method is {method!r}; expected 'parameters', 'uniform' or 'type:REGEX'"
        + ("; DeepSpeed does not have 'profile' either" if kind.lower() == "profile" else "")
    )


def _name(layer: Any) -> str:
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    if isinstance(layer, torch.nn.Module):
        return type(layer).__name__
    return str(getattr(layer, "__name__", ""))


def _count(layer: Any) -> int:
    """Returns the number of trained parameters, and keeps the random state."""
    if isinstance(layer, LayerSpec):
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"):  # No memory, and no initial values.
                    layer = layer.build()
            except Exception:  # A layer that computes with its values.
                layer = layer.build()
    if not isinstance(layer, torch.nn.Module):
        return 0
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.requires_grad)
