# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning's strategies over Gloo and over Lockstep, and compares them. Runs as two ranks.

Usage: lightning_client.py PORTS..., a free port for each training. On one port a fast rank would find the store of the
training before.
"""

from __future__ import annotations

import os
import sys

import lightning
import lightning.fabric.strategies.deepspeed as fabric_deepspeed
import lightning.pytorch.strategies.deepspeed as trainer_deepspeed
import torch
import torch.distributed as dist
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.state import AcceleratorState

# Lightning's DeepSpeed strategies refuse CPUs, where DeepSpeed itself and Lockstep train.
fabric_deepspeed.CUDAAccelerator = CPUAccelerator
trainer_deepspeed.CUDAAccelerator = lightning.pytorch.accelerators.CPUAccelerator
fabric_deepspeed._validate_device_index_selection = lambda devices: None
trainer_deepspeed._validate_device_index_selection = lambda devices: None
OPTIONS = {"accelerator": "cpu", "devices": 2}
PORTS = sys.argv[1:]


def make_loader():
    torch.manual_seed(1)
    inputs = torch.randn(128, 8)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def with_fabric(strategy, clip=False):
    fabric = lightning.Fabric(strategy=strategy, **OPTIONS)
    fabric.launch()
    model = make_net()
    if isinstance(strategy, ModelParallelStrategy):  # It shards the model before the optimizer exists.
        model = fabric.setup_module(model)
        optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.01))
    else:
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader, losses = fabric.setup_dataloaders(make_loader()), []
    for _ in range(2):
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            fabric.backward(loss)
            if clip:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(fabric.all_reduce(loss.detach(), reduce_op="mean")))
    return losses


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = make_net(), []

    def training_step(self, batch, index):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.losses.append(float(loss))
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def with_trainer(strategy):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(strategy=strategy, max_epochs=2, enable_model_summary=False, **quiet, **OPTIONS)
    module = Module()
    trainer.fit(module, make_loader())
    return [*module.losses, float(trainer.callback_metrics["loss"])]


def run(train, strategy, backend, **options):
    os.environ["MASTER_PORT"] = PORTS.pop()
    losses = train(strategy, **options)
    assert dist.get_backend() == backend and len(losses) >= 8, (dist.get_backend(), losses)
    AcceleratorState._reset_state(True)  # Ends the group of torch.distributed if it is Lockstep's.
    if dist.is_initialized():
        dist.destroy_process_group()
    return losses


def shard(model, mesh):
    return fully_shard(model, mesh=mesh["data_parallel"])


def sharded(backend):
    return ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1, process_group_backend=backend)


def main():
    assert lockstep.__name__ and dist.Backend.LOCKSTEP == "lockstep"
    for train in (with_fabric, with_trainer):
        gloo = run(train, make_ddp(train, "gloo"), "gloo")
        assert run(train, make_ddp(train, "lockstep"), "lockstep") == gloo, train.__name__
        print(f"{train.__name__}: DDP")
        if train is with_fabric:
            expected = run(train, sharded("gloo"), "gloo")
            assert run(train, sharded("lockstep"), "lockstep") == expected
            print(f"{train.__name__}: FSDP2")
            gloo = run(train, make_ddp(train, "gloo"), "gloo", clip=True)  # DeepSpeed clips to 1 by default.
        strategies = fabric_deepspeed if train is with_fabric else trainer_deepspeed
        for stage in (1, 2, 3):
            losses = run(train, strategies.DeepSpeedStrategy(stage=stage, process_group_backend="lockstep"), "lockstep")
            torch.testing.assert_close(losses, gloo, rtol=1e-4, atol=1e-4)
        print(f"{train.__name__}: DeepSpeed")


def make_ddp(train, backend):
    kind = DDPStrategy if train is with_fabric else lightning.pytorch.strategies.DDPStrategy
    return kind(process_group_backend=backend)


if __name__ == "__main__":
    main()
