#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles refused_types.cpp, and expects exactly the errors that the file names, each once.

Usage: run.py BUILD_FOLDER"""
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "refused_types.cpp"


def flags_of_a_program(build):
    sys.path.insert(0, str(HERE.parent.parent / "scripts"))  # check_docs imports a module there.
    loader = SourceFileLoader("check_docs", str(HERE.parent.parent / "scripts" / "check_docs"))
    sys.dont_write_bytecode = True
    module = module_from_spec(spec_from_loader("check_docs", loader))
    loader.exec_module(module)
    return module.flags_of_the_demo(build)


def main():
    compiler, folder = flags_of_a_program(Path(sys.argv[1]).resolve())
    done = subprocess.run(
        [*compiler, "-fsyntax-only", "-fdiagnostics-color=never", str(SOURCE)],
        cwd=folder, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    errors = [line for line in done.stderr.splitlines() if re.search(r"\berror: ", line)]
    expected = re.findall(r"// refused: (.*)", SOURCE.read_text(encoding="utf-8"))
    failed = len(errors) != len(expected)
    for part in expected:
        count = sum(part in line for line in errors)
        failed = failed or count != 1
        print(f"{'ok' if count == 1 else f'{count} errors, expected 1'}: {part}")
    if failed:
        print(f"{len(errors)} errors, expected {len(expected)}:", *errors, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
