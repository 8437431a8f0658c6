# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint whose checksum is right, and whose content is not: a CheckpointError before anything changes."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from crafted import MakesFolder, change_json, change_tensors, drop, put
from launch import run_ranks
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from lockstep import Accelerator
from lockstep._core import CheckpointError
from lockstep.deepspeed.convert import convert

from deepspeed_engines import config, loss_of, start

SHARED, OWN, OBJECT = "python_state.json", "python_state_of_rank_0.json", "custom_checkpoint_0.json"
HOOK = "hook_files_of_rank_0.safetensors"


class Average:
    """An object of the program with values of several types."""

    def __init__(self, start: float) -> None:
        self.values = {"mean": torch.full((3,), start), "names": ("a", b"b"), "place": torch.device("cpu")}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class RandomBatches(BatchSampler):
    """A batch sampler of the program's own class, whose order Python's part of a checkpoint has."""

    def __init__(self) -> None:
        self.batch_size, self.drop_last = 2, False

    def __len__(self) -> int:
        return 4

    def __iter__(self):
        order = numpy.random.permutation(8).tolist()
        return (order[begin : begin + 2] for begin in range(0, 8, 2))


class OwnRule(torch.optim.Optimizer):
    """An optimizer of the program's own class, which its own step() updates."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["last"] = parameter.grad.clone()
                    parameter -= group["lr"] * parameter.grad


class Run:
    """A program with each of Python's parts of a checkpoint."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        self.accelerator = Accelerator(cpu=True, project_dir=folder)
        model = torch.nn.Linear(4, 2)
        data = TensorDataset(torch.randn(8, 4))
        optimizer = OwnRule(model.parameters(), {"lr": 0.01})
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        prepared = self.accelerator.prepare(
            model,
            optimizer,
            DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(seed)),
            DataLoader(data, batch_sampler=RandomBatches()),
            schedule,
        )
        self.model, self.optimizer, self.loader, self.own_order, self.schedule = prepared
        self.average = Average(float(seed))
        self.accelerator.register_for_checkpointing(self.average)
        self.accelerator.register_save_state_pre_hook(
            lambda models, weights, hook_folder: Path(hook_folder, "note.txt").write_text("note", encoding="utf-8")
        )
        self.accelerator.register_load_state_pre_hook(lambda models, hook_folder: None)

    def train(self) -> None:
        for loader in (self.loader, self.own_order):
            for index, (batch,) in enumerate(loader):
                self.accelerator.backward(self.model(batch).square().mean())
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                if index == 1 and loader is self.own_order:
                    break

    def state(self) -> list[Any]:
        """Returns everything that a load may change, as text."""
        states = [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), self.average.values]
        states += [torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())]
        return [str(copy.deepcopy(state)) for state in [*states, self.loader.state_dict(), self.own_order.state_dict()]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run = Run(folder, 1)
    run.train()
    run.accelerator.save_state(folder / "checkpoint")
    return folder / "checkpoint"


def tensor_named(name: str) -> dict[str, str]:
    return {"$": "tensor", "v": name}


def shorter(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.shape == torch.get_rng_state().shape:
            tensors[name] = tensor[:10].clone()


def outside(tensors: dict[str, torch.Tensor]) -> None:
    tensors["../note.txt"] = tensors.pop("note.txt")


def nested(written: Any) -> Any:
    for _ in range(90):
        written = [written]
    return written


PYTHON, NUMPY = ("random", "python"), ("random", "numpy")
# The file, the change, and the text of the error: the place, the value and the expectation.
JSON_CASES = [
    (SHARED, lambda value: [], "the value is a list []; expected a dict"),
    (SHARED, lambda value: 7, "the value is the number 7; expected a dict"),
    (SHARED, lambda value: {"$": "pickle", "v": ""}, "the value is of the unknown type 'pickle'; expected a type of"),
    (SHARED, lambda value: {"a": 1}, "the value is of the unknown type None"),
    (SHARED, lambda value: {"$": "dict"}, "the value is a dict {} of the type 'dict'; expected a list of pairs"),
    (SHARED, lambda value: {"$": "dict", "v": [["a"]]}, "the value<item 0> is a list ['a']; expected a list of a key"),
    (
        SHARED,
        lambda value: {"$": "dict", "v": [[{"$": "dict", "v": []}, 1]]},
        "the value<key 0> is a dict {}; expected a key that a dict can have",
    ),
    (SHARED, drop("schedulers"), "the value is a dict with the keys ['loaders']; expected the key 'schedulers'"),
    (SHARED, put("schedulers", value="x"), "the value['schedulers'] is the text 'x'; expected a list"),
    (SHARED, put("schedulers", value=[]), "the checkpoint has 0 schedulers, and 1 are prepared"),
    (SHARED, put("schedulers", 0, value=1.5), "the value['schedulers'][0] is the number 1.5; expected a dict"),
    (SHARED, put("schedulers", 0, "last_epoch", value="x"), "['last_epoch'] is the text 'x'; expected a number"),
    (SHARED, put("schedulers", 0, "base_lrs", value=["x"]), "['base_lrs'][0] is the text 'x'; expected a number"),
    (SHARED, put("schedulers", 0, "_last_lr", value=[1, 2]), "['_last_lr'] is a list [1, 2]; expected 1 values, one for"),
    (SHARED, put("schedulers", 0, "base_lrs", value=[tensor_named("99")]), "is the tensor named '99'; expected one of"),
    (SHARED, put("loaders", 0, value=[]), "the value['loaders'][0] is a list []; expected a dict"),
    (SHARED, put("loaders", 0, "seed", value="x"), "['loaders'][0]['seed'] is the text 'x'; expected a number of 64"),
    (SHARED, put("loaders", 0, "seed", value={"$": "int", "v": hex(2**64)}), "['seed'] is the number 18446744073709551616"),
    (SHARED, put("loaders", 0, "seed", value={"$": "int", "v": "zz"}), "is the text 'zz' of the type 'int'; expected hex"),
    (SHARED, put("loaders", 0, "generator", value=3), "['generator'] is the number 3; expected the result of torch.Gen"),
    (SHARED, put("loaders", 0, "default", value=tensor_named("x")), "['default'] is the tensor named 'x'; expected one of"),
    (SHARED, drop("loaders", 1, "order", "numpy"), "['order'] is a dict with the keys ['default', 'python', 'generator']"),
    (SHARED, put("loaders", 1, "order", "default", value=None), "['order']['default'] is None; expected the result of"),
    (SHARED, put("loaders", 1, "order", "python", value=[3, [1], None]), "['python'] is a list [3, [1], None]; expected"),
    (SHARED, put("loaders", 1, "order", "numpy", 2, value=10**9), "['order']['numpy'][2] is the number 1000000000; expected"),
    (OWN, lambda value: {"$": "dict", "v": []}, "expected the key 'random'; load another checkpoint"),
    (OWN, put("random", value=None), "the value['random'] is None; expected a dict with the key 'python'"),
    (OWN, put(*PYTHON, 1, 5, value="x"), "['python'][1][5] is the text 'x'; expected a number of 32 bits"),
    (OWN, put(*PYTHON, 1, 624, value=9999), "expected the result of random.getstate() (invalid state)"),
    (OWN, put(*PYTHON, 2, value="x"), "['python'][2] is the text 'x'; expected None or a number"),
    (OWN, put(*NUMPY, 0, value="PCG64"), "expected the result of numpy.random.get_state() ("),
    (OWN, put(*NUMPY, 2, value=625), "['numpy'][2] is the number 625; expected a position from 0 to 624"),
    (OWN, put(*NUMPY, 4, value={"$": "float", "v": "1.5"}), "['numpy'][4] is the text '1.5' of the type 'float'; expected"),
    (OWN, nested, "is nested deeper than 64 levels"),
    (OBJECT, put("mean", value=tensor_named("5")), "['mean'] is the tensor named '5'; expected one of the 1 tensors"),
    (OBJECT, put("names", 1, value={"$": "bytes", "v": "?"}), "['names'][1] is the text '?' of the type 'bytes'; expected"),
    (OBJECT, put("place", value={"$": "device", "v": "moon"}), "['place'] is the text 'moon' of the type 'device'"),
    (
        OBJECT,
        put("names", value={"$": "namedtuple", "class": ["os", "system"], "v": ["true"]}),
        "['names'] is of the class os.system with 1 fields, which this program does not define",
    ),
]


def array(**changes: Any):
    def change(written: Any) -> None:
        put(*NUMPY, 1, value={"$": "ndarray", "v": "0", "dtype": "<u4", "shape": [624], **changes})(written)

    return change


ARRAYS = [
    (OWN, array(dtype="|O"), "of the type 'ndarray'; expected the name of a tensor, and a dtype and shape of numpy"),
    (OWN, array(dtype="<u2"), "of the type 'ndarray'; expected the name of a tensor"),
    (OWN, array(shape=[-1]), "of the type 'ndarray'; expected the name of a tensor"),
    (OWN, array(shape=[2, 312]), "['numpy'][1] is one of (2, 312) uint32; expected an array of 624 numbers of 32 bits"),
    (OWN, array(v="7"), "['numpy'][1] is the tensor named '7'; expected one of the 1 tensors"),
]
CASES = JSON_CASES + ARRAYS
OPTIMIZERS = [
    (lambda value: {**value, "state": 3}, "the value is the number 3; expected a dict with the key 'state'"),
    (lambda value: drop("param_groups")(value["state"]), "expected the key 'param_groups'"),
    (lambda value: put("param_groups", value=[])(value["state"]), "['param_groups'] is a list []; expected 1 parameter"),
    (
        lambda value: put("param_groups", 0, "params", value=[0])(value["state"]),
        "['param_groups'][0]['params'] is a list [0]; expected 2 parameters",
    ),
]
TENSORS = [
    ("python_state.safetensors", shorter, "python_state.json", "a tensor [10] of uint8; expected the result of torch.Gen"),
    (HOOK, outside, HOOK, "is a file outside of the hook's folder, ../note.txt; expected a path within"),
    (HOOK, lambda all: all.update({"note.txt": torch.ones(2)}), HOOK, "['note.txt'] is a tensor [2] of float32; expected"),
]


def expect_refused(tmp_path: Path, folder: Path, file: str, text: str) -> None:
    run = Run(tmp_path, 2)
    run.train()
    before = run.state()
    with pytest.raises(CheckpointError) as caught:
        run.accelerator.load_state(folder)
    message = str(caught.value)
    assert text in message and str(folder) in message, message
    assert file in message or "are prepared" in text, message
    assert run.state() == before
    run.train()  # The run can go on.


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_a_changed_file_with_its_checksum_is_loaded(folder: Path, tmp_path: Path) -> None:
    change_json(folder, SHARED, put("schedulers", 0, "last_epoch", value=77))
    change_tensors(folder, "custom_checkpoint_0.safetensors", lambda tensors: tensors["0"].fill_(5.0))
    run = Run(tmp_path, 2)
    run.accelerator.load_state(folder)
    assert run.schedule.last_epoch == 77 and run.average.values["mean"].tolist() == [5.0] * 3
    assert run.average.values["names"] == ("a", b"b")


@pytest.mark.parametrize(("file", "change", "text"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_json_with_other_values_is_refused(folder: Path, tmp_path: Path, file: str, change: Any, text: str) -> None:
    change_json(folder, file, change)
    expect_refused(tmp_path, folder, file, text)


@pytest.mark.parametrize(("change", "text"), OPTIMIZERS)
def test_the_state_of_an_own_optimizer_is_refused(folder: Path, tmp_path: Path, change: Any, text: str) -> None:
    change_json(folder, "optimizer.json", change)
    expect_refused(tmp_path, folder, "optimizer.json", text)


@pytest.mark.parametrize(("name", "change", "file", "text"), TENSORS)
def test_tensors_with_other_values_are_refused(
    folder: Path, tmp_path: Path, name: str, change: Any, file: str, text: str
) -> None:
    change_tensors(folder, name, change)
    expect_refused(tmp_path, folder, file, text)


def test_a_scheduler_that_refuses_its_state_names_the_file(folder: Path, tmp_path: Path) -> None:
    class Strict(torch.optim.lr_scheduler.StepLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError("gamma")

    run = Run(tmp_path, 2)
    run.schedule.scheduler.__class__ = Strict
    expected = r"python_state.json: the value\['schedulers'\]\[0\] is .* Strict.load_state_dict\(\) takes \(KeyError: 'gamma'"
    with pytest.raises(CheckpointError, match=expected):
        run.accelerator.load_state(folder)


def test_a_state_of_torchs_generator_that_it_refuses_is_named(folder: Path, tmp_path: Path) -> None:
    """The C++ library has it in a file of its own."""
    change_tensors(folder, "random_states_0.safetensors", lambda tensors: tensors["cpu"].fill_(255))
    expect_refused(tmp_path, folder, "random_states_0.safetensors", "holds no valid state of torch's generator")


def test_the_damaged_file_of_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    program = f"""
import random, shutil, torch
from crafted import change_json, put
from lockstep import Accelerator, CheckpointError
accelerator = Accelerator()
model, optimizer = accelerator.prepare(*(lambda m: (m, torch.optim.SGD(m.parameters(), 0.1)))(torch.nn.Linear(2, 2)))
accelerator.save_state({str(tmp_path / "all")!r})
from pathlib import Path
folder = Path({str(tmp_path / "all")!r})
if accelerator.is_main_process:
    change_json(folder, "python_state_of_rank_1.json", put("random", "python", 1, 0, value="x"))
accelerator.wait_for_everyone()
with torch.no_grad():
    model.weight.fill_(7)
state = random.getstate()
try:
    accelerator.load_state(folder)
except CheckpointError as error:
    print("rank 1 cannot load it" in str(error), "python_state_of_rank_1.json" in str(error))
print(model.weight.unique().tolist(), random.getstate() == state)
"""
    assert run_ranks(program, 2) == ["True True\n[7.0] True\n"] * 2


# --- engines
ENGINE_CASES = [
    ("engine.json", lambda value: {**value, "client_state": {"lockstep.python": {"$": "dict"}}}, "expected a list of pairs"),
    (
        "engine.json",
        lambda value: put("mean", value=tensor_named("9"))(value["client_state"]["lockstep.python"]),
        "engine.json, client_state: the value['mean'] is the tensor named '9'; expected one of the 1 tensors",
    ),
    ("engine.json", lambda value: [], "expected a dict"),
    (SHARED, put("scheduler", value="x"), "the value['scheduler'] is the text 'x'; expected a dict"),
    (SHARED, put("scheduler", "last_epoch", value=[]), "['last_epoch'] is a list []; expected a number"),
    (SHARED, drop("loaders"), "expected the key 'loaders'"),
    (OWN, put("random", "numpy", 3, value=2), "['random']['numpy'][3] is the number 2; expected 0 or 1"),
]


@pytest.mark.parametrize(("file", "change", "text"), ENGINE_CASES)
def test_an_engine_refuses_other_values(tmp_path: Path, file: str, change: Any, text: str) -> None:
    def build() -> Any:
        return start(
            _config={key: value for key, value in config().items()},
            _lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        )[0]

    engine = build()
    engine.save_checkpoint(tmp_path, "a", {"mean": torch.ones(2)})
    engine.destroy()
    change_json(tmp_path / "a", file, change)
    engine = build()
    loss = loss_of(engine)
    engine.backward(loss)
    engine.step()
    before = [str(engine.module.state_dict()), str(engine.lr_scheduler.state_dict()), random.getstate()]
    with pytest.raises(CheckpointError) as caught:
        engine.load_checkpoint(tmp_path, "a")
    assert text in str(caught.value) and file in str(caught.value), caught.value
    assert [str(engine.module.state_dict()), str(engine.lr_scheduler.state_dict()), random.getstate()] == before
    engine.destroy()


# --- files of DeepSpeed
def test_a_refused_object_of_deepspeed_is_named_without_advice_to_load_it(tmp_path: Path) -> None:
    for value, name in ((MakesFolder(tmp_path / "ran"), "getattr"), (random.Random(), "random.Random"), (print, "print")):
        folder = tmp_path / "in" / "six"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"module": {}, "note": value}, folder / "mp_rank_00_model_states.pt")
        with pytest.raises(CheckpointError) as caught:
            convert(tmp_path / "in", tmp_path / "out", "six")
        message = str(caught.value)
        assert f"mp_rank_00_model_states.pt refers to {name}, which is not loaded" in message, message
        assert "could run code" in message and "weights_only" not in message and "safe_globals" not in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is damaged, or no file of torch.save"),
        (b"garbage" * 9, "is damaged, or no file of torch.save"),
        ([1], "holds a list; expected a dict"),
        ({}, "has another form than DeepSpeed writes (KeyError: 'module')"),
        ({"module": 3}, "has another form than DeepSpeed writes"),
    ],
)
def test_damaged_files_of_deepspeed_are_named(tmp_path: Path, content: Any, text: str) -> None:
    folder = tmp_path / "in" / "six"
    folder.mkdir(parents=True)
    path = folder / "mp_rank_00_model_states.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "in", tmp_path / "out", "six")
    assert text in str(caught.value) and "six" in str(caught.value) and "weights_only" not in str(caught.value)
