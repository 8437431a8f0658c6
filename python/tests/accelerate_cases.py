# SPDX-License-Identifier: Apache-2.0
"""Small programs whose results must be the same with Accelerate and with Lockstep.

    accelerate_cases.py LIBRARY OUTPUT [CASE ...]

LIBRARY is accelerate or lockstep. A launcher starts one or more processes; each writes the results of its cases to
OUTPUT.<rank>.json. Cases use only calls that both libraries have.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

import torch

import accelerate_loader_cases  # noqa: F401
import accelerate_loop_cases  # noqa: F401
from accelerate_case_tools import CASES, NEED_TWO, lib


def main() -> None:
    library, output, *names = sys.argv[1:]
    lib.module = importlib.import_module(library)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    trace = {}
    world = int(os.environ.get("WORLD_SIZE", "1"))
    for name in names or [name for name in CASES if world > 1 or name not in NEED_TWO]:
        if name in ("train_bf16", "bf16_outputs"):
            importlib.import_module(library + ".state").AcceleratorState._reset_state(False)
        try:
            results[name] = CASES[name]()
        except Exception as error:  # All processes fail alike, so the following cases can run.
            results[name] = {"raises": type(error).__name__}
            trace[name] = traceback.format_exc()
        if name in ("train_bf16", "bf16_outputs"):
            importlib.import_module(library + ".state").AcceleratorState._reset_state(False)
    rank = os.environ.get("RANK", "0")
    with open(f"{output}.{rank}.json", "w", encoding="utf-8") as file:
        json.dump(results, file)
    for name, text in trace.items():
        print(f"{name}:\n{text}", file=sys.stderr)


if __name__ == "__main__":
    main()
