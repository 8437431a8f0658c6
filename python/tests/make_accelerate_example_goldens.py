# SPDX-License-Identifier: Apache-2.0
"""Writes golden/accelerate_examples.json with the real Accelerate: make_accelerate_example_goldens.py

Needs the packages accelerate and pillow in this Python, and lockstep for common.py of the examples. The environment
variable ACCELERATE_EXAMPLES is described in accelerate_examples.py; without it the results of those files are kept.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

from accelerate_examples import GOLDEN, PROCESSES, programs, results_of


def main() -> None:
    results = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    results["made with"] = f"accelerate {importlib.metadata.version('accelerate')}"
    variables = {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    for key, program in programs().items():
        results[key] = {}
        for processes in PROCESSES:
            run = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, *run]
                results[key][str(processes)] = results_of(
                    program, Path(folder), lambda script, command=command: [*command, *script], variables
                )
    GOLDEN.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
