# SPDX-License-Identifier: Apache-2.0
"""One rank of test_distributed.py that meets the fault which the first argument names.

The second one is a folder in which the ranks tell that they have met it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import lockstep

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FAULT = sys.argv[1]
FOLDER = Path(sys.argv[2])


def init(seconds: float = 30) -> None:
    dist.init_process_group("lockstep", timeout=timedelta(seconds=seconds))


def tell() -> None:
    (FOLDER / str(RANK)).touch()


def await_others() -> None:
    """Blocks until the other ranks have met the fault, however long they took to begin."""
    for _ in range(1000):
        if len(list(FOLDER.iterdir())) == SIZE - 1:
            return
        time.sleep(0.05)
    raise AssertionError(f"the others met no fault; {sorted(FOLDER.iterdir())} did")


def a_rank_dies() -> None:
    init()
    dist.barrier()
    if RANK == SIZE - 1:
        os._exit(0)
    with pytest.raises(lockstep.CommError, match=rf"\[all_reduce\] rank {SIZE - 1} .*(died|left)"):  # Not "is late".
        dist.all_reduce(torch.ones(3))


def a_rank_never_joins() -> None:
    if RANK == SIZE - 1:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, False)
        store.wait(["done"], timedelta(seconds=30))
        return
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
    with pytest.raises(lockstep.CommError, match=f"rank {SIZE - 1} of {SIZE} did not join the group"):
        dist.init_process_group(
            "lockstep", store=dist.PrefixStore("x", store), rank=RANK, world_size=SIZE, timeout=timedelta(seconds=2)
        )
    store.add("left", 1)
    if RANK == 0:
        while store.add("left", 0) < SIZE - 1:
            time.sleep(0.01)
        store.set("done", "")
        time.sleep(1)


def a_rank_is_late() -> None:
    init(2)
    dist.barrier()
    if RANK == SIZE - 1:
        await_others()
    else:
        with pytest.raises(lockstep.CommError, match=rf"\[barrier\] rank {SIZE - 1} did not call .* within 1.0 s"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))
        with pytest.raises(lockstep.CommError):
            dist.all_reduce(torch.ones(1))
        tell()


def a_future_fails() -> None:
    init(1)
    if RANK == SIZE - 1:
        await_others()
        return
    with pytest.raises(lockstep.CommError, match="did not call the operation"):
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    model_error = pytest.raises((lockstep.CommError, RuntimeError), match="all_reduce|all_gather")
    with model_error:
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    tell()


def backward_fails() -> None:
    init(2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(2, 2)).sum()
    if RANK == SIZE - 1:
        os._exit(0)
    with pytest.raises(RuntimeError, match=f"rank {SIZE - 1}"):
        loss.backward()


def ranks_differ() -> None:
    init()
    with pytest.raises(lockstep.CommError, match=r"different operations; .*float\[3\].*float\[4\]"):
        dist.all_reduce(torch.ones(3 if RANK == 0 else 4))


def a_root_refuses() -> None:
    """The others do not wait for a root whose list is wrong."""
    init(60)
    parts = [torch.empty(3)] * (SIZE - 1)
    if RANK == 0:
        with pytest.raises(lockstep.ConfigError, match=rf"\[gather\] expected one tensor for each of {SIZE} ranks"):
            dist.gather(torch.ones(3), parts)
    else:
        with pytest.raises(lockstep.CommError, match="rank 0 calls gather with an invalid argument"):
            dist.gather(torch.ones(3))


def a_rank_refuses() -> None:
    init(60)
    if RANK == SIZE - 1:
        with pytest.raises(lockstep.ConfigError, match="BAND is not defined for torch.float32"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    else:
        with pytest.raises(lockstep.CommError, match=f"rank {SIZE - 1} calls all_reduce with an invalid"):
            dist.all_reduce(torch.ones(3))


def tags_differ() -> None:
    init()
    big = torch.ones(100_000)
    if RANK == 0:
        with pytest.raises(lockstep.CommError, match=r"send\(tag 1\).*recv\(tag 2\)"):
            dist.send(big, 1, tag=1)
    elif RANK == 1:
        with pytest.raises(lockstep.CommError, match=r"send\(tag 1\).*recv\(tag 2\)"):
            dist.recv(big, 0, tag=2)


def two_threads() -> None:
    """A thread that waits does not keep another from its turn: operations start while it sleeps."""
    init()
    received = torch.empty(100_000)
    future = dist.irecv(received, (RANK - 1) % SIZE).get_future()
    waiter = threading.Thread(target=future.wait)
    waiter.start()
    for _ in range(50):
        dist.all_reduce(torch.ones(10))
    dist.send(torch.full((100_000,), float(RANK)), (RANK + 1) % SIZE)
    waiter.join()
    assert float(received[0]) == (RANK - 1) % SIZE
    dist.barrier()


def debug_detail() -> None:
    init()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(2, 2)).sum().backward()
    value = torch.ones(3)
    dist.all_reduce(value)
    dist.barrier()
    assert float(value[0]) == SIZE
    dist.destroy_process_group()


globals()[FAULT]()
print(f"{FAULT} as expected", flush=True)
