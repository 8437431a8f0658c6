# SPDX-License-Identifier: Apache-2.0
"""The full state dict of a model of which each process has a part: of its layers, its experts, or its list of layers."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["divides_model", "full_state_dict"]


def divides_model(core: Any) -> bool:
    """Returns whether the processes of a mesh have different parts of a model."""
    return bool(core.divides_layers or core.divides_experts or core.pipeline_group.size > 1)


def full_state_dict(core: Any, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of all processes' parts, with those names that a state dict has. Collective."""
    state: dict[str, torch.Tensor] = module.state_dict()
    full = dict(core.full_tensors(module))
    own = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    not_saved = {name for name, _ in own} - set(state)  # Such as buffers that are not persistent.
    first = {id(tensor): name for name, tensor in own if name in full}
    aliases = {name: first[id(tensor)] for name, tensor in own if name in state and id(tensor) in first}
    state.update({name: tensor for name, tensor in full.items() if name not in not_saved})
    state.update({name: full[known] for name, known in aliases.items()})
    # Names of layers that are tied to those of other stages.
    state.update({name: state[known] for name, known in getattr(module, "_other_names", {}).items()})
    return state
