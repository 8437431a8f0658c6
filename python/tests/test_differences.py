# SPDX-License-Identifier: Apache-2.0
"""The differences from Accelerate that docs/python.md lists, as far as a small program shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate_case_tools import Numbers
from launch import run_ranks
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import lockstep
from lockstep import Accelerator, ConfigError, DataLoaderConfiguration, DeepSpeedPlugin
from lockstep.utils import GradientAccumulationPlugin


@pytest.mark.parametrize("rescales", [False, True])
def test_the_last_group_of_accumulation_has_its_full_weight_on_request(rescales: bool) -> None:
    """6 micro-steps in groups of 4: Accelerate's second gradient is 0.5."""
    plugin = GradientAccumulationPlugin(num_steps=4, rescale_short_group=rescales)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.ones(6, 1), batch_size=1))
    gradients = []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            if accelerator.sync_gradients:
                gradients.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    assert gradients == pytest.approx([1.0, 1.0 if rescales else 0.5])


def test_a_loop_that_breaks_has_used_its_epoch() -> None:
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=1)
    loader = Accelerator(dataloader_config=config).prepare(DataLoader(Numbers(8), batch_size=8, shuffle=True))
    first = next(iter(loader)).tolist()
    second = next(iter(loader)).tolist()
    assert sorted(first) == sorted(second) == list(range(8)) and first != second


def test_a_loader_without_batches_keeps_its_sampler() -> None:
    """Accelerate drops the sampler of a DataLoader(batch_size=None) with one process, and throws with several."""
    torch.manual_seed(0)
    loader = Accelerator().prepare(DataLoader(Numbers(9), batch_size=None, sampler=RandomSampler(Numbers(9))))
    order = [value.item() for value in loader]
    assert sorted(order) == list(range(9)) and order != list(range(9))


def test_a_loader_without_batches_is_divided_between_processes() -> None:
    program = """
        from lockstep import Accelerator
        from torch.utils.data import DataLoader
        loader = Accelerator().prepare(DataLoader(range(5), batch_size=None))
        print([value for value in loader])
    """
    outputs = [output.splitlines()[-1] for output in run_ranks(program, 2)]
    assert outputs == ["[0, 2, 4]", "[1, 3, 0]"]


def test_a_prepared_model_has_no_wrapper() -> None:
    net = torch.nn.Linear(2, 2)
    accelerator = Accelerator()
    model = accelerator.prepare(net)
    assert model is net and accelerator.unwrap_model(model) is net and not hasattr(model, "module")


def test_a_loader_reads_no_batch_ahead() -> None:
    """Accelerate has read the second batch when it delivers the first."""
    read = []

    class Watched(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            read.append(index)
            return super().__getitem__(index)

    loader = Accelerator().prepare(DataLoader(Watched(8), batch_size=2))
    next(iter(loader))
    assert read == [0, 1]


def test_an_object_of_an_unknown_class_is_not_sent() -> None:
    program = """
        from lockstep import Accelerator
        from lockstep.utils import gather_object
        accelerator = Accelerator()
        print(gather_object([{"rank": accelerator.process_index, "pair": (1, 2.5), "text": b"x"}]))

        class Own:
            pass

        try:
            gather_object([Own()])
        except Exception as error:
            print(type(error).__name__, error)
    """
    for output in run_ranks(program, 2):
        lines = output.splitlines()
        assert lines[-2] == str([{"rank": rank, "pair": (1, 2.5), "text": b"x"} for rank in range(2)])
        assert "Own" in lines[-1]


def test_hooks_write_into_the_checkpoint(tmp_path: Path) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))

    def save(models: list[torch.nn.Module], weights: list[dict[str, torch.Tensor]], folder: str) -> None:
        Path(folder, "adapter.txt").write_text(f"{len(weights)} models", encoding="utf-8")

    read = []
    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(
        lambda models, folder: read.append(Path(folder, "adapter.txt").read_text(encoding="utf-8"))
    )
    accelerator.save_state(tmp_path / "state")
    accelerator.load_state(tmp_path / "state")
    assert read == ["1 models"] and model is not None
    assert not (tmp_path / "state" / "adapter.txt").exists(), "the file is within a safetensors file"


def test_join_uneven_inputs_works_on_cpus() -> None:
    program = """
        import torch
        from lockstep import Accelerator
        from torch.utils.data import DataLoader, TensorDataset
        accelerator = Accelerator()
        model = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(TensorDataset(torch.ones(5, 1)), batch_size=1)
        )
        batches = 0
        with accelerator.join_uneven_inputs([model], even_batches=False):
            for (x,) in loader:
                accelerator.backward(model(x).sum())
                optimizer.step()
                optimizer.zero_grad()
                batches += 1
        print(batches, model.weight.item())
    """
    outputs = [output.splitlines()[-1].split() for output in run_ranks(program, 2)]
    assert [count for count, _ in outputs] == ["3", "2"] and outputs[0][1] == outputs[1][1]


def test_fp16_on_a_cpu_computes_in_fp16() -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    assert accelerator.loss_scale == 65536.0
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16


def test_only_safetensors_are_written(tmp_path: Path) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="safetensors"):
        accelerator.save_state(tmp_path / "state", safe_serialization=False)
    with pytest.raises(ConfigError, match="safetensors"):
        accelerator.save_model(model, tmp_path / "model", safe_serialization=False)


def test_checkpoints_have_the_order_of_samples(tmp_path: Path) -> None:
    """Without skip_first_batches: the position is loaded. With it, nothing is skipped twice."""
    dataset = TensorDataset(torch.arange(12))

    def batches(loader: DataLoader) -> Iterator[list[int]]:
        return (batch.tolist() for (batch,) in loader)

    torch.manual_seed(4)
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(dataset, batch_size=2, shuffle=True))
    seen = []
    for index, batch in enumerate(batches(loader)):
        seen.append(batch)
        if index == 1:
            accelerator.save_state(tmp_path / "state")
    following = list(batches(loader))
    for skip in (False, True):
        accelerator.load_state(tmp_path / "state")
        rest = accelerator.skip_first_batches(loader, 2) if skip else loader
        assert list(batches(rest)) == seen[2:]
        assert list(batches(loader)) == following


def test_an_accelerator_keeps_its_deepspeed_plugin() -> None:
    plugins = {"training": DeepSpeedPlugin(zero_stage=2), "other": DeepSpeedPlugin(zero_stage=1)}
    accelerator = Accelerator(deepspeed_plugin=plugins)
    accelerator.state.select_deepspeed_plugin("other")
    with pytest.raises(ConfigError, match="another DeepSpeed plugin was selected"):
        accelerator.prepare(torch.nn.Linear(2, 2))
    net = Accelerator().prepare(torch.nn.Linear(2, 2))
    accelerator.state.select_deepspeed_plugin("training")
    assert accelerator.prepare(torch.nn.Linear(2, 2)) is not net


@pytest.mark.parametrize("kind", ["dataset", "stream"])
def test_a_loader_continues_at_the_position_of_its_state_dict(kind: str) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(12))

    torch.manual_seed(4)
    data = DataLoader(Stream() if kind == "stream" else Numbers(12), batch_size=2, shuffle=kind == "dataset")
    loader = Accelerator().prepare(data)
    seen, state = [], {}
    for index, batch in enumerate(loader):
        seen.append(batch.tolist())
        if index == 1:
            state = loader.state_dict()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == seen[2:]
    with pytest.raises(ConfigError, match="expected 'position'"):
        loader.load_state_dict({"_num_yielded": 2})
    if kind == "dataset":
        with pytest.raises(ConfigError, match="saved with 12 samples; this loader has 8"):
            Accelerator().prepare(DataLoader(Numbers(8), batch_size=2)).load_state_dict(state)


def test_unsupported_options_say_what_to_use() -> None:
    with pytest.raises(ConfigError, match="expected a MegatronLMPlugin alone"):
        Accelerator(megatron_lm_plugin=object())
    with pytest.raises(ConfigError, match="expected a TorchTensorParallelPlugin"):
        Accelerator(torch_tp_plugin=object())
    with pytest.raises(ConfigError, match="csv, jsonl, tensorboard"):
        Accelerator(log_with="comet_ml")


def test_a_stream_has_an_epoch_for_each_pass() -> None:
    class Stream(IterableDataset):
        epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(3))

    loader = Accelerator().prepare(DataLoader(Stream(), batch_size=2))
    assert [list(map(len, loader)) for _ in range(2)] == [[2, 1], [2, 1]]
    assert Stream.epochs == [0, 1] and lockstep.__name__ == "lockstep"
