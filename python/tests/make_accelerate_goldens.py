# SPDX-License-Identifier: Apache-2.0
"""Writes golden/accelerate_cases_<processes>.json with the real Accelerate: make_accelerate_goldens.py

Needs the package accelerate in this Python. The files have a line for each case, with the result of every process.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PROCESSES = (1, 2)


def results_of(processes: int) -> list[dict[str, object]]:
    """Returns the results of all cases, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "cases"
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
        subprocess.run(
            [sys.executable, *launch, str(TESTS / "accelerate_cases.py"), "accelerate", str(output)],
            env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
            check=True,
        )
        return [json.loads(Path(f"{output}.{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]


def main() -> None:
    for processes in PROCESSES:
        ranks = results_of(processes)
        failed = [name for name, result in ranks[0].items() if isinstance(result, dict) and "raises" in result]
        if failed:
            sys.exit(f"make_accelerate_goldens: Accelerate raises in {failed}; fix these cases")
        lines = [f' "made with": "accelerate {importlib.metadata.version("accelerate")}"'] + [
            f" {json.dumps(name)}: {json.dumps([rank[name] for rank in ranks], separators=(',', ':'))}"
            for name in ranks[0]
        ]
        path = TESTS / "golden" / f"accelerate_cases_{processes}.json"
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
