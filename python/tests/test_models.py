# SPDX-License-Identifier: Apache-2.0
"""lockstep.utils.modeling, memory, other, environment, and lockstep.big_modeling."""

from __future__ import annotations

import gc
import os
import socket
import weakref

import numpy
import pytest
import torch
from crafted import MakesFolder
from safetensors.torch import load_file, save_file
from torch import nn

from lockstep import Accelerator, FullyShardedDataParallelPlugin, big_modeling, utils
from lockstep._core import CheckpointError, ConfigError
from lockstep.state import PartialState
from lockstep.utils import ProjectConfiguration
from lockstep.utils.fsdp_utils import load_fsdp_optimizer, save_fsdp_optimizer


class Tied(nn.Module):
    """Two layers with one weight, and two buffers of which one is not saved."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.ones(5), persistent=False)


def test_sizes_and_names_of_a_model():
    model = Tied()
    sizes = utils.compute_module_sizes(model)
    assert (sizes["a"], sizes["b"], sizes["count"], sizes[""]) == (48, 12, 16, 48 + 12 + 16 + 20)
    assert utils.compute_module_sizes(model, dtype="float16")[""] == 24 + 6 + 16 + 10
    assert utils.compute_module_sizes(model, special_dtypes={"cache": torch.float64})["cache"] == 40
    assert utils.find_tied_parameters(model) == [["a.weight", "b.weight"]]
    saved = [name for name, _ in utils.named_module_tensors(model, recurse=True, remove_non_persistent=True)]
    assert saved == ["a.weight", "a.bias", "b.bias", "count"]
    assert utils.calculate_maximum_sizes(model)[1] == (48, ["a"])
    assert utils.get_max_memory({0: "1GB", "cpu": "2KiB"}) == {0: 10**9, "cpu": 2048}
    assert utils.get_max_memory()["cpu"] > 2**20


@pytest.mark.parametrize(
    ("size", "count"),
    [("1MiB", 2**20), ("1.5GB", 1_500_000_000), ("8Gb", 10**9), (7, 7), ("2kb", 250), ("1GiB", 2**30)],
)
def test_sizes_as_text(size, count):
    assert utils.convert_file_size_to_int(size) == count


@pytest.mark.parametrize("size", ["5", "GB", "-1GB", -1, "x MB"])
def test_an_invalid_size_is_an_error(size):
    with pytest.raises(ValueError, match="expected bytes"):
        utils.convert_file_size_to_int(size)


def test_empty_weights_have_no_memory_and_are_loaded_from_a_file(tmp_path):
    source = Tied()
    source.count += 4
    save_file(utils.clean_state_dict_for_safetensors(source.state_dict()), tmp_path / "model.safetensors")
    with big_modeling.init_empty_weights():
        model = Tied()
    assert model.a.weight.is_meta and model.a.bias.is_meta and not model.count.is_meta
    model.b.weight = model.a.weight
    utils.load_checkpoint_in_model(model, tmp_path)
    assert torch.equal(model.a.weight, source.a.weight) and model.b.weight is model.a.weight
    assert torch.equal(model.b.bias, source.b.bias) and model.count.tolist() == [4, 4] and model.a.bias.requires_grad
    assert not nn.Linear(1, 1).weight.is_meta, "the block has ended"


def test_weights_that_an_empty_model_lacks_are_an_error(tmp_path):
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with big_modeling.init_empty_weights():
        model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="has no bias"):
        utils.load_checkpoint_in_model(model, tmp_path)
    with big_modeling.init_empty_weights(include_buffers=True):
        model = Tied()
    save_file(
        {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in model.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ConfigError, match="has no cache"):
        utils.load_checkpoint_in_model(model, tmp_path)


def test_loading_reports_names_of_only_the_file_or_only_the_model(tmp_path, caplog):
    save_file({"weight": torch.ones(2, 2), "extra": torch.ones(1)}, tmp_path / "model.safetensors")
    model = nn.Linear(2, 2)
    loaded = big_modeling.load_checkpoint_and_dispatch(model, tmp_path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    assert loaded is model and model.weight.dtype == torch.bfloat16 and model.weight.sum() == 4
    assert "not in the file: bias; not in the model: extra" in caplog.text
    with pytest.raises(CheckpointError, match="extra"):
        utils.load_checkpoint_in_model(model, tmp_path, strict=True)
    for arguments in ({"device_map": "auto"}, {"device_map": {"a": 0, "b": "cpu"}}, {"offload_folder": "x"}):
        with pytest.raises(ConfigError):
            utils.load_checkpoint_in_model(model, tmp_path, **arguments)


def test_functions_for_several_devices_are_refused():
    for function in (big_modeling.dispatch_model, big_modeling.cpu_offload, utils.infer_auto_device_map):
        with pytest.raises(ConfigError, match=f"\\[{function.__name__}\\] Lockstep does not"):
            function(nn.Linear(1, 1))


def test_a_tensor_of_a_module_is_replaced():
    model = Tied()
    model.a.bias.mark = "kept"
    utils.set_module_tensor_to_device(model, "a.bias", "cpu", torch.ones(3, dtype=torch.float64))
    assert model.a.bias.dtype == torch.float32 and model.a.bias.sum() == 3 and model.a.bias.mark == "kept"
    utils.set_module_tensor_to_device(model, "count", "cpu", torch.tensor([1, 2]))
    assert model.count.tolist() == [1, 2]
    for arguments, text in [(("a.none", "cpu"), "no tensor 'a.none'"), (("a.bias", "cpu", torch.ones(2)), "shape")]:
        with pytest.raises(ConfigError, match=text):
            utils.set_module_tensor_to_device(model, *arguments)


def test_saved_objects_are_read_back(tmp_path):
    PartialState(cpu=True)
    value = {"a": torch.ones(2), "n": numpy.arange(3), "s": numpy.float64(0.5), "t": (1, "x")}
    utils.save(value, tmp_path / "value.bin")
    found = utils.load(tmp_path / "value.bin")
    assert found["t"] == (1, "x") and found["n"].tolist() == [0, 1, 2] and found["s"] == 0.5
    utils.save(nn.Linear(2, 2).state_dict(), tmp_path / "m.safetensors", safe_serialization=True)
    assert (
        set(load_file(tmp_path / "m.safetensors")) == set(utils.load(tmp_path / "m.safetensors")) == {"weight", "bias"}
    )
    with pytest.raises(ConfigError, match="runs code of the file"):
        utils.load(tmp_path / "value.bin", weights_only=False)
    with pytest.raises(ConfigError, match="a dict of tensors"):
        utils.save([1], tmp_path / "x", safe_serialization=True)


def test_the_optimizer_of_a_sharded_model_is_saved_in_the_programs_folder(tmp_path):
    project = ProjectConfiguration(str(tmp_path / "project"), automatic_checkpoint_naming=True)
    plugin = FullyShardedDataParallelPlugin()
    accelerator = Accelerator(project_config=project, fsdp_plugin=plugin, expect_prepared_loader=False)
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    def train():
        accelerator.backward(model(torch.ones(3, 2)).sum())
        optimizer.step()
        optimizer.zero_grad()
        return accelerator.get_state_dict(model)["weight"].clone()

    train()
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, tmp_path / "own")
    assert (tmp_path / "own" / "optimizer_0").is_dir()
    assert not list(tmp_path.glob("project/checkpoints/checkpoint_*")) and project.iteration == 0
    expected = train()
    load_fsdp_optimizer(plugin, accelerator, optimizer, model, tmp_path / "own")
    assert torch.equal(train(), expected)


def test_parts_of_one_memory_are_different_tensors(tmp_path, caplog):
    PartialState(cpu=True)
    flat = torch.arange(6.0)
    state = {"a": flat[:3], "b": flat[3:], "row": flat.view(2, 3)[0], "tied": flat[:3], "t": flat.view(2, 3).t()}
    utils.save(state, tmp_path / "m.safetensors", safe_serialization=True)
    found = load_file(tmp_path / "m.safetensors")
    assert set(state) == {"a", "b", "row", "tied", "t"}, "the caller's dict is not changed"
    assert "row, tied are not saved" in caplog.text and set(found) == {"a", "b", "t"}
    assert found["b"].tolist() == [3, 4, 5] and found["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_file_with_code_is_not_run(tmp_path):
    torch.save(MakesFolder(tmp_path / "ran", os.mkdir), tmp_path / "code.bin")
    for load in (utils.load, utils.load_state_dict):
        with pytest.raises(CheckpointError, match="code.bin refers to posix.mkdir, which is not loaded") as caught:
            load(tmp_path / "code.bin")
        assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_model_is_extracted_from_its_wrappers():
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    assert utils.extract_model_from_parallel(wrapped) is model
    compiled = torch.compile(wrapped)
    assert utils.extract_model_from_parallel(compiled) is compiled and compiled._orig_mod is model
    assert utils.extract_model_from_parallel(torch.compile(model), keep_torch_compile=False) is model
    model._original_forward = model.forward
    model.forward = lambda x: x.half()
    assert utils.extract_model_from_parallel(model, keep_fp32_wrapper=False) is model
    assert "forward" not in model.__dict__ and model(torch.ones(1, 2)).dtype == torch.float32


def test_repeated_layers_are_compiled_one_by_one():
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    model.head = nn.Linear(2, 1)
    compiled = utils.compile_regions(model, backend="eager")
    assert utils.has_compiled_regions(compiled) and not utils.has_compiled_regions(model)
    assert utils.is_compiled_module(compiled.layers[1]) and compiled.head._orig_mod is model.head
    assert utils.extract_model_from_parallel(compiled, keep_torch_compile=False) is model


def test_a_batch_size_that_fits_is_found_and_kept():
    tried = []

    @utils.find_executable_batch_size(starting_batch_size=100)
    def train(batch_size, name):
        tried.append(batch_size)
        if batch_size > 80:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        return name

    assert train("x") == "x" and train("y") == "y" and tried == [100, 90, 81, 72, 72]
    with pytest.raises(TypeError, match="find_executable_batch_size passes the first one"):
        train(32, "x")

    @utils.find_executable_batch_size(starting_batch_size=2)
    def never(batch_size):
        raise torch.cuda.OutOfMemoryError("none left")

    with pytest.raises(RuntimeError, match="reached zero"):
        never()

    @utils.find_executable_batch_size
    def fails(batch_size):
        raise RuntimeError("another fault")

    with pytest.raises(RuntimeError, match="another fault"):
        fails()


def test_memory_is_released():
    import weakref

    model = nn.Linear(2, 2)
    reference = weakref.ref(model)
    (model,) = utils.release_memory(model)
    assert model is None and reference() is None


def test_variables_are_read_and_restored(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_TEST_FLAG", "maybe")
    with pytest.raises(ValueError, match="variable LOCKSTEP_TEST_FLAG: invalid truth value 'maybe'"):
        utils.parse_flag_from_env("LOCKSTEP_TEST_FLAG")
    with utils.patch_environment(lockstep_test_flag="On", other_test=3):
        assert utils.parse_flag_from_env("LOCKSTEP_TEST_FLAG") and os.environ["OTHER_TEST"] == "3"
    assert os.environ["LOCKSTEP_TEST_FLAG"] == "maybe" and "OTHER_TEST" not in os.environ
    monkeypatch.setenv("PMI_RANK", "4")
    assert utils.get_int_from_env(["RANK", "PMI_RANK"], 0) == 4 and utils.get_cpu_distributed_information().rank == 4

    @utils.purge_accelerate_environment
    def change():
        os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"

    change()
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


def test_small_helpers():
    assert utils.convert_bytes(1536) == "1.5 KB"
    assert utils.merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert utils.recursive_getattr(nn.Linear(2, 3), "weight.shape") == (3, 2)
    assert utils.get_pretty_name(nn.Linear) == "Linear" and utils.get_pretty_name(3) == "int"
    names = [name for name, _ in utils.get_module_children_bottom_up(nn.Sequential(nn.Linear(1, 1)), return_fqns=True)]
    assert names == ["0", ""]
    assert utils.compare_versions("torch", ">=", "2.0") and not utils.is_torch_version("<", "2.0.0a0")
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert utils.is_port_in_use(port)
    assert not utils.is_port_in_use(port)


def test_a_progress_bar_is_shown_by_the_main_process_only(capsys):
    pytest.importorskip("tqdm")
    PartialState(cpu=True)
    assert list(utils.tqdm(range(3), desc="steps")) == [0, 1, 2] and "steps" in capsys.readouterr().err
    PartialState().local_process_index = 1
    assert list(utils.tqdm(range(3))) == [0, 1, 2] and capsys.readouterr().err == ""
    assert list(utils.tqdm(range(3), main_process_only=False)) == [0, 1, 2] and capsys.readouterr().err != ""
    with pytest.raises(ConfigError, match="main_process_only="):
        utils.tqdm(True, range(3))


class Trainer:
    """Refers to the Accelerator that saves it, as many programs do."""

    def __init__(self, accelerator):
        self.accelerator = accelerator

    def state_dict(self):
        return {"steps": 1}

    def load_state_dict(self, state):
        assert state == {"steps": 1}


def references_after_training(precision, optimizer_class, folder):
    """Trains with an Accelerator that hooks and objects refer to. Returns weak references to all that it prepared."""
    accelerator = Accelerator(mixed_precision=precision)
    model = nn.Linear(3, 1)
    optimizer = optimizer_class(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 3)), batch_size=2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    trainer, names = Trainer(accelerator), []
    accelerator.register_for_checkpointing(trainer)
    accelerator.register_save_state_pre_hook(lambda *_: names.append(accelerator.device))
    for (batch,) in loader:
        accelerator.backward(model(batch).sum())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)
    accelerator.load_state(folder)
    return {type(each).__name__: weakref.ref(each) for each in (accelerator, model, optimizer, loader, schedule, trainer)}


@pytest.mark.parametrize("precision, optimizer", [("no", "AdamW"), ("bf16", "Rprop")])
def test_an_accelerator_that_nothing_else_refers_to_is_freed(tmp_path, precision, optimizer):
    references = references_after_training(precision, getattr(torch.optim, optimizer), tmp_path / "state")
    gc.collect()
    assert [name for name, reference in references.items() if reference() is not None] == []
