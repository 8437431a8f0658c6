# SPDX-License-Identifier: Apache-2.0
"""torch's optimizers with lockstep._torch_optimizers: the same numbers, and no import of the compiler."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, sys, torch
{first}

sums = {{}}
for name, optimizer in sorted(vars(torch.optim).items()):
    if not isinstance(optimizer, type) or name in ("Optimizer", "LBFGS", "SparseAdam"):
        continue
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3, bias=name != "Muon")
    trained = optimizer(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(trained, 1)
    for _ in range(3):
        model(torch.ones(2, 3)).pow(2).sum().backward()
        trained.step()
        schedule.step()
        trained.zero_grad()
    trained.load_state_dict(trained.state_dict())
    sums[name] = [parameter.tolist() for parameter in model.parameters()]
had_compiler = "torch._dynamo" in sys.modules

from torch._dynamo.utils import counters

model = torch.nn.Linear(3, 3)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3)).sum().backward()
step = torch.compile(optimizer.step, backend="eager")
step(), step()
reset = torch.compile(lambda: (optimizer.zero_grad(), torch.ones(2) + 1)[1], backend="eager")
reset(), reset()
print(json.dumps([sums, had_compiler, counters["stats"]]))
"""


def test_optimizers_train_without_the_compiler_and_are_compiled_as_before():
    programs = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM.format(first=first)], stdout=subprocess.PIPE, text=True)
        for first in ("import lockstep", "")
    ]
    outputs = [program.communicate()[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    sums, had_compiler, graphs = json.loads(outputs[0])
    torch_sums, torch_had_compiler, torch_graphs = json.loads(outputs[1])
    assert len(sums) >= 12
    assert sums == torch_sums
    assert not had_compiler
    assert torch_had_compiler, "torch does not import its compiler any more; delete lockstep._torch_optimizers"
    assert graphs == torch_graphs
