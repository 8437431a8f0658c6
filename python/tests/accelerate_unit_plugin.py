# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs Accelerate's unit tests against lockstep.

lockstep.alias makes `import accelerate` give lockstep, and its loggers have both names. accelerate.test_utils is
Accelerate's own, whose imports mean Lockstep, too. Modules and names of Accelerate that Lockstep lacks are stand-ins: they
can be imported, nothing is an instance of them, and a test that uses them fails. LOCKSTEP_ACCELERATE_SOURCES is the folder
of Accelerate's sources.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import pkgutil
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import lockstep
import pytest

SOURCES = Path(os.environ["LOCKSTEP_ACCELERATE_SOURCES"])
TEST_UTILS = "accelerate.test_utils"


def _stand_in(path: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"the test uses {path}, which Lockstep lacks")

    return type(path.rsplit(".", 1)[-1], (), {"__init__": refuse})


def _missing_names(module: str, known: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Returns a module's __getattr__: `known`, else stand-ins."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if known is not None:
            try:
                return known(name)
            except (AttributeError, ImportError):
                pass
        return _stand_in(f"{module}.{name}")

    return find


class OtherModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds Accelerate's own test_utils, and modules of Accelerate that Lockstep lacks."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("accelerate."):
            return None
        if name == TEST_UTILS or name.startswith(f"{TEST_UTILS}."):
            parent = SOURCES / "src" / name.replace(".", "/")
            return importlib.machinery.PathFinder.find_spec(name, [str(parent.parent)])
        if _has_lockstep(name.removeprefix("accelerate.")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = _missing_names(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Does nothing: all names are stand-ins."""


def _has_lockstep(module: str) -> bool:
    try:
        return importlib.util.find_spec(f"lockstep.{module}") is not None
    except ModuleNotFoundError:  # A module above it is missing.
        return False


def _use_lockstep() -> None:
    importlib.import_module("lockstep.alias")
    sys.meta_path.insert(0, OtherModules())
    for info in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
        if not info.name.startswith(("lockstep.alias", "lockstep.deepspeed")) and not info.name.endswith("__main__"):
            importlib.import_module(info.name)
    loggers = logging.Logger.manager.loggerDict
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "lockstep" and not name.startswith(("lockstep.alias", "lockstep.deepspeed")):
            vars(module)["__getattr__"] = _missing_names(name, vars(module).get("__getattr__"))
            loggers["accelerate" + name.removeprefix("lockstep")] = logging.getLogger(name)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "order: a mark of Accelerate's tests")
    os.environ.update(LOCKSTEP_USE_CPU="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    _use_lockstep()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests whose names match an expression of LOCKSTEP_ACCELERATE_NOT_RUN, a JSON list."""
    expressions = json.loads(os.environ.get("LOCKSTEP_ACCELERATE_NOT_RUN", "[]"))
    names = {item: item.nodeid.partition("::")[2] for item in items}
    stale = [each for each in expressions if not any(re.search(each, name) for name in names.values())]
    assert not stale, f"no test is named by {stale}"
    out = [item for item in items if any(re.search(each, names[item]) for each in expressions)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
