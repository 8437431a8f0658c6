# SPDX-License-Identifier: Apache-2.0
"""The types of the package: for mypy, for the programs that use it, and those of the C++ module in its stub."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterable
from pathlib import Path

import pytest

from lockstep import _core

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "lockstep" / "_core.pyi"

PROGRAM = '''
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep
import lockstep.deepspeed as deepspeed
from lockstep import Accelerator, ConfigError, DistributedDataParallelKwargs, LocalSGD
from lockstep.tracking import GeneralTracker
from lockstep.utils import DistributedType, ProjectConfiguration, set_seed, tqdm


class ListTracker(GeneralTracker):
    name = "list"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    @property
    def tracker(self) -> list[float]:
        return self.losses

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.losses.append(float(values["loss"]))


def batches() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4)


def train_with_accelerator(folder: Path) -> list[float]:
    set_seed(1)
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=2,
        log_with=[ListTracker()],
        project_config=ProjectConfiguration(project_dir=folder),
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=10)],
    )
    handler: DistributedDataParallelKwargs | None = accelerator.ddp_handler
    assert handler is not None and accelerator.distributed_type is DistributedType.NO
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, batches(), scheduler)
    accelerator.init_trackers("project", {"lr": 1e-3})
    for inputs, targets in tqdm(loader):
        with accelerator.accumulate(model):
            loss: torch.Tensor = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                accelerator.log({"loss": loss.item(), "norm": norm.item()}, step=1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    losses: torch.Tensor = accelerator.gather(loss.detach().reshape(1))
    accelerator.wait_for_everyone()
    saved: str = accelerator.save_state(folder / "state")
    accelerator.load_state(saved)
    weights: dict[str, torch.Tensor] = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        torch.save(weights, folder / "weights.pt")
    accelerator.print(accelerator.num_processes, accelerator.device, lockstep.__version__)
    accelerator.end_training()
    return [float(value) for value in losses]


def train_locally(accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    model, optimizer = accelerator.prepare(model, optimizer)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8, warmup_steps=4) as local_sgd:
        for inputs, targets in batches():
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            local_sgd.step()
    return local_sgd.num_steps


def train_with_engine(config: dict[str, Any], folder: Path) -> float:
    model = torch.nn.Linear(8, 1)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=batches().dataset, config=config
    )
    for inputs, targets in loader:
        loss: torch.Tensor = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
    try:
        engine.save_checkpoint(str(folder), tag="last")
    except ConfigError as error:
        print(f"not saved: {error}")
    norm: float | None = engine.get_global_grad_norm()
    return 0.0 if norm is None else norm


@lockstep.find_executable_batch_size(starting_batch_size=8)
def tune(batch_size: int) -> int:
    return batch_size
'''

# mypy reports exactly the lines with a comment, under the code of the comment.
WRONG_PROGRAM = '''
import torch

import lockstep.deepspeed as deepspeed
from lockstep import Accelerator, DistributedDataParallelKwargs, LocalSGD
from lockstep.utils import set_seed

model = torch.nn.Linear(8, 1)
accelerator = Accelerator(gradient_accumulation_steps="2")  # arg-type
accelerator = Accelerator(gradient_accumulation=2)  # call-arg
accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb="big")])  # arg-type
accelerator.clip_grad_norm_(model.parameters(), "a")  # arg-type
accelerator.backward(3.0)  # arg-type
accelerator.gather_all(torch.ones(1))  # attr-defined
steps: str = accelerator.gradient_accumulation_steps  # assignment
accelerator.is_main_process = True  # misc
LocalSGD(accelerator, model, local_sgd_steps="8")  # arg-type
set_seed("1")  # arg-type
engine, optimizer, loader = deepspeed.initialize(model=model)  # misc
deepspeed.initialize(model=8)  # arg-type
deepspeed.initialize(model=model)[0].backward("loss")  # arg-type
'''


def run_mypy(*arguments: str | Path, path: str = "") -> list[str]:
    """Returns the lines that mypy prints."""
    pytest.importorskip("mypy")
    environment = {**os.environ, "MYPYPATH": path}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": note: " not in line]


def test_the_package_has_consistent_types(tmp_path: Path) -> None:
    assert run_mypy("--cache-dir", tmp_path / "cache") == []  # pyproject.toml has the files and the settings.


def test_a_program_gets_types_and_errors(tmp_path: Path) -> None:
    """The programs see an installed package: --strict holds for them only."""
    program, wrong = tmp_path / "program.py", tmp_path / "wrong.py"
    program.write_text(PROGRAM, encoding="utf-8")
    wrong.write_text(WRONG_PROGRAM, encoding="utf-8")
    options = ["--config-file", os.devnull, "--strict", "--follow-imports", "silent", "--cache-dir", tmp_path / "cache"]
    lines = run_mypy(*options, program, wrong, path=str(ROOT / "python"))
    reported = [re.search(r"(\w+)\.pyi?:(\d+): error: .*\[([\w-]+)\]$", line) for line in lines]
    found = {match.groups() if match is not None else None for match in reported}
    comments = [(number, line.partition("  # ")[2]) for number, line in enumerate(WRONG_PROGRAM.splitlines(), start=1)]
    assert found == {("wrong", str(number), code) for number, code in comments if code}, "\n".join(lines)


# --- the stub
def names_in_module() -> set[str]:
    """Returns the names of the C++ module and of its classes' members, without special methods."""
    names = {"__version__"}
    for name, value in vars(_core).items():
        if not name.startswith("_"):
            names.add(name)
            if isinstance(value, type):
                names |= {f"{name}.{member}" for member in vars(value) if not member.startswith("_")}
    return names


def names_in_stub(body: Iterable[ast.stmt], prefix: str = "") -> set[str]:
    names = set()
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.add(statement.name)
            if isinstance(statement, ast.ClassDef):
                names |= names_in_stub(statement.body, f"{statement.name}.")
    public = {name for name in names if not name.startswith("_") or (name == "__version__" and not prefix)}
    return {prefix + name for name in public}


def signatures_in_module() -> dict[str, str]:
    """Returns the signatures by name that pybind11 wrote in the documentation of functions and properties."""
    signatures = {}
    for owner_name, owner in [("", _core), *vars(_core).items()]:
        if owner_name.startswith("_") or not isinstance(owner, (type, types.ModuleType)):
            continue
        for name, value in vars(owner).items():
            documented = value.fget if isinstance(value, property) else value
            text = (getattr(documented, "__doc__", None) or "").partition("\n")[0].replace("lockstep._core.", "")
            full_name = f"{owner_name}.{name}".lstrip(".")
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(value, property) and " -> " in text:
                signatures[full_name] = signature_of(f"{name}(self) -> {text.partition(' -> ')[2]}")
            elif callable(value) and text.startswith(f"{name}("):
                signatures[full_name] = signature_of(text)
    return signatures


def signatures_in_stub(body: Iterable[ast.stmt]) -> dict[str, str]:
    signatures = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            if any(ast.unparse(decorator).endswith(".setter") for decorator in statement.decorator_list):
                continue  # The module's properties have no signature of it.
            text = ast.unparse(statement).partition("def ")[2].partition(":\n")[0]
            signatures[statement.name] = signature_of(text)
        elif isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
            signatures[name] = signature_of(f"{name}(self) -> {ast.unparse(statement.annotation)}")
        elif isinstance(statement, ast.ClassDef):
            members = signatures_in_stub(statement.body)
            signatures |= {f"{statement.name}.{name}": text for name, text in members.items()}
    return signatures


def signature_of(text: str) -> str:
    """Returns a signature without default values and the type of self. The stub has Any for the `object` of C++."""
    text = re.sub(r"self: \w+", "self", text).replace("typing.Any", "object")
    for generic in ("dict[object, object]", "list[object]", "torch.Future[object]"):
        text = text.replace(generic, generic.partition("[")[0])
    return re.sub(r" ?= ?(<[^>]*>|'[^']*'|[\w.]+)", "", text)


def test_the_stub_has_the_names_of_the_module_and_no_others() -> None:
    stub = names_in_stub(ast.parse(STUB.read_text(encoding="utf-8")).body)
    hint = "; run scripts/python_stubs"
    assert sorted(names_in_module() - stub) == [], f"names that the stub lacks{hint}"
    assert sorted(stub - names_in_module()) == [], f"names that the module lacks{hint}"


def test_the_stub_has_the_arguments_and_results_of_the_module() -> None:
    stub, module = signatures_in_stub(ast.parse(STUB.read_text(encoding="utf-8")).body), signatures_in_module()
    assert len(module) > 100
    different = {name: (text, stub.get(name)) for name, text in module.items() if stub.get(name) != text}
    assert different == {}, "the stub is of another version; run scripts/python_stubs"


def attributes_of_others(tree: ast.AST) -> list[str]:
    """Returns the attributes that classes declare without a value, and that no method of the class sets."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        parents = {ast.unparse(parent) for parent in [*node.bases, *node.decorator_list]}
        if parents & {"NamedTuple", "dataclass"}:
            continue
        parts = list(ast.walk(node))
        stored = {part.attr for part in parts if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)}
        declared = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value is None]
        names = [ast.unparse(part.target) for part in declared]
        found += [f"{node.name}.{name}" for name in names if name not in stored]
    return found


def test_classes_set_the_attributes_that_they_declare() -> None:
    """A class whose attributes another class sets can be used only together with it."""
    example = "class One:\n    a: int\n    b: int\n    def f(self):\n        self.a = 1\n"
    assert attributes_of_others(ast.parse(example)) == ["One.b"]
    found = []
    for file in sorted(STUB.parent.rglob("*.py")):
        found += attributes_of_others(ast.parse(file.read_text(encoding="utf-8")))
    # Accelerate's interface: a program's own class has both.
    assert found == ["GeneralTracker.name", "GeneralTracker.requires_logging_directory"]
