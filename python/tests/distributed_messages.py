# SPDX-License-Identifier: Apache-2.0
"""One rank of test_distributed.py: messages, the life of process groups, stores, and what they refuse."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lockstep

warnings.simplefilter("ignore")
FOLDER = Path(sys.argv[1])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def messages_between_neighbours() -> None:
    for shape in [(), (3,), (0,), (200, 300), (1000, 1000)]:
        value, received = torch.full(shape, float(RANK)), torch.empty(shape)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, value, RIGHT), dist.P2POp(dist.irecv, received, LEFT)]
        )
        for work in works:
            work.wait()
        assert torch.equal(received, torch.full(shape, float(LEFT)))
    # Small messages do not wait for their receiver, so both sides may send first.
    dist.send(torch.tensor([RANK]), RIGHT, tag=3)
    number = torch.empty(1, dtype=torch.int64)
    assert dist.recv(number, LEFT, tag=3) == LEFT and int(number) == LEFT
    # A tensor that is not contiguous, and a future.
    columns = torch.zeros(4, 3).t()
    work = dist.irecv(columns, LEFT)
    sent = dist.isend((torch.arange(12.0).view(4, 3) + RANK).t(), RIGHT)
    work.get_future().wait()
    sent.wait()
    assert torch.equal(columns, (torch.arange(12.0).view(4, 3) + LEFT).t())
    assert work.is_completed() and work.is_success() and work.source_rank() == LEFT


def a_value_may_change_after_its_send() -> None:
    value = torch.full((10,), float(RANK))
    work = dist.isend(value, RIGHT)
    work.wait()
    value.fill_(-1)
    received = torch.empty(10)
    dist.recv(received, LEFT)
    assert torch.equal(received, torch.full((10,), float(LEFT)))
    dist.barrier()


def a_later_collective_completes_first() -> None:
    """A future of a message waits on its own thread, not before a future of a collective."""
    received = torch.empty(100_000)
    future = dist.irecv(received, LEFT).get_future()
    total = torch.ones(3)
    dist.all_reduce(total, async_op=True).get_future().wait()
    assert not future.done()
    dist.barrier()
    dist.isend(torch.full((100_000,), 5.0), RIGHT).wait()
    future.wait()
    assert float(received.mean()) == 5 and float(total[0]) == SIZE


def messages_of_any_rank() -> None:
    if RANK != 0:
        dist.send(torch.full((3,), float(RANK)), 0, tag=2)
        dist.barrier()
        dist.send(torch.full((100_000,), float(RANK)), 0)
        return
    received, senders = torch.empty(3), set()
    for _ in range(SIZE - 1):
        source = dist.recv(received, tag=2)
        assert torch.equal(received, torch.full((3,), float(source)))
        senders.add(source)
    columns = torch.empty(10, 10_000).t()
    work = dist.irecv(columns)
    assert not work.is_completed()
    dist.barrier()
    while not work.is_completed():
        pass
    work.wait()
    assert columns.eq(work.source_rank()).all()
    senders |= {dist.recv(torch.empty(100_000)) for _ in range(SIZE - 2)} | {work.source_rank()}
    assert senders == set(range(1, SIZE))


def uneven_shares() -> None:
    outputs = [torch.empty(RANK + 1, 2) for _ in range(SIZE)]
    dist.all_to_all(outputs, [torch.full((to + 1, 2), float(RANK)) for to in range(SIZE)])
    assert all(torch.equal(output, torch.full((RANK + 1, 2), float(rank))) for rank, output in enumerate(outputs))


def refusals() -> None:
    """What is refused before any rank communicates leaves the group usable."""
    value = torch.ones(4)
    with pytest.raises(lockstep.ConfigError, match="BAND is not defined for torch.float32; expected an integer"):
        dist.all_reduce(value, dist.ReduceOp.BAND)
    with pytest.raises(lockstep.ConfigError, match="AVG is not defined for torch.bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    with pytest.raises(lockstep.ConfigError, match="one tensor for each of .* ranks; got 1 tensors"):
        dist.distributed_c10d._get_default_group().allgather([[value]], [value])
    with pytest.raises(lockstep.ConfigError, match=r"the tensor is on meta.*cpu:lockstep,cuda:nccl"):
        dist.all_reduce(torch.ones(3, device="meta"))
    with pytest.raises(lockstep.ConfigError, match=f"expected {SIZE} output sizes with the sum {SIZE}; got"):
        dist.all_to_all_single(torch.empty(SIZE), torch.ones(SIZE), [2] * SIZE, [1] * SIZE)
    with pytest.raises(lockstep.ConfigError, match=f"expected {SIZE} inputs, one for each rank; got 1"):
        dist.all_to_all([torch.empty(1)] * SIZE, [torch.ones(1)])
    dist.all_reduce(value)
    assert float(value[0]) == SIZE


def groups_come_and_go() -> None:
    for _ in range(5):
        group = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=20), group_desc="mine")
        assert (group.group_desc, dist.get_backend(group), group.size()) == ("mine", "lockstep", SIZE)
        value = torch.ones(2)
        dist.all_reduce(value, group=group)
        assert float(value[0]) == SIZE
        dist.destroy_process_group(group)
        with pytest.raises((lockstep.ConfigError, ValueError), match="destroyed|Invalid|not part"):
            group.allreduce([value])
    reversed_ranks = dist.new_group(list(reversed(range(SIZE))))
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, RANK, group=reversed_ranks)
    assert sorted(gathered) == list(range(SIZE))
    part = dist.distributed_c10d._get_default_group().split_group([SIZE - 1, 0], group_name="ends")
    if part is not None:
        value = torch.full((1,), float(RANK))
        part.broadcast([value]).wait()
        assert float(value) == SIZE - 1 and part.group_name == "ends"


def stores() -> None:
    """Groups connect over every store, again and again in one process."""
    for number in range(2):
        dist.init_process_group("cpu:lockstep", init_method=f"file://{FOLDER}/store_{number}", rank=RANK, world_size=SIZE)
        dist.barrier()
        value = torch.ones(2)
        dist.all_reduce(value)
        dist.destroy_process_group()
        assert float(value[0]) == SIZE
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, SIZE, RANK == 0)
    prefix = dist.PrefixStore("mine", store)
    dist.init_process_group("lockstep", store=prefix, rank=RANK, world_size=SIZE)
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
    value = torch.arange(4.0)
    dist.all_reduce(value)
    outputs = [torch.empty(4)]
    dist.all_gather(outputs, value)
    dist.reduce_scatter_tensor(outputs[0], value)
    assert torch.equal(outputs[0], torch.arange(4.0))
    dist.destroy_process_group()


def with_other_devices() -> None:
    dist.init_process_group(
        "cpu:lockstep,cuda:nccl", init_method=f"file://{FOLDER}/devices", rank=RANK, world_size=SIZE
    )
    group = dist.group.WORLD
    assert sorted(device.type for device in group._device_types) == ["cpu", "cuda"]
    value = torch.ones(2)
    dist.all_reduce(value)
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, RANK)
    assert float(value[0]) == SIZE and gathered == list(range(SIZE))
    dist.destroy_process_group()
    # As for a group that c10d has not registered yet: torch 2.15 then attaches no hook, which is for groups of C++.
    assert group._device_types == []


def profiled() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    names = {event.key for event in profile.key_averages()}
    assert {"lockstep:all_reduce", "lockstep:barrier", "lockstep:wait"} <= names, names


stores()
with_other_devices()
dist.init_process_group("lockstep")
for case in (
    messages_between_neighbours,
    a_value_may_change_after_its_send,
    a_later_collective_completes_first,
    messages_of_any_rank,
    uneven_shares,
    refusals,
    groups_come_and_go,
    profiled,
):
    case()
    print(case.__name__)
# Without destroy_process_group: a copied message is received though its sender ends.
if RANK == 0:
    dist.send(torch.arange(5.0), SIZE - 1)
elif RANK == SIZE - 1:
    import time

    time.sleep(0.5)
    last = torch.empty(5)
    dist.recv(last, 0)
    assert torch.equal(last, torch.arange(5.0))
print("done")
