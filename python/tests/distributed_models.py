# SPDX-License-Identifier: Apache-2.0
"""One rank of test_distributed.py: torch's own parallel training over Lockstep and over Gloo, with equal results.

Prints the names of the compared trainings.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import lockstep  # noqa: F401  # Registers the backend.

warnings.simplefilter("ignore")
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir())


class Branches(nn.Module):
    """A model of which each rank uses another branch in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, values: torch.Tensor, left: bool = True, right: bool = True) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.first(values)))
        used = [branch(hidden) for branch, is_used in ((self.left, left), (self.right, right)) if is_used]
        return self.last(torch.relu(sum(used)))


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(6, 8, generator=generator) for _ in range(count)]


def values_of(model: nn.Module) -> list[torch.Tensor]:
    values = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [(v.full_tensor() if isinstance(v, DTensor) else v).detach().clone() for v in values]


def ddp(hook: Callable[[DistributedDataParallel], None] | None = None, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), **options)
    if hook:
        hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    unused = options.get("find_unused_parameters", False)
    for step, batch in enumerate(batches(6)):
        left = not unused or (step + dist.get_rank()) % 2 == 0
        if not options.get("static_graph"):
            with model.no_sync():
                model(batch, left, not unused or not left).square().mean().backward()
        model(batch.flip(0), left, not unused or not left).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(batches(1)[0]).square().mean().backward()
    return values_of(model)


def fp16_hook(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def python_hook(model: DistributedDataParallel) -> None:
    def average(state, bucket):  # type: ignore[no-untyped-def]  # torch checks annotations, which are texts here.
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(dist.get_world_size()))

    model.register_comm_hook(None, average)


def power_hook(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def zero_optimizer() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for batch in batches(4):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return values_of(model)


def sparse_embedding() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.tensor([step, 3 + dist.get_rank(), 7])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return values_of(model)


def fsdp(dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, batch in enumerate(batches(6)):
        model.set_requires_gradient_sync(step % 2 == 1)
        model(batch).square().mean().backward()
        if step % 2 == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return values_of(model)


def tensor_parallel() -> list[torch.Tensor]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    model(torch.randn(4, 8)).square().mean().backward()
    sharded = distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0)])
    columns = sharded.redistribute(mesh, [Shard(1)])
    product = sharded.t() @ sharded
    return [*values_of(model), columns.full_tensor(), product.redistribute(mesh, [Replicate()]).to_local()]


def subgroups() -> list[torch.Tensor]:
    """Averages within groups that overlap, which DeviceMesh and new_group connect."""
    size, rank = dist.get_world_size(), dist.get_rank()
    first = dist.new_group(list(range(size - 1)) or [0])
    pairs = [dist.new_group([each, (each + 1) % size]) for each in range(size)]
    value = torch.full((3,), float(rank + 1))
    if rank < max(size - 1, 1):
        dist.all_reduce(value, group=first)
    for each, pair in enumerate(pairs):
        if rank in (each, (each + 1) % size):
            dist.all_reduce(value, group=pair)
    own, _ = dist.new_subgroups(1)
    dist.all_reduce(value, group=own)
    mesh = DeviceMesh("cpu", torch.arange(size).view(1, size), mesh_dim_names=("replicas", "shards"))
    dist.all_reduce(value, group=mesh["shards"].get_group())
    return [value]


def checkpoint() -> list[torch.Tensor]:
    """Saves a sharded model and loads it into another one."""

    def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        model(batches(1)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    torch.manual_seed(0)
    model, optimizer = sharded()
    folder = FOLDER / dist.get_backend()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    other, other_optimizer = sharded()
    weights, state = get_state_dict(other, other_optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=state)
    for one, two in zip(values_of(model), values_of(other), strict=True):
        assert torch.equal(one, two)
    return values_of(other)


def pipeline(schedule: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size)]
    stage = PipelineStage(stages[rank], rank, size, torch.device("cpu"))
    runner = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    values, target = torch.randn(8, 8), torch.randn(8, 8)
    for _ in range(2):
        if rank == 0:
            runner.step(values)
        elif rank == size - 1:
            runner.step(target=target, losses=[])
        else:
            runner.step()
    return values_of(stages[rank])


TRAININGS: dict[str, tuple[Callable[[], list[torch.Tensor]], float]] = {
    "DDP": (ddp, 0),
    "DDP, small buckets": (lambda: ddp(bucket_cap_mb=0.001), 0),
    "DDP, unused parameters": (lambda: ddp(find_unused_parameters=True), 0),
    "DDP, static graph": (lambda: ddp(static_graph=True, gradient_as_bucket_view=True), 0),
    "DDP, float16 hook": (lambda: ddp(fp16_hook), 1e-3),
    "DDP, Python hook": (lambda: ddp(python_hook), 0),
    "DDP, PowerSGD": (lambda: ddp(power_hook), 1e-3),
    "DDP, sparse gradients": (sparse_embedding, 0),
    "ZeroRedundancyOptimizer": (zero_optimizer, 0),
    "FSDP2": (fsdp, 0),
    "FSDP2, bfloat16": (lambda: fsdp(torch.bfloat16), 1e-3),
    "DTensor": (tensor_parallel, 0),
    "subgroups": (subgroups, 0),
    "checkpoint": (checkpoint, 0),
    "GPipe": (lambda: pipeline(ScheduleGPipe), 0),
    "1F1B": (lambda: pipeline(Schedule1F1B), 0),
}

results = []
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
for backend in ("gloo", "lockstep"):
    dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=RANK, world_size=SIZE)
    assert dist.get_backend() == backend
    chosen = TRAININGS if len(sys.argv) < 3 else {name: TRAININGS[name] for name in sys.argv[2:]}
    results.append({})
    for name, (train, _) in chosen.items():
        print(f"{backend}: {name}", flush=True)  # A hang shows its training.
        results[-1][name] = train()
    two = dist.get_world_size() == 2
    dist.barrier()
    dist.destroy_process_group()
for name, theirs in results[0].items():
    tolerance = max(TRAININGS[name][1], 0 if two else 1e-5)  # Three ranks add in another order than Gloo.
    for one, other in zip(results[1][name], theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")  # noqa: B023
    print(name)
