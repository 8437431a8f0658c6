# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed: checkpoints, several ranks, collectives and other names, as DeepSpeed scripts use them."""
from __future__ import annotations

import gc
import json
import math
import weakref

import pytest
import torch
from lockstep import _core, deepspeed
from lockstep._core import CheckpointError, ConfigError
from lockstep.deepspeed.ops.adam import FusedAdam
from lockstep.deepspeed.runtime import lr_schedules
from torch import nn

from deepspeed_engines import net, start, update
from launch import run_ranks


# --- checkpoints
def test_a_resumed_run_is_bit_exact_and_returns_the_client_state(tmp_path):
    state = {
        "epoch": 3,
        "best": float("nan"),
        "tensor": torch.arange(3),
        "pair": (1, {"nested": {2, 3}}),
        7: "number as key",
        "global_steps": "the program's",
    }
    engine, *_ = start(
        zero_optimization={"stage": 2}, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}}
    )
    for step in range(3):
        update(engine, step)
    assert engine.save_checkpoint(tmp_path, client_state=state) is True
    assert (tmp_path / "latest").read_text().strip() == "global_step3"
    expected = [update(engine, step) for step in range(3, 6)]
    other, *_ = start(zero_optimization={"stage": 1}, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}})
    path, client = other.load_checkpoint(tmp_path)
    assert path == str(tmp_path / "global_step3") and math.isnan(client.pop("best"))
    assert torch.equal(client.pop("tensor"), state["tensor"])
    assert client == {key: value for key, value in state.items() if key not in ("best", "tensor")}
    assert (other.global_steps, other.get_lr()) == (3, [engine_rate(3)])
    assert [update(other, step) for step in range(3, 6)] == expected


def engine_rate(steps: int) -> float:
    return 0.01 * math.log(steps) / math.log(9)


def test_checkpoint_arguments(tmp_path):
    engine, *_ = start()
    assert engine.load_checkpoint(tmp_path) == (None, {})
    update(engine)
    engine.save_checkpoint(tmp_path, 0.125, client_sd={"plain": [1, "a", None]}, save_latest=False)
    assert (tmp_path / "0.125").is_dir() and not (tmp_path / "latest").exists()
    assert json.loads((tmp_path / "0.125/engine.json").read_text())["client_state"] == {"plain": [1, "a", None]}
    other, *_ = start()
    _, client = other.load_checkpoint(tmp_path, 0.125, load_module_only=True)
    assert client == {"plain": [1, "a", None]} and other.global_steps == 0
    assert torch.equal(other.module[0].weight, engine.module[0].weight)
    with pytest.raises(CheckpointError, match="0.125"):
        other.load_checkpoint(tmp_path, "absent")
    with pytest.raises(ConfigError, match="custom_load_fn"):
        other.load_checkpoint(tmp_path, 0.125, custom_load_fn=print)
    with pytest.raises(ConfigError, match="state_dict"):
        engine.save_checkpoint(tmp_path, client_state={"model": net()})
    with pytest.raises(ConfigError, match="only one"):
        engine.save_checkpoint(tmp_path, client_state={"a": 1}, client_sd={"a": 1})
    bigger, *_ = start(nn.Sequential(*net(), nn.Linear(2, 2)))
    bigger.load_checkpoint(tmp_path, 0.125, load_module_strict=False, load_optimizer_states=False)
    assert torch.equal(bigger.module[0].weight, engine.module[0].weight)


def test_16_bit_models_are_written_in_both_formats(tmp_path):
    from safetensors.torch import load_file

    engine, *_ = start(bf16={"enabled": True}, zero_optimization={"stage": 3})
    assert engine.save_16bit_model(tmp_path) and engine.save_16bit_model(tmp_path, "model.safetensors")
    for state in (torch.load(tmp_path / "pytorch_model.bin"), load_file(tmp_path / "model.safetensors")):
        assert state.keys() == engine.module.state_dict().keys()
        assert torch.equal(state["0.weight"], engine.module[0].weight.detach().bfloat16())
    plain, *_ = start()
    with pytest.raises(ConfigError, match="float32"):
        plain.save_16bit_model(tmp_path)


def test_loaders_of_training_data_are_resumed(tmp_path):
    data = [(torch.full((4,), float(i)), i) for i in range(24)]

    def make():
        torch.manual_seed(3)
        return start(_training_data=data, _collate_fn=lambda rows: [index for _, index in rows])

    engine, _, loader, _ = make()
    assert len(loader) == 6
    seen = []
    for number, batch in enumerate(loader):
        seen.append(batch)
        update(engine)
        if number == 2:
            engine.save_checkpoint(tmp_path)
    assert sorted(index for batch in seen for index in batch) == list(range(24)) and seen[0] != [0, 1, 2, 3]
    other, _, loader, _ = make()
    other.load_checkpoint(tmp_path)
    assert list(loader) == seen[3:]


def test_full_weights_of_a_checkpoint_are_read_without_an_engine(tmp_path):
    from lockstep.deepspeed.utils import zero_to_fp32

    engine, *_ = start(bf16={"enabled": True}, data_types={"param_dtype": "bf16"}, zero_optimization={"stage": 1})
    update(engine)
    engine.save_checkpoint(tmp_path)
    master = deepspeed.utils.safe_get_full_fp32_param(engine.module[0].weight)
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert state.keys() == engine.module.state_dict().keys() and torch.equal(state["0.weight"], master)
    assert not torch.equal(master, engine.module[0].weight.float()), "masters are not rounded"
    model = zero_to_fp32.load_state_dict_from_zero_checkpoint(net(), tmp_path, "global_step1")
    assert torch.equal(model[0].weight.detach(), master)
    with pytest.raises(CheckpointError, match="no file latest"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize("own", [False, True])
def test_an_engine_without_references_is_freed(own, tmp_path):
    class Mine(torch.optim.SGD):
        pass

    model = net()
    engine, optimizer, *_ = start(model, **({"_optimizer": Mine(model.parameters(), lr=0.1)} if own else {}))
    update(engine)
    engine.save_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path)
    freed = [weakref.ref(engine), weakref.ref(model)]
    del engine, optimizer, model
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


def test_states_move_off_the_device_and_back():
    from lockstep.deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

    engine, *_ = start(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}})
    update(engine)
    engine.offload_states(include=[OffloadStateTypeEnum.optim_states], device=OffloadDeviceEnum.cpu)
    engine.reload_states()
    update(engine)
    with pytest.raises(ConfigError, match="unknown state 'weights'"):
        engine.offload_states(include=["weights"])
    with pytest.raises(ConfigError, match="unknown device 'disk'"):
        engine.offload_states(device="disk")


# --- several ranks
def test_ranks_share_data_gradients_and_checkpoints(tmp_path):
    run_ranks(
        f"""
        import torch
        from torch import nn
        import lockstep.deepspeed as deepspeed
        from lockstep.deepspeed import comm

        deepspeed.init_distributed("nccl")
        rank, world = comm.get_rank(), comm.get_world_size()
        data = [(torch.full((4,), float(i)), torch.tensor(i)) for i in range(32)]

        def start(stage):
            torch.manual_seed(rank)  # Rank 0's values count.
            return deepspeed.initialize(model=nn.Linear(4, 2), training_data=data, config={{
                "train_batch_size": 8, "gradient_accumulation_steps": 2, "zero_optimization": {{"stage": stage}},
                "optimizer": {{"type": "Adam", "params": {{"lr": 0.01}}}}}})

        engine, optimizer, loader, _ = start(2)
        assert engine.train_micro_batch_size_per_gpu() == 2 and len(loader) == 8
        seen = []
        for x, index in loader:
            seen += index.tolist()
            engine.backward(engine(x).square().mean())
            engine.step()
            if engine.micro_steps == 4:
                engine.save_checkpoint({str(tmp_path)!r}, "middle", client_state={{"rank": rank}})
        every = []
        comm.all_gather_object(every := [None] * world, seen)
        assert sorted(sum(every, [])) == list(range(32))
        weight = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight)
        other, _, loader, _ = start(3)
        assert other.load_checkpoint({str(tmp_path)!r})[1] == {{"rank": 0}}
        for x, index in loader:
            other.backward(other(x).square().mean())
            other.step()
        same = deepspeed.utils.safe_get_full_fp32_param(other.module.weight)
        assert torch.allclose(weight, same, atol=1e-6) and other.global_steps == engine.global_steps == 4
        full = other._full_state_dict(torch.bfloat16, False)
        assert (set(full) == {{"weight", "bias"}}) == (rank == 0)
        """,
        2,
    )


def test_full_values_of_one_parameter_are_read_and_set_in_every_stage():
    run_ranks(
        """
        import torch
        from torch import nn
        import lockstep.deepspeed as deepspeed
        from lockstep.deepspeed import utils

        for stage in (0, 1, 2, 3):
            torch.manual_seed(0)
            model = nn.Linear(5, 3)
            engine, *_ = deepspeed.initialize(model=model, config={
                "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
                "zero_optimization": {"stage": stage}})
            engine.backward(engine(torch.ones(1, 5) * (engine.global_rank + 1)).sum())
            assert utils.safe_get_full_grad(model.weight).eq(1.5).all(), stage
            utils.safe_set_full_grad(model.weight, torch.full((3, 5), 2.0))
            engine.step()
            moment = utils.safe_get_full_optimizer_state(model.weight, "exp_avg")
            assert moment.shape == (3, 5) and moment.ne(0).all()
            utils.safe_set_full_optimizer_state(model.weight, torch.ones(3, 5), "exp_avg")
            assert utils.safe_get_full_optimizer_state(model.weight, "exp_avg").eq(1).all()
            utils.safe_set_full_fp32_param(model.weight, torch.full((3, 5), 7.0))
            assert utils.safe_get_full_fp32_param(model.weight).eq(7).all()
            assert model.weight.detach().eq(7).all()
            engine.destroy()
        try:
            utils.safe_get_full_fp32_param(nn.Linear(2, 2).weight)
            raise SystemExit("expected an error")
        except deepspeed.DeepSpeedConfigError as error:
            assert "belongs to no engine" in str(error)
        model = nn.Linear(2, 2)
        own = torch.optim.LBFGS(model.parameters())
        try:
            deepspeed.initialize(model=model, optimizer=own, config={
                "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}})
            raise SystemExit("expected an error")
        except deepspeed.DeepSpeedConfigError as error:
            assert "which LBFGS cannot: its step() failed for a slice" in str(error)
        """,
        2,
    )


def test_gradients_wait_in_no_sync_and_are_coalesced():
    run_ranks(
        """
        import torch
        from torch import nn
        import lockstep.deepspeed as deepspeed

        def start(stage):
            torch.manual_seed(0)
            model = nn.Linear(4, 2, bias=False)
            engine, *_ = deepspeed.initialize(model=model, config={
                "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": stage},
                "optimizer": {"type": "SGD", "params": {"lr": 1.0}}})
            return engine, model, model.weight.detach().clone()

        for stage in (0, 1):
            engine, model, before = start(stage)
            x = torch.ones(1, 4) * (engine.global_rank + 1)
            with engine.no_sync():
                engine.backward(engine(x).sum())
            engine.backward(engine(x).sum())
            engine.step()
            assert torch.allclose(model.weight.detach(), before - 3.0), stage
            engine.destroy()
        for stage in (1, 2, 3):
            engine, model, before = start(stage)
            x = torch.ones(1, 4) * (engine.global_rank + 1)
            with engine.coalesce_grad_reduction():
                engine.backward(engine(x).sum())
                engine.backward(engine(x).sum())
            engine.step()
            assert torch.allclose(model.weight.detach(), before - 3.0), stage
            try:
                with engine.coalesce_grad_reduction():
                    raise KeyError
            except KeyError:
                pass
            if stage >= 2:
                try:
                    with engine.no_sync():
                        raise SystemExit("expected an error")
                except deepspeed.DeepSpeedConfigError as error:
                    assert "stages 0 and 1" in str(error)
            engine.destroy()
        """,
        2,
    )


def test_collectives_of_deepspeed_comm():
    run_ranks(
        """
        import torch
        import lockstep.deepspeed as deepspeed
        from lockstep.deepspeed import comm as dist
        from datetime import timedelta

        assert not dist.is_initialized()
        deepspeed.init_distributed(timeout=timedelta(seconds=20))
        deepspeed.init_distributed()
        rank, world = dist.get_rank(), dist.get_world_size()
        assert dist.is_initialized() and dist.get_local_rank() == rank and world == 3
        t = torch.arange(4.0).reshape(2, 2).t() + rank  # Not contiguous.
        dist.all_reduce(t)
        assert torch.equal(t, 3 * torch.arange(4.0).reshape(2, 2).t() + 3)
        m = torch.tensor([rank]); dist.all_reduce(m, op=dist.ReduceOp.MAX); assert m.item() == 2
        handle = dist.all_reduce(m, op=dist.ReduceOp.MIN, async_op=True); handle.wait(); assert m.item() == 2
        b = torch.full((3,), float(rank)); dist.broadcast(b, 1); assert b.eq(1).all()
        parts = [torch.zeros(2) for _ in range(3)]
        dist.all_gather(parts, torch.full((2,), float(rank)))
        assert [p[0].item() for p in parts] == [0, 1, 2]
        out = torch.zeros(6); dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
        assert out.tolist() == [0, 0, 1, 1, 2, 2]
        mine, part = torch.zeros(2), [6.0 * rank, 6.0 * rank + 3]
        dist.reduce_scatter_tensor(mine, torch.arange(6.0)); assert mine.tolist() == part
        dist.reduce_scatter(mine, list(torch.arange(6.0).split(2))); assert mine.tolist() == part
        swapped = torch.zeros(3); dist.all_to_all_single(swapped, torch.arange(3.0) + 10 * rank)
        assert swapped.tolist() == [rank, 10 + rank, 20 + rank]
        r = torch.ones(1); dist.reduce(r, 2); assert r.item() == (3 if rank == 2 else 1)
        got = [torch.zeros(1) for _ in range(3)] if rank == 1 else None
        dist.gather(torch.full((1,), float(rank)), got, dst=1)
        assert got is None or [g.item() for g in got] == [0, 1, 2]
        s = torch.zeros(1); dist.scatter(s, [torch.full((1,), float(i)) for i in range(3)] if rank == 0 else None)
        assert s.item() == rank
        if rank == 0: dist.send(torch.full((2,), 5.0), 2)
        if rank == 2:
            r = torch.zeros(2); assert dist.recv(r, 0) == 0 and r.eq(5).all()
        objects = [{"a": rank}, (rank,)] if rank == 2 else [None, None]
        dist.broadcast_object_list(objects, 2); assert objects == [{"a": 2}, (2,)]
        group = dist.new_group([2, 0])
        if rank == 1:
            assert group == torch.distributed.GroupMember.NON_GROUP_MEMBER
        else:
            assert (dist.get_world_size(group), dist.get_rank(group)) == (2, 1 if rank == 2 else 0)
            b = torch.full((1,), float(rank)); dist.broadcast(b, 2, group=group); assert b.item() == 2
            assert dist.get_global_rank(group, 1) == 2 and dist.get_all_ranks_from_group(group) == [0, 2]
        dist.barrier()
        try:
            dist.all_reduce(m, group="world"); raise SystemExit("expected an error")
        except deepspeed.DeepSpeedConfigError as error:
            assert "new_group" in str(error)
        """,
        3,
    )


# --- other names
def test_a_layer_is_computed_again_in_backward():
    calls = []

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            calls.append(1)
            return nn.functional.dropout(self.inner(x), 0.5)

    layer = Layer()
    model = nn.ModuleList([layer])
    model.forward = lambda x: deepspeed.checkpointing.checkpoint(layer, x)
    engine, *_ = start(model, activation_checkpointing={"cpu_checkpointing": True, "partition_activations": True})
    loss = engine(torch.ones(2, 4, requires_grad=True)).sum()
    assert len(calls) == 1
    engine.backward(loss)
    assert len(calls) == 2
    with pytest.raises(ConfigError, match="torch.profiler"):
        deepspeed.checkpointing.configure(None, profile=True)
    assert not deepspeed.checkpointing.is_configured()


def test_names_that_lockstep_lacks_are_imported_and_refused():
    for name, arguments, reason in (
        ("DualPipeVModule", ([],), "Lockstep has no .*;"),
        ("init_inference", (net(),), "Lockstep has no .*;"),
        ("DeepSpeedHybridEngine", (net(),), "Lockstep has no .*;"),
    ):
        with pytest.raises(ConfigError, match=rf"\[{name}\] is not supported: {reason}"):
            getattr(deepspeed, name)(*arguments)
    with pytest.raises(AttributeError):
        _ = deepspeed.no_such_name
    with pytest.raises(ConfigError, match="offload_param"):
        deepspeed.zero.Init(remote_device="cpu")


def test_the_accelerator_object_describes_the_device():
    accelerator = deepspeed.get_accelerator()
    assert accelerator is deepspeed.accelerator.get_accelerator()
    assert accelerator.device_name() == accelerator.current_device_name() == "cpu" or torch.cuda.is_available()
    assert accelerator.is_available() and accelerator.is_fp16_supported() and accelerator.memory_allocated() > 0
    if not torch.cuda.is_available():
        assert accelerator.communication_backend_name() == "gloo" and accelerator.device_count() == 1
        with pytest.raises(AttributeError):
            _ = accelerator.Stream


def test_messages_of_chosen_ranks_are_logged(caplog):
    with caplog.at_level("INFO", logger=deepspeed.logger.name):
        deepspeed.log_dist("for rank 0", ranks=[0])
        deepspeed.log_dist("for rank 5", ranks=[5])
        deepspeed.log_dist("for all")
    assert [record.getMessage() for record in caplog.records] == ["[Rank 0] for rank 0", "[Rank 0] for all"]


def test_modules_have_deepspeeds_paths():
    from lockstep.deepspeed.runtime.activation_checkpointing import checkpointing
    from lockstep.deepspeed.runtime.engine import DeepSpeedEngine
    from lockstep.deepspeed.runtime.zero.partition_parameters import GatheredParameters

    assert checkpointing is deepspeed.checkpointing and DeepSpeedEngine is deepspeed.DeepSpeedEngine
    assert GatheredParameters is deepspeed.zero.GatheredParameters
    assert deepspeed.runtime.lr_schedules.WarmupLR is lr_schedules.WarmupLR
    assert deepspeed.ops.adam.FusedAdam is FusedAdam
    assert _core.optimizer_options("LAMB") is not None
