# SPDX-License-Identifier: Apache-2.0
"""The training loop: equal results for any number of processes, resumption, precision, uneven inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import finish_ranks, run_ranks

NET = """
import json, sys, os, torch
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator
from lockstep.utils import set_seed

def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16, affine=False, momentum=None), torch.nn.ReLU(),
        torch.nn.Linear(16, 4))

def make_data(count=64):
    inputs = torch.sin(torch.arange(count * 8, dtype=torch.float)).reshape(count, 8)
    return TensorDataset(inputs, torch.arange(count) % 4)

def weights(net):
    return [tensor.flatten().tolist() for tensor in net.parameters()]

def loss_of(net, batch):
    return torch.nn.functional.cross_entropy(net(batch[0]), batch[1])
"""


def report(outputs: list[str]) -> list[object]:
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_two_processes_equal_one_that_accumulates_their_slices() -> None:
    program = NET.replace("torch.nn.BatchNorm1d(16, affine=False, momentum=None), ", "") + """
accelerator = Accelerator(gradient_accumulation_steps=2 // int(os.environ["WORLD_SIZE"]))
net = make_net()
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), DataLoader(make_data(), batch_size=4))
for epoch in range(3):
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            optimizer.zero_grad()
print(json.dumps(weights(net)))
"""
    one = report(run_ranks(program, 1))[0]
    assert report(run_ranks(program, 2)) == [one, one]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("generator", ["None", "torch.Generator().manual_seed(5)"])
def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path, ranks: int, generator: str) -> None:
    program = NET + f"""
def run(stop, resume):
    set_seed(7)
    accelerator = Accelerator()
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader = DataLoader(make_data(), batch_size=4, shuffle=True, generator={generator})
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
    step = 0
    if resume:
        accelerator.load_state(sys.argv[1] if len(sys.argv) > 1 else {str(tmp_path / "saved")!r})
        step = stop
    while step < 20:
        for batch in loader:
            noise = torch.rand(1)  # The random numbers continue, too.
            accelerator.backward(loss_of(net, batch) * (1 + noise))
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
            step += 1
            if step == stop and not resume:
                accelerator.save_state({str(tmp_path / "saved")!r})
            if step == 20:
                break
    return weights(net), scheduler.get_last_lr()
"""
    unbroken = report(run_ranks(program + "print(json.dumps(run(stop=11, resume=False)))", ranks))
    resumed = report(run_ranks(program + "print(json.dumps(run(stop=11, resume=True)))", ranks))
    assert resumed == unbroken


def test_an_optimizer_that_only_python_has_gives_the_results_of_plain_torch() -> None:
    program = NET + """
class Signed(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"] / state["count"])

def run(prepared):
    net = make_net()
    optimizer = Signed(net.parameters(), 0.1)
    if prepared:
        accelerator = Accelerator()
        net, optimizer = accelerator.prepare(net, optimizer)
    for batch in DataLoader(make_data(), batch_size=8):
        loss = loss_of(net, batch)
        accelerator.backward(loss) if prepared else loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)
print(json.dumps(run(False) == run(True)))
"""
    assert report(run_ranks(program, 1)) == [True]


@pytest.mark.parametrize("precision,dtype", [("bf16", "torch.bfloat16"), ("fp16", "torch.float16")])
def test_mixed_precision_computes_in_16_bits_and_returns_float32(precision: str, dtype: str) -> None:
    program = NET + f"""
accelerator = Accelerator(mixed_precision={precision!r})
seen = []
class Linear(torch.nn.Linear):
    def forward(self, inputs):
        result = super().forward(inputs)
        seen.append(str(result.dtype))
        return result
torch.manual_seed(0)
net = Linear(8, 4)
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(make_data(), batch_size=8))
losses = []
for _ in range(5):
    for batch in loader:
        output = net(batch[0])
        loss = torch.nn.functional.cross_entropy(output, batch[1])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
print(json.dumps([sorted(set(seen)), str(output.dtype), losses[-1] < losses[0], accelerator.loss_scale is not None]))
"""
    for result in report(run_ranks(program, 2)):
        assert result == [[dtype], "torch.float32", True, precision == "fp16"]


def test_processes_with_different_numbers_of_batches_train_together() -> None:
    program = NET + """
accelerator = Accelerator(even_batches=False)
net = torch.nn.Linear(8, 4)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
batches = list(DataLoader(make_data(), batch_size=4))[: 3 + 2 * accelerator.process_index]
with accelerator.join_uneven_inputs([net]):
    for batch in batches:
        accelerator.backward(loss_of(net, batch))
        optimizer.step()
        optimizer.zero_grad()
print(json.dumps([len(batches), weights(net)]))
"""
    first, second = report(run_ranks(program, 2))
    assert (first[0], second[0]) == (3, 5)
    assert first[1] == second[1]


def test_the_backward_of_a_forward_within_no_sync_averages_nothing() -> None:
    """As with torch's DistributedDataParallel: not after the block either, until a forward outside of it."""
    program = NET + """
accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
x = torch.full((1, 1), accelerator.process_index + 1.0)
gradients = []
def backward(loss):
    accelerator.backward(loss)
    gradients.append(net.weight.grad.item())
with accelerator.no_sync(net):
    late = net(x).sum()
with torch.no_grad():
    net(x)
backward(late)
backward(net(x).sum())
with accelerator.no_sync(net):
    backward(net(x).sum())
backward(net(x).sum())
with accelerator.no_sync(net):
    late = net(x).sum()
with accelerator.trigger_sync_in_backward(net):
    backward(late)
print(json.dumps([gradients, len(net._forward_pre_hooks)]))
"""
    for rank, result in enumerate(report(run_ranks(program, 2))):
        assert result == [[rank + 1, 3.0, 3.0 + rank + 1, 6.0, 7.5], 0]


def test_an_update_with_gradients_that_no_sync_left_local_is_refused() -> None:
    program = NET + """
import copy, pickle
from lockstep._core import ConfigError
accelerator = Accelerator()
net = torch.nn.Linear(1, 1, bias=False)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
other = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
x = torch.full((1, 1), accelerator.process_index + 1.0)
said = []
def attempt(call):
    try:
        call()
    except ConfigError as error:
        said.append(str(error).split("]")[0])
with accelerator.no_sync(net):
    net(x)  # A batch without a backward.
attempt(lambda: accelerator.backward(other(x).sum(), count=2))
copied = pickle.loads(pickle.dumps(copy.deepcopy(net)))
copied(x)
accelerator.backward((net.weight * x).sum())
attempt(optimizer.step)
optimizer.zero_grad()
accelerator.backward((net.weight * x).sum())
optimizer.step()
with accelerator.no_sync(net):
    accelerator.backward((net(x) + net(x)).sum())
accelerator.backward((net.weight * x).sum())
print(json.dumps([said, net.weight.grad.item()]))
"""
    first, second = report(run_ranks(program, 2))
    assert first[0] == ["[backward", "[step"]
    assert first == second  # All gradients are averaged.


@pytest.mark.parametrize("saving, resuming", [(1, 2), (2, 1)])
def test_another_number_of_processes_continues_a_shuffled_epoch(tmp_path: Path, saving: int, resuming: int) -> None:
    program = NET + f"""
accelerator = Accelerator()
torch.manual_seed(3)
data = TensorDataset(torch.arange(24))
loader = accelerator.prepare(DataLoader(data, batch_size=4 // accelerator.num_processes, shuffle=True))
path, seen = {str(tmp_path / "saved")!r}, []
if accelerator.num_processes == {resuming}:
    accelerator.load_state(path)
    accelerator.save_state(path + "_again")  # It has the position and the order that are to come.
    accelerator.load_state(path + "_again")
for index, (batch,) in enumerate(loader):
    seen += batch.tolist()
    if index == 2 and accelerator.num_processes == {saving}:
        accelerator.save_state(path)
        break
print(json.dumps(seen))
"""
    begun = sum(report(run_ranks(program, saving)), [])
    rest = sum(report(run_ranks(program, resuming)), [])
    assert len(begun) == 12
    assert sorted(begun + rest) == list(range(24))


def test_a_selected_epoch_has_its_own_order() -> None:
    program = NET + """
accelerator = Accelerator()
torch.manual_seed(3)
loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(12)), batch_size=2, shuffle=True))
begin, orders = loader.state_dict(), []
for index, _ in enumerate(loader):
    if index == 1:
        middle = loader.state_dict()
orders = []
for state in (middle, begin):  # A position within an epoch, then none.
    loader.load_state_dict(middle)
    if state is middle:
        loader.set_epoch(5)
    else:
        loader.load_state_dict(begin)
    orders.append([batch[0].tolist() for batch in loader])
loader.load_state_dict(middle)
orders.append([batch[0].tolist() for batch in loader])
print(json.dumps(orders))
"""
    other_epoch, begun_again, rest = report(run_ranks(program, 1))[0]
    assert [len(other_epoch), len(begun_again), len(rest)] == [6, 6, 4]
    assert other_epoch[2:] != rest and begun_again[2:] != rest


def test_gather_for_metrics_returns_every_sample_once() -> None:
    program = NET + """
accelerator = Accelerator()
loader = accelerator.prepare(DataLoader(make_data(50), batch_size=4))
seen, objects = [], []
for inputs, targets in loader:
    seen += accelerator.gather_for_metrics(inputs[:, 0]).tolist()
    objects += accelerator.gather_for_metrics([f"{value:.6f}" for value in inputs[:, 0].tolist()], True)
everything = make_data(50).tensors[0][:, 0].tolist()
print(json.dumps([sorted(seen) == sorted(everything), len(objects), len(set(objects))]))
"""
    for ranks in (1, 2, 3):
        for result in report(run_ranks(program, ranks)):
            assert result == [True, 50, 50]


def test_several_values_are_gathered_at_once_and_a_list_stays_a_list() -> None:
    program = NET + """
accelerator = Accelerator()
rank, ranks = accelerator.process_index, accelerator.num_processes
own = torch.full((1,), rank + 1.0, requires_grad=True)
first, second, third = accelerator.gather(own, [torch.tensor([rank]), own * 2], {"a": (own,)})
assert first.tolist() == [r + 1.0 for r in range(ranks)] and type(second) is list and list(third) == ["a"]
assert second[0].tolist() == list(range(ranks)) and second[1].tolist() == [2 * r + 2.0 for r in range(ranks)]
assert torch.equal(third["a"][0], first) and type(third["a"]) is tuple
(first.sum() + second[1].sum()).backward()
assert own.grad.tolist() == [3.0 * ranks], own.grad
values = [own.detach()]
assert type(accelerator.gather(values)) is list and type(accelerator.gather((own,))) is tuple

loader = accelerator.prepare(DataLoader(make_data(6), batch_size=4))
seen = []
for inputs, targets in loader:
    both = accelerator.gather_for_metrics(inputs[:, 0], [targets])
    assert type(both) is tuple and type(both[1]) is list
    numbers = targets.tolist()
    texts, numbers = accelerator.gather_for_metrics([str(number) for number in numbers], numbers, use_gather_object=True)
    assert texts == [str(number) for number in numbers] and len(texts) == len(both[0]) == len(both[1][0])
    seen += both[1][0].tolist()
assert sorted(seen) == sorted(make_data(6).tensors[1].tolist())
try:
    accelerator.gather(own, "text")
except TypeError as error:
    print(error)
"""
    for ranks in (1, 2):
        for output in run_ranks(program, ranks):
            assert output == "[gather] a value is of type str; expected tensors in lists, tuples or dicts\n"


def test_hooks_save_their_files_with_the_checkpoint(tmp_path: Path) -> None:
    program = NET + f"""
accelerator = Accelerator()
net = accelerator.prepare(make_net())
def save(models, weights, folder):
    os.makedirs(os.path.join(folder, "adapter"))
    with open(os.path.join(folder, "adapter", "note.txt"), "w") as file:
        file.write(f"of process {{accelerator.process_index}}")
    if accelerator.process_index > 0:
        os.rename(os.path.join(folder, "adapter"), os.path.join(folder, f"adapter{{accelerator.process_index}}"))
found = []
def load(models, folder):
    for root, _, files in os.walk(folder):
        found.extend(open(os.path.join(root, name)).read() for name in files)
handle = accelerator.register_save_state_pre_hook(save)
accelerator.register_load_state_pre_hook(load)
accelerator.save_state({str(tmp_path / "saved")!r})
accelerator.load_state({str(tmp_path / "saved")!r})
print(json.dumps(sorted(found)))
"""
    assert report(run_ranks(program, 2)) == [["of process 0", "of process 1"]] * 2


def test_an_exception_in_a_join_block_is_not_hidden() -> None:
    program = NET + """
accelerator = Accelerator()
net = accelerator.prepare(make_net())
try:
    with accelerator.join_uneven_inputs([net]):
        raise KeyError("mine")
except KeyError as error:
    print(json.dumps(str(error)))
"""
    assert report(run_ranks(program, 1)) == ["'mine'"]


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    program = NET + """
accelerator = Accelerator()
net = make_net()
optimizer = torch.optim.SGD([{"params": [net[0].weight]}], lr=0.1)
optimizer.param_groups.append({**optimizer.param_groups[0]})
try:
    accelerator.prepare(net, optimizer)
except ValueError as error:
    print(json.dumps(str(error)))
"""
    (code, output), = finish_ranks(program, 1)
    assert code == 0 and "two" in output or "twice" in output, output
