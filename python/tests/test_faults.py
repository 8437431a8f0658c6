# SPDX-License-Identifier: Apache-2.0
"""Mistakes and failures: each ends soon, with an error that says what happened."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from launch import binary, finish_ranks, package_folder, run_ranks
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep import Accelerator

BEGIN = """
import torch
from lockstep import Accelerator
accelerator = Accelerator()
net = torch.nn.Linear(2, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
"""


def launch(folder: Path, program: str, ranks: int = 2) -> subprocess.Popen[str]:
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(package_folder()), "LOCKSTEP_USE_CPU": "1"}
    return subprocess.Popen(
        [str(binary()), "launch", "-n", str(ranks), sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def test_an_exception_in_one_process_ends_the_job_and_names_it(tmp_path: Path) -> None:
    program = BEGIN + """
for step in range(1000):
    if step == 3 and accelerator.process_index == 1:
        raise KeyError("this one is broken")
    accelerator.backward(net(torch.ones(4, 2)).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
    began = time.monotonic()
    job = launch(tmp_path, program)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "this one is broken" in output and "rank 1" in output
    assert time.monotonic() - began < 30


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    program = BEGIN + """
print("ready", flush=True)
if accelerator.process_index == 0:
    accelerator.wait_for_everyone()  # The other process never comes.
import time
time.sleep(600)
"""
    job = launch(tmp_path, program)
    assert job.stdout is not None
    seen = 0
    while seen < 2:
        seen += "ready" in job.stdout.readline()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=40)
    assert job.returncode == 128 + signal.SIGINT


def test_processes_that_call_different_collectives_get_an_error() -> None:
    program = BEGIN + """
if accelerator.process_index == 0:
    accelerator.gather(torch.ones(2))
else:
    accelerator.reduce(torch.ones(2))
"""
    for code, output in finish_ranks(program, 2):
        assert code != 0
        assert "all_gather" in output and "all_reduce" in output


def test_a_second_accelerator_with_another_precision_is_refused() -> None:
    Accelerator(mixed_precision="bf16")
    with pytest.raises(ValueError, match="mixed_precision='bf16' exists; got mixed_precision='fp16'"):
        Accelerator(mixed_precision="fp16")


def test_a_second_accelerator_shares_the_processes() -> None:
    program = BEGIN + """
second = Accelerator()
other = second.prepare(torch.nn.Linear(2, 1))
accelerator.backward(net(torch.ones(1, 2) * accelerator.process_index).sum())
print(second.gather(torch.ones(1)).sum().item(), net.weight.grad.flatten().tolist())
"""
    assert [output.splitlines()[-1] for output in run_ranks(program, 2)] == ["2.0 [0.5, 0.5]"] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_read_for_a_prepared_loader(method: str) -> None:
    program = f"""
import torch
from torch.utils.data import DataLoader, Dataset
from lockstep import Accelerator

class Own(Dataset):  # Its loader reads through another one, which worker processes get, too.
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return (torch.tensor(index),)

if __name__ == "__main__":
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(
        Own(), batch_size=4, num_workers=2, multiprocessing_context={method!r},
        persistent_workers=True))
    for _ in range(2):
        seen = [value for (batch,) in loader for value in accelerator.gather_for_metrics(batch).tolist()]
        assert sorted(seen) == list(range(40)), seen
    for (batch,) in loader:
        break
    assert len(list(loader)) == 5
"""
    run_ranks(program, 2)


def test_a_prepared_model_can_be_copied_and_pickled() -> None:
    accelerator = Accelerator()
    net = torch.nn.Linear(2, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    accelerator.backward(net(torch.ones(1, 2)).sum())
    optimizer.step()
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(copied.weight, net.weight)
        assert copied.weight.data_ptr() != net.weight.data_ptr()
    with pytest.raises(lockstep.ConfigError, match="cannot be copied, since its state"):
        copy.deepcopy(optimizer)


def test_an_update_by_the_optimizer_that_was_given_is_an_error() -> None:
    accelerator = Accelerator()
    net = torch.nn.Linear(2, 1)
    given = torch.optim.SGD(net.parameters(), lr=0.1)
    net, _ = accelerator.prepare(net, given)
    accelerator.backward(net(torch.ones(1, 2)).sum())
    with pytest.raises(lockstep.ConfigError, match="use the optimizer that prepare returned"):
        given.step()


def test_an_exception_in_a_backward_hook_reaches_the_program() -> None:
    accelerator = Accelerator()
    net = torch.nn.Linear(2, 1)
    net, _ = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def fail(gradient: torch.Tensor) -> None:
        raise KeyError("of the hook")

    output = net(torch.ones(1, 2))
    output.register_hook(fail)
    with pytest.raises(KeyError, match="of the hook"):
        accelerator.backward(output.sum())


def test_a_loop_that_is_left_early_begins_the_next_epoch() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(10)), batch_size=2))
    for _ in loader:
        break
    assert len(list(loader)) == 5
    assert loader.iteration == 2


def test_another_torch_is_refused_before_the_module_is_loaded() -> None:
    from lockstep._torch_check import check_torch

    check_torch(torch.__version__)
    with pytest.raises(ImportError, match=r"needs torch \d+\.\d+; got torch 1\.13\.1; run `pip install"):
        check_torch("1.13.1")


def test_an_error_within_an_operation_of_torch_keeps_its_class() -> None:
    """ZeRO-3 gathers parameters within torch's operations, which raise C++ exceptions as RuntimeError."""
    program = """
        import torch, lockstep
        accelerator = lockstep.Accelerator(zero={"stage": 3, "stage3_param_persistence_threshold": 0})
        model = torch.nn.Linear(64, 64)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            if accelerator.process_index == 0:
                model(torch.ones(1, 64))
            else:
                accelerator.wait_for_everyone()
        except lockstep.CommError as error:
            print("CommError:", error, flush=True)
    """
    outputs = run_ranks(program, 2)
    assert all("CommError: [" in output for output in outputs), outputs
    assert "all-gather of" in outputs[0]
