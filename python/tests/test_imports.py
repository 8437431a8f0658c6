# SPDX-License-Identifier: Apache-2.0
"""Imports between the package's modules: each module imports only modules below it, at its top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "lockstep"

# Packages that need not be installed; safetensors is a dependency of the wheel only.
OPTIONAL = {"peft", "safetensors", "tqdm"}
# Parts of torch that `import torch` leaves out.
OPTIONAL_IN_TORCH = {
    "torch.distributed.elastic.multiprocessing.errors",  # Only in a torch that is built with torch.distributed.
    "torch.distributed.fsdp",  # Only there, too, and 600 modules that take more than a second.
    "torch.distributed.fsdp.wrap",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",  # Needs the package tensorboard.
}
ALLOWED_IN_FUNCTIONS = OPTIONAL | OPTIONAL_IN_TORCH


def modules_of(package: Path) -> dict[str, Path]:
    """Returns the files of all modules of a package by their full names."""
    files = {}
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):  # _core is a compiled module with a stub.
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


def is_type_checking(node: ast.stmt) -> bool:
    """Returns whether a statement is `if TYPE_CHECKING`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"


def imports_in(body: list[ast.stmt], in_function: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yields each import statement with whether it is in a function, except those under `if TYPE_CHECKING`."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, in_function
        inner = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and not (is_type_checking(node) and field == "body"):
                statements = [part for part in value if isinstance(part, ast.stmt)]
                handlers = [part for part in value if isinstance(part, (ast.ExceptHandler, ast.match_case))]
                for part in [statements, *(handler.body for handler in handlers)]:
                    yield from imports_in(part, inner)


def targets_of(node: ast.Import | ast.ImportFrom, module: str, file: Path, known: set[str]) -> Iterator[str]:
    """Yields the full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        parents = parts if file.name == "__init__.py" else parts[:-1]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
    for alias in node.names:
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base


def loaded_by(target: str, module: str) -> Iterator[str]:
    """Yields the modules that an import of `target` runs: itself, and the packages around it but not around `module`."""
    yield target
    parts = target.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if not f"{module}.".startswith(f"{package}."):
            yield package


def import_graph(package: Path) -> dict[str, set[str]]:
    """Returns the modules of the package that each of its modules imports at its top."""
    files = modules_of(package)
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node, in_function in imports_in(ast.parse(file.read_text(encoding="utf-8")).body):
            if not in_function:
                for target in targets_of(node, name, file, set(files)):
                    graph[name] |= {loaded for loaded in loaded_by(target, name) if loaded in files}
    return graph


def cycles_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or through others."""
    reachable: dict[str, set[str]] = {}
    for start in graph:
        found: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(graph[name])
        reachable[start] = found
    cycles = {tuple(sorted({a, *(b for b in reachable[a] if a in reachable[b])})) for a in graph if a in reachable[a]}
    return [list(cycle) for cycle in sorted(cycles)]


def imports_in_functions(package: Path) -> list[str]:
    """Returns the imports in functions of modules other than ALLOWED_IN_FUNCTIONS."""
    files = modules_of(package)
    refused: dict[str, None] = {}  # In order, each once.
    for name, file in files.items():
        for node, in_function in imports_in(ast.parse(file.read_text(encoding="utf-8")).body):
            for target in targets_of(node, name, file, set(files)) if in_function else ():
                if not {target, target.split(".")[0]} & ALLOWED_IN_FUNCTIONS:
                    refused[f"{file.relative_to(package.parent)}:{node.lineno}: {target}"] = None
    return list(refused)


def test_no_modules_import_each_other() -> None:
    assert cycles_of(import_graph(PACKAGE)) == []


def test_functions_import_only_optional_packages_and_parts_of_torch() -> None:
    assert imports_in_functions(PACKAGE) == []


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """Writes a package `example` and returns its folder."""
    for path, text in files.items():
        file = folder / "example" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "example"


def test_a_cycle_is_found_also_through_a_package_around_a_module(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            "__init__.py": "from .low import f\nfrom .parts import g\n",
            "low.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import h\n",
            "high.py": "from .low import f\n",
            "state.py": "from .parts.one import a\n",
            "parts/__init__.py": "from .one import a\nfrom .two import b\n",
            "parts/one.py": "",
            "parts/two.py": "try:\n    from ..state import c\nexcept ImportError:\n    pass\n",
        },
    )
    assert cycles_of(import_graph(package)) == [["example.parts", "example.parts.two", "example.state"]]


def test_an_import_in_a_function_is_found(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            "__init__.py": "",
            "low.py": "def f():\n  if 1:\n    from . import high\n    import json\n    import tqdm.auto\n",
            "high.py": "class C:\n  def f(self):\n    from .low import f\n    from torch.distributed.fsdp import g\n",
        },
    )
    assert imports_in_functions(package) == [
        "example/high.py:3: example.low",
        "example/low.py:3: example.high",
        "example/low.py:4: json",
    ]
