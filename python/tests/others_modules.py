# SPDX-License-Identifier: Apache-2.0
"""The common part of the pytest plugins that run another project's unit tests with Lockstep in place of it.

Modules and names of the project that Lockstep lacks are stand-ins: they can be imported, nothing is an instance of them,
and a test that uses them fails.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import re
import types
from collections.abc import Callable
from typing import Any, NoReturn

import pytest


def stand_in(path: str) -> type:
    """Returns a class in place of the object that `path` names."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"the test uses {path}, which Lockstep lacks")

    return type(path.rsplit(".", 1)[-1], (), {"__init__": refuse})


def missing_names(
    module: str, known: Callable[[str], Any] | None = None, make: Callable[[str], Any] = stand_in
) -> Callable[[str], Any]:
    """Returns a module's __getattr__. It returns what `known` finds, else what `make` returns for the name's path."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if known is not None:
            try:
                return known(name)
            except (AttributeError, ImportError):
                pass
        return make(f"{module}.{name}")

    return find


class MissingModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of a package that Lockstep lacks. All of their names are stand-ins."""

    def __init__(self, package: str, exists: Callable[[str], bool], make: Callable[[str], Any] = stand_in) -> None:
        self._package = package
        self._exists = exists
        self._make = make

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{self._package}.") or self._exists(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = missing_names(spec.name, make=self._make)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Does nothing: all names are stand-ins."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests whose names match an expression of their file in LOCKSTEP_TESTS_NOT_RUN, a JSON object."""
    stale, out = [], []
    for file, expressions in json.loads(os.environ.get("LOCKSTEP_TESTS_NOT_RUN", "{}")).items():
        names = {item: item.nodeid.partition("::")[2] for item in items if os.path.relpath(item.path) == file}
        stale += [each for each in expressions if not any(re.search(each, name) for name in names.values())]
        out += [item for item, name in names.items() if any(re.search(each, name) for each in expressions)]
    assert not stale, f"no test is named by {stale}"
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
