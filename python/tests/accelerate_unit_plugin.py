# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs Accelerate's unit tests against lockstep.

lockstep.alias makes `import accelerate` give lockstep, and its loggers have both names. accelerate.test_utils is
Accelerate's own, whose imports mean Lockstep, too. others_modules.py has the rest. LOCKSTEP_ACCELERATE_PACKAGE is the
folder of the package accelerate.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

import lockstep
import pytest
from others_modules import MissingModules, missing_names, pytest_collection_modifyitems  # noqa: F401

TEST_UTILS = "accelerate.test_utils"


class TestUtils(importlib.abc.MetaPathFinder):
    """Finds Accelerate's own test_utils."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not _is_of_test_utils(name):
            return None
        folder = Path(os.environ["LOCKSTEP_ACCELERATE_PACKAGE"], *name.split(".")[1:-1])
        return importlib.machinery.PathFinder.find_spec(name, [str(folder)])


def _is_of_test_utils(name: str) -> bool:
    return f"{name}.".startswith(f"{TEST_UTILS}.")


def _has_lockstep(module: str) -> bool:
    try:
        return importlib.util.find_spec(f"lockstep.{module.removeprefix('accelerate.')}") is not None
    except ModuleNotFoundError:  # A module above it is missing.
        return False


def _use_lockstep() -> None:
    importlib.import_module("lockstep.alias")
    for info in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
        if not info.name.startswith(("lockstep.alias", "lockstep.deepspeed")) and not info.name.endswith("__main__"):
            importlib.import_module(info.name)
    importlib.import_module("accelerate")
    for name in filter(_is_of_test_utils, list(sys.modules)):
        del sys.modules[name]  # Lockstep's own.
    sys.meta_path[:0] = [TestUtils(), MissingModules("accelerate", _has_lockstep)]
    loggers = logging.Logger.manager.loggerDict
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "lockstep" and not name.startswith(("lockstep.alias", "lockstep.deepspeed")):
            vars(module)["__getattr__"] = missing_names(name, vars(module).get("__getattr__"))
            loggers["accelerate" + name.removeprefix("lockstep")] = logging.getLogger(name)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "order: a mark of Accelerate's tests")
    os.environ.update(LOCKSTEP_USE_CPU="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    _use_lockstep()
