# SPDX-License-Identifier: Apache-2.0
"""The finder of accelerate, deepspeed and their modules, which are those of Lockstep."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import Any

from .._core import ConfigError

__all__ = ["PACKAGES", "install", "replace"]

# A folder for sys.path and PYTHONPATH: packages of both names, which call replace(), and their versions.
PACKAGES = Path(__file__).with_name("packages")

_LOCKSTEP = {"accelerate": "lockstep", "deepspeed": "lockstep.deepspeed"}


class _Accelerate(ModuleType):
    """The module `accelerate`: the names of lockstep, with the version of Accelerate.

    A name that is set or deleted is set or deleted in lockstep.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["lockstep"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(sys.modules["lockstep"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys.modules["lockstep"], name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(sys.modules["lockstep"])})


class _AliasLoader(Loader):
    """Returns a module of Lockstep under another name."""

    def __init__(self, own_name: str) -> None:
        self._own_name = own_name
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._own_name)
        _name_loaded_modules(spec.name, self._own_name)
        if spec.name == "accelerate":
            accelerate = _Accelerate(spec.name, module.__doc__)
            accelerate.__file__ = module.__file__
            accelerate.__version__ = _version(spec.name)
            return accelerate
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own spec: the import system has set that of the alias."""
        if self._own_spec is not None:
            module.__spec__ = self._own_spec


class _AliasFinder(MetaPathFinder):
    """Finds accelerate, deepspeed, and all of their modules, before any other finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        root, _, rest = fullname.partition(".")
        if root not in _LOCKSTEP:
            return None
        own_name = ".".join(filter(None, [_LOCKSTEP[root], rest]))
        own_spec = _spec_of(own_name)
        if own_spec is None:
            # None would make the import system look for the module in the real package, which may be installed.
            raise ModuleNotFoundError(
                f"[lockstep.alias] {fullname} is imported, but Lockstep, which {root} means here, has no module "
                f"{own_name}; remove the import, or run the program with the real {root}, without Lockstep's alias",
                name=fullname,
            )
        spec = ModuleSpec(fullname, _AliasLoader(own_name), origin=own_spec.origin)
        spec.submodule_search_locations = own_spec.submodule_search_locations
        return spec


_FINDER = _AliasFinder()


def install() -> None:
    """Makes both names mean Lockstep. Throws ConfigError if this process has imported a real package."""
    if _FINDER in sys.meta_path:
        return
    for name in _LOCKSTEP:
        module = sys.modules.get(name)
        if module is not None and not _is_ours(module):
            raise ConfigError(
                f"[lockstep.alias] {name} is imported already, from {getattr(module, '__file__', None)}; expected "
                "lockstep.alias to be imported first; import it before accelerate, deepspeed, and packages that "
                "import them, such as transformers"
            )
    sys.meta_path.insert(0, _FINDER)
    # importlib.metadata finds the versions there. The first path stays that of the script.
    if str(PACKAGES) not in sys.path:
        sys.path.insert(1, str(PACKAGES))


def replace(name: str) -> None:
    """Replaces a module of PACKAGES, which is being imported, by Lockstep's."""
    del sys.modules[name]
    importlib.import_module(name)


def _name_loaded_modules(name: str, own_name: str) -> None:
    """Adds the imported modules in a package to sys.modules, under names in the package `name`.

    The import system would otherwise set an attribute of the package to each of them, also where the package has a
    function of the module's name, such as lockstep.deepspeed.utils.z3_leaf_module.
    """
    for loaded, module in list(sys.modules.items()):
        if loaded.startswith(f"{own_name}."):
            sys.modules.setdefault(name + loaded.removeprefix(own_name), module)


def _is_ours(module: ModuleType) -> bool:
    return Path(module.__file__ or "").resolve().parents[1] == PACKAGES.resolve()


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:  # A module above it is missing, or is no package.
        return None


def _version(name: str) -> str:
    return next(iter(Distribution.discover(name=name, path=[str(PACKAGES)]))).version
