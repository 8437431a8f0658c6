# SPDX-License-Identifier: Apache-2.0
"""notebook_launcher in a real Jupyter kernel."""

from __future__ import annotations

import os

from launch import python_path
from notebooks import run_notebook  # Skips the module without Jupyter.

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
    ran = run_notebook(list(cells), os.environ | {"PYTHONPATH": python_path()}, seconds=120, allow_errors=True)
    return [
        "".join(output.get("text", "\n".join(output.get("traceback", []))) for output in cell.outputs)
        for cell in ran
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
