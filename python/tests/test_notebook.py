# SPDX-License-Identifier: Apache-2.0
"""notebook_launcher in a real Jupyter kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import lockstep

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TRAIN = """
import torch
from lockstep import Accelerator, notebook_launcher
from lockstep.test_utils import RegressionDataset, RegressionModel, are_the_same_tensors

def train(lr):
    accelerator = Accelerator()
    model = RegressionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = torch.utils.data.DataLoader(RegressionDataset(length=64, seed=1), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for _ in range(10):
        for batch in data:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    a, b = (parameter.detach() for parameter in model.parameters())
    assert are_the_same_tensors(a)
    accelerator.print(f"{accelerator.num_processes} processes: {float(a):.1f} {float(b):.1f}")
"""


def run_cells(*cells: str) -> list[str]:
    """Runs the cells in a new kernel. Returns the text that each of them wrote; an error stops it and is its text."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    folder = str(Path(lockstep.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True)
    client.create_kernel_manager()
    client.km.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.execute(env=os.environ | {"PYTHONPATH": paths})
    return [
        "".join(output.get("text", "\n".join(output.get("traceback", []))) for output in cell.outputs)
        for cell in notebook.cells
    ]


def test_a_notebook_trains_with_two_processes_again_and_again():
    launch = "notebook_launcher(train, (0.2,), num_processes=2, use_port=0)"
    outputs = run_cells(TRAIN, launch, launch)
    for text in outputs[1:]:
        assert "Launching training on 2 CPUs." in text and "2 processes: 2.0 3.0" in text


def test_a_failed_launch_shows_the_error_and_the_notebook_goes_on():
    outputs = run_cells(
        TRAIN,
        "notebook_launcher(train, ('fast',), num_processes=2, use_port=0)",
        "print('still here')",
        "from lockstep import Accelerator\nAccelerator()\nnotebook_launcher(train, (0.2,), num_processes=2)",
    )
    assert "failed:" in outputs[1] and "in train" in outputs[1]
    assert outputs[2] == "still here\n"
    assert "an Accelerator exists in this process" in outputs[3]
