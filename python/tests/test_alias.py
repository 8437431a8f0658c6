# SPDX-License-Identifier: Apache-2.0
"""lockstep.alias: accelerate and deepspeed mean Lockstep, in real processes, beside packages of these names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import lockstep.deepspeed
import pytest
from launch import binary, finish_ranks, python_path, run_ranks

PACKAGES = Path(lockstep.__file__).with_name("alias") / "packages"
ROOT = Path(__file__).resolve().parents[2]

# A process with the aliases runs this program, and so do its child processes.
CHECKS = """
import importlib, importlib.metadata, importlib.util, sys

assert importlib.util.find_spec("accelerate") and importlib.util.find_spec("deepspeed")
assert importlib.metadata.version("accelerate") == "1.15.0" and importlib.metadata.version("deepspeed") == "0.19.8"
found = importlib.metadata.packages_distributions()
assert "accelerate" in found["accelerate"] and "deepspeed" in found["deepspeed"], found

import accelerate.utils.dataclasses, deepspeed.ops.adam
import lockstep

assert accelerate.__version__ == "1.15.0" != lockstep.__version__ and deepspeed.__version__ == "0.19.8"
assert accelerate.Accelerator is lockstep.Accelerator and deepspeed is lockstep.deepspeed
assert sys.modules["accelerate.utils.dataclasses"] is lockstep.utils.dataclasses
assert sys.modules["deepspeed.ops.adam"] is lockstep.deepspeed.ops.adam
"""

PROGRAM = """
import multiprocessing, os, pkgutil, subprocess
import checks
from checks import *

assert sys.argv[1:] == ["--lr", "0.1"] and sys.path[0] == os.path.dirname(os.path.realpath(__file__)), sys.argv


def body(pipe):
    pipe.send(sys.modules["accelerate"].Accelerator is lockstep.Accelerator)


def raises(call):
    try:
        call()
    except ImportError as error:
        return str(error)
    raise AssertionError("no ImportError")


if __name__ == "__main__":
    with accelerate.Accelerator().main_process_first() as _:
        print("rank", accelerate.PartialState().process_index, "of", accelerate.PartialState().num_processes)
    if accelerate.PartialState().process_index == 1:
        sys.exit()
    for info in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
        own, rest = importlib.import_module(info.name), info.name.removeprefix("lockstep.")
        parent, _, child = info.name.rpartition(".")
        attribute = getattr(sys.modules[parent], child)  # A function, if the package has one of the module's name.
        assert importlib.import_module("accelerate." + rest) is own and own.__spec__.name == info.name, info.name
        if rest.startswith("deepspeed."):
            assert importlib.import_module(rest) is own, info.name
        assert getattr(sys.modules[parent], child) is attribute, info.name
    assert callable(deepspeed.utils.z3_leaf_module)

    # A module that Lockstep lacks is an error, although the other package has it.
    message = raises(lambda: importlib.import_module("accelerate.only_in_real"))
    assert "Lockstep, which accelerate means here, has no module lockstep.only_in_real; remove" in message, message
    assert "no module lockstep.deepspeed.a;" in raises(lambda: importlib.import_module("deepspeed.a.b"))
    assert "no_such_name" in raises(lambda: exec("from accelerate import no_such_name"))

    # A program may replace names of the package, and gets the names that are imported on use.
    accelerate.skip_first_batches = print
    assert lockstep.skip_first_batches is print and accelerate.LocalSGD is lockstep.LocalSGD
    assert "LocalSGD" in dir(accelerate) and "__version__" in dir(accelerate)

    # Python processes that the program starts have the aliases.
    subprocess.run([sys.executable, checks.__file__], check=True)
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=body, args=(sender,))
    process.start()
    process.join()
    assert process.exitcode == 0 and receiver.recv()
    print("all checks passed")
"""


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with packages of both names, which must not be imported."""
    for name, version in (("accelerate", "0.1.0"), ("deepspeed", "0.2.0")):
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"raise AssertionError('the real {name} is imported')\n", encoding="utf-8")
        (package / "only_in_real.py").write_text("", encoding="utf-8")
        info = tmp_path / "site" / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "top_level.txt").write_text(f"{name}\n", encoding="utf-8")
    return tmp_path / "site"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "checks.py").write_text(CHECKS, encoding="utf-8")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


def run(command: list[str], folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, with the package and `paths` in PYTHONPATH."""
    variables = {
        "PYTHONPATH": os.pathsep.join([python_path(), *map(str, paths)]),
        "LOCKSTEP_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=120)


def test_a_launched_program_and_its_children_see_lockstep(program: Path, real: Path) -> None:
    command = [str(binary()), "launch", "-n", "2", "--alias", str(program), "--lr", "0.1"]
    done = run(command, program.parent, real)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["all checks passed", "rank 0 of 2", "rank 1 of 2"]


def run_alias(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Does what `python -m lockstep.alias` does with these arguments, in a fork that has imported torch."""
    ((code, output),) = finish_ranks(
        f"import sys\nsys.argv[1:] = {arguments}\nsys.path.insert(0, {str(folder)!r})\n"
        "from lockstep.alias import _run\n_run.main()\n",
        1,
    )
    return code, output


def test_a_module_and_a_text_are_run_without_the_real_packages(program: Path) -> None:
    assert run_alias(["-m", "checks"], program.parent) == (0, "")
    text = "import sys, checks; print(sys.argv, __name__)"
    assert run_alias(["-c", text, "x"], program.parent) == (0, "['-c', 'x'] __main__\n")


def test_a_missing_program_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in ([], ["-x"], ["-m"], ["missing.py"]):
        code, output = run_alias(arguments, tmp_path)
        assert code == 2, (arguments, output)
    assert output == "[lockstep.alias] cannot read 'missing.py'; expected the file of a Python program\n"


def test_importing_the_module_first_is_enough(real: Path) -> None:
    first = f"import sys\nsys.path.append({str(real)!r})\nimport lockstep.alias\n"
    assert run_ranks(f"{first}{CHECKS}import lockstep.alias\nprint('ok')\n", 1) == ["ok\n"]


def test_importing_the_module_after_a_real_package_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("", encoding="utf-8")
    program = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import deepspeed
        try:
            import lockstep.alias
        except Exception as error:
            print(type(error).__name__, error)
        import accelerate
    """
    ((code, output),) = finish_ranks(program, 1)
    assert code == 1 and "No module named 'accelerate'" in output  # Nothing has changed.
    assert f"ConfigError [lockstep.alias] deepspeed is imported already, from {tmp_path}/deepspeed.py" in output
    assert "import it before accelerate, deepspeed, and packages" in output


def test_env_says_what_the_names_mean(real: Path) -> None:
    def lines(*paths: Path) -> list[str]:
        done = run([str(binary()), "env"], real, *paths)
        return [line for line in done.stdout.splitlines() if re.match("(accelerate|deepspeed): ", line)]

    hint = "lockstep launch --alias makes it mean Lockstep"
    assert lines(real) == [
        f"accelerate:   0.1.0 ({real}/accelerate); {hint}",
        f"deepspeed:    0.2.0 ({real}/deepspeed); {hint}",
    ]
    assert lines(PACKAGES, real) == [
        f"accelerate:   means Lockstep, as version 1.15.0 ({PACKAGES}/accelerate)",
        f"deepspeed:    means Lockstep, as version 0.19.8 ({PACKAGES}/deepspeed)",
    ]


def test_the_versions_are_those_that_lockstep_follows() -> None:
    versions = {found.name: found.version for found in Distribution.discover(path=[str(PACKAGES)])}
    bootstrap = (ROOT / "scripts" / "bootstrap").read_text(encoding="utf-8")
    tested = re.search(r"accelerate_version=(\S+)", bootstrap)
    assert tested
    assert versions == {"accelerate": tested[1], "deepspeed": lockstep.deepspeed.__version__}


def test_accelerates_home_page_is_named() -> None:
    """sentence-transformers takes a package for Accelerate if its home page is Hugging Face's."""
    pages = {found.name: found.metadata["Home-page"] for found in Distribution.discover(path=[str(PACKAGES)])}
    assert pages["accelerate"] == "https://github.com/huggingface/accelerate"
