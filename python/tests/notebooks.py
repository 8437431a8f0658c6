# SPDX-License-Identifier: Apache-2.0
"""Runs cells in a real Jupyter kernel. Skips the test where Jupyter is not installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


def run_notebook(cells: list[str], environment: dict[str, str], seconds: int, allow_errors: bool = False) -> list[Any]:
    """Runs the cells in a new kernel, each within `seconds`. Returns them with their outputs.

    Throws CellExecutionError for a cell that fails, unless `allow_errors`.
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=seconds, allow_errors=allow_errors)
    client.create_kernel_manager()
    client.km.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.execute(env=environment)
    return notebook.cells
