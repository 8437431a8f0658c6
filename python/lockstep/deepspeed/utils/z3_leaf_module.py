# SPDX-License-Identifier: Apache-2.0
"""Leaf modules of stage 3, as marks only: an operation unshards its parameters, so leaves need no treatment."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = [
    "get_z3_leaf_modules",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
    "z3_leaf_parameter",
]


def z3_leaf_module(model: torch.nn.Module) -> bool:
    """Returns whether the module is marked as a leaf."""
    return bool(vars(model).get("_z3_leaf", False))


def z3_leaf_parameter(model: torch.nn.Parameter) -> bool:
    """Returns False: the engine records no leaf in a parameter."""
    return hasattr(model, "ds_z3_leaf_module")


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks the module as a leaf, or removes the mark."""
    vars(model)["_z3_leaf"] = flag


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules that are marked."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Marks and returns the modules of these classes and their subclasses, or of classes with these names.

    A name is that of the class alone, or with its module. Throws ValueError if there is none.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Removes the mark of set_z3_leaf_modules, and returns the modules."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: torch.nn.Module, module_names: list[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Marks the modules with these names in named_modules(). Returns them, and the names that do not exist."""
    return _mark_names(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: torch.nn.Module, module_name_suffixes: list[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Does the same for modules whose names end so."""
    return _mark_names(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def _mark_classes(
    model: torch.nn.Module, classes: list[type | str], flag: bool, raise_if_not_found: bool
) -> list[torch.nn.Module]:
    assert all(isinstance(each, (type, str)) for each in classes), f"expected classes or names, got {classes}"
    types = tuple(each for each in classes if isinstance(each, type))
    found = [
        module
        for module in model.modules()
        if isinstance(module, types)
        or type(module).__name__ in classes
        or f"{type(module).__module__}.{type(module).__qualname__}" in classes
    ]
    if not found and raise_if_not_found:
        raise ValueError(f"no modules of the model are of a class in {classes}")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def _mark_names(
    model: torch.nn.Module, wanted: list[str], fits: Callable[[str, str], bool], flag: bool, raise_if_not_found: bool
) -> tuple[list[torch.nn.Module], list[str]]:
    found: dict[torch.nn.Module, None] = {}
    missing = []
    for name in wanted:
        fitting = [module for own, module in model.named_modules() if fits(own, name)]
        if not fitting:
            missing.append(name)
        for module in fitting:
            found[module] = None
            set_z3_leaf_module(module, flag)
    if missing and raise_if_not_found:
        raise ValueError(f"no modules of the model have the names {missing}")
    return list(found), missing
