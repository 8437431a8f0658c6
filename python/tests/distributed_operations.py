# SPDX-License-Identifier: Apache-2.0
"""One rank of test_distributed.py: every collective of c10d with generated arguments, over Lockstep and over Gloo.

Prints the number of compared results, and the connection.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import lockstep  # noqa: F401  # Registers the backend.

CASES = 400
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
REDUCIBLE = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
MOVABLE = [*REDUCIBLE]
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3), (40000,), (257, 129)]

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GLOO = dist.new_group(backend="gloo")
OURS = dist.new_group(backend="lockstep")
common = random.Random(1)  # Equal on all ranks.


def tensor_of(shape: tuple[int, ...], dtype: torch.dtype, rank: int = RANK, strided: bool = False) -> torch.Tensor:
    """Returns a rank's values. A strided tensor is not contiguous, if it has two dimensions or more."""
    generator = torch.Generator().manual_seed(common.randrange(1 << 30) + 7919 * rank)
    if strided and len(shape) > 1:
        shape = shape[::-1]
    if dtype == torch.bool:
        tensor = torch.randint(0, 2, shape, generator=generator) > 0
    elif dtype.is_floating_point or dtype.is_complex:
        tensor = torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64, generator=generator)
        tensor = tensor.to(dtype)
    else:
        tensor = torch.randint(1, 5, shape, generator=generator).to(dtype)
    return tensor.permute(*reversed(range(tensor.dim()))) if strided and len(shape) > 1 else tensor


def same(ours: torch.Tensor, theirs: torch.Tensor, exact: bool, what: str) -> None:
    if exact or not (theirs.dtype.is_floating_point or theirs.dtype.is_complex):
        assert torch.equal(ours, theirs), f"{what}: {ours} instead of {theirs}"
    else:  # Three ranks add in another order, and Gloo rounds 16-bit sums at every addition.
        tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}.get(theirs.dtype, 1e-6)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def compare(what: str, call: Callable[[Any], list[torch.Tensor]], exact: bool) -> None:
    """Calls an operation with equal arguments over both groups."""
    state = common.getstate()
    try:
        theirs = call(GLOO)
    except RuntimeError as error:
        assert "Invalid scalar type" in str(error), error
        return  # Gloo moves no such values; own_values has them.
    common.setstate(state)
    ours = call(OURS)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other, exact, what)


def finished(work: Any, group: Any) -> None:
    """Waits for an operation as programs do. Gloo has no futures of some."""
    if work is not None:
        if common.random() < 0.5 or group is GLOO:
            work.wait()
        else:
            work.get_future().wait()


def ops_of(dtype: torch.dtype) -> list[Any]:
    if dtype.is_complex:
        return [dist.ReduceOp.SUM]
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    return ops if dtype.is_floating_point else [*ops, dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]


def all_reduce(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    op = common.choice(ops_of(dtype))

    def call(group: Any) -> list[torch.Tensor]:
        tensor = tensor_of(shape, dtype)
        finished(dist.all_reduce(tensor, op, group=group, async_op=is_async), group)
        return [tensor]

    return call


def reduce(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    op, root = common.choice(ops_of(dtype)), common.randrange(SIZE)

    def call(group: Any) -> list[torch.Tensor]:
        tensor = tensor_of(shape, dtype)
        finished(dist.reduce(tensor, root, op, group=group, async_op=is_async), group)
        return [tensor] if RANK == root else []

    return call


def reduce_scatter(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    op = dist.ReduceOp.SUM

    def call(group: Any) -> list[torch.Tensor]:
        parts = [tensor_of(shape, dtype) for _ in range(SIZE)]
        output = torch.empty(shape, dtype=dtype)
        finished(dist.reduce_scatter(output, parts, op, group=group, async_op=is_async), group)
        return [output]

    return call


def reduce_scatter_tensor(
    dtype: torch.dtype, shape: tuple[int, ...], is_async: bool
) -> Callable[[Any], list[torch.Tensor]]:
    shape = shape or (1,)

    def call(group: Any) -> list[torch.Tensor]:
        output = torch.empty(shape, dtype=dtype)
        source = tensor_of((SIZE * shape[0], *shape[1:]), dtype)
        finished(dist.reduce_scatter_tensor(output, source, group=group, async_op=is_async), group)
        return [output]

    return call


def broadcast(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    root = common.randrange(SIZE)

    def call(group: Any) -> list[torch.Tensor]:
        tensor = tensor_of(shape, dtype)
        finished(dist.broadcast(tensor, root, group=group, async_op=is_async), group)
        return [tensor]

    return call


def all_gather(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    joined = common.random() < 0.5

    def call(group: Any) -> list[torch.Tensor]:
        whole = torch.empty((SIZE, *shape), dtype=dtype)
        outputs = list(whole) if joined else [torch.empty(shape, dtype=dtype) for _ in range(SIZE)]
        finished(dist.all_gather(outputs, tensor_of(shape, dtype), group=group, async_op=is_async), group)
        return outputs

    return call


def all_gather_into_tensor(
    dtype: torch.dtype, shape: tuple[int, ...], is_async: bool
) -> Callable[[Any], list[torch.Tensor]]:
    shape = shape or (1,)

    def call(group: Any) -> list[torch.Tensor]:
        output = torch.empty((SIZE * shape[0], *shape[1:]), dtype=dtype)
        finished(dist.all_gather_into_tensor(output, tensor_of(shape, dtype), group=group, async_op=is_async), group)
        return [output]

    return call


def gather(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    root = common.randrange(SIZE)

    def call(group: Any) -> list[torch.Tensor]:
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(SIZE)] if RANK == root else None
        finished(dist.gather(tensor_of(shape, dtype), outputs, root, group=group, async_op=is_async), group)
        return outputs or []

    return call


def scatter(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    root = common.randrange(SIZE)

    def call(group: Any) -> list[torch.Tensor]:
        parts = [tensor_of(shape, dtype) for _ in range(SIZE)]
        output = torch.empty(shape, dtype=dtype)
        finished(dist.scatter(output, parts if RANK == root else None, root, group=group, async_op=is_async), group)
        return [output]

    return call


def all_to_all_single(
    dtype: torch.dtype, shape: tuple[int, ...], is_async: bool
) -> Callable[[Any], list[torch.Tensor]]:
    row = shape[1:]
    sizes = [[common.randrange(5) for _ in range(SIZE)] for _ in range(SIZE)]  # sizes[from][to]
    even = common.random() < 0.5

    def call(group: Any) -> list[torch.Tensor]:
        if even:
            source = tensor_of((SIZE * 2, *row), dtype)
            output = torch.empty_like(source)
            finished(dist.all_to_all_single(output, source, group=group, async_op=is_async), group)
            return [output]
        sends, receives = sizes[RANK], [each[RANK] for each in sizes]
        source = tensor_of((sum(sends), *row), dtype)
        output = torch.empty((sum(receives), *row), dtype=dtype)
        finished(dist.all_to_all_single(output, source, receives, sends, group=group, async_op=is_async), group)
        return [output]

    return call


def barrier(dtype: torch.dtype, shape: tuple[int, ...], is_async: bool) -> Callable[[Any], list[torch.Tensor]]:
    def call(group: Any) -> list[torch.Tensor]:
        finished(dist.barrier(group, async_op=is_async), group)
        return []

    return call


OPERATIONS = [
    (all_reduce, REDUCIBLE),
    (all_reduce, REDUCIBLE),
    (reduce, REDUCIBLE),
    (reduce_scatter, [*FLOATS, *INTEGERS]),
    (reduce_scatter_tensor, [*FLOATS, *INTEGERS]),
    (broadcast, MOVABLE),
    (all_gather, MOVABLE),
    (all_gather_into_tensor, MOVABLE),
    (gather, MOVABLE),
    (scatter, MOVABLE),
    (all_to_all_single, MOVABLE),
    (barrier, [torch.float32]),
]


def compare_generated() -> int:
    for _ in range(CASES):
        operation, dtypes = common.choice(OPERATIONS)
        dtype, shape = common.choice(dtypes), common.choice(SHAPES)
        is_async = common.random() < 0.5
        exact = SIZE == 2 or "reduce" not in operation.__name__
        what = f"{operation.__name__} of {dtype}{shape}, async {is_async}"
        compare(what, operation(dtype, shape, is_async), exact and dtype not in (torch.float16, torch.bfloat16))
    return CASES


def own_values() -> int:
    """Compares operations that Gloo lacks with values that torch computes of all ranks' tensors."""
    count = 0
    for dtype in [torch.int16, torch.float8_e4m3fn, *FLOATS, torch.complex64, torch.bool, *INTEGERS]:
        for shape in [(5, 3), (0,), (40000,)]:
            all_ranks = [tensor_of(shape, torch.float32, rank).to(dtype) for rank in range(SIZE)]
            outputs = [torch.empty(shape, dtype=dtype).t() for _ in range(SIZE)] if len(shape) > 1 else None
            if outputs:  # Tensors that are not contiguous, on both sides.
                finished(dist.all_gather(outputs, all_ranks[RANK].t(), group=OURS, async_op=True), OURS)
                for output, expected in zip(outputs, all_ranks, strict=True):
                    assert torch.equal(output.float(), expected.t().float())
            if dtype.is_floating_point or dtype.is_complex:
                for op in (dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM(0.25)):
                    if dtype.is_complex and op != dist.ReduceOp.AVG:
                        continue
                    mean = all_ranks[RANK].clone()
                    finished(dist.all_reduce(mean, op, group=OURS, async_op=True), OURS)
                    wide = [each.to(torch.complex128 if dtype.is_complex else torch.float64) for each in all_ranks]
                    expected = sum(wide) * (1 / SIZE if op == dist.ReduceOp.AVG else 0.25)
                    torch.testing.assert_close(mean.to(expected.dtype), expected, rtol=7e-2, atol=1e-1)
            total = all_ranks[RANK].clone()
            dist.all_reduce(total, group=OURS)
            assert total.shape == all_ranks[0].shape
            count += 1
    # Integers' average is truncated.
    whole = torch.tensor([5 * RANK, -5 * RANK])
    dist.all_reduce(whole, dist.ReduceOp.AVG, group=OURS)
    average = int(sum(5 * rank for rank in range(SIZE)) / SIZE)
    assert whole.tolist() == [average, -average]
    # A view with a stride is reduced in place, and the rest of its memory stays.
    memory = torch.arange(12.0).view(3, 4) + RANK
    dist.all_reduce(memory[:, 1], group=OURS)
    expected = torch.arange(12.0).view(3, 4) + RANK
    expected[:, 1] = sum((torch.arange(12.0).view(3, 4) + rank)[:, 1] for rank in range(SIZE))
    assert torch.equal(memory, expected)
    # A lazy conjugate; rank 0 is the root.
    conjugate = (torch.tensor([1 + 2j, 3 - 1j]) + RANK).conj()
    OURS.broadcast([conjugate]).wait()  # dist.broadcast refuses it.
    assert torch.equal(conjugate, torch.tensor([1 - 2j, 3 + 1j]))
    return count + 2


def sparse_and_coalesced() -> int:
    indices = torch.tensor([[RANK, 2, 5]])
    both = []
    for group in (GLOO, OURS):
        tensor = torch.sparse_coo_tensor(indices, torch.tensor([[1.0], [2.0], [3.0 + RANK]]), (6 + SIZE, 1))
        dist.all_reduce(tensor, group=group)
        both.append(tensor.to_dense())
    assert torch.equal(*both)
    both = []
    for group in (GLOO, OURS):
        tensors = [torch.full((3,), float(RANK + index)) for index in range(4)]
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        manager.wait()
        both.append(torch.stack(tensors))
    assert torch.equal(*both)
    tensors = [torch.full((3,), float(RANK + index)) for index in range(4)]
    dist.all_reduce_coalesced(tensors, group=OURS)
    assert torch.equal(torch.stack(tensors), both[0])
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(RANK)), torch.full((3,), float(RANK))], group=OURS)
    assert all(float(tensor.mean()) == rank for rank, each in enumerate(lists) for tensor in each)
    outputs = [torch.empty(2) for _ in range(SIZE)]
    dist.all_to_all(outputs, [torch.full((2,), float(10 * RANK + to)) for to in range(SIZE)], group=OURS)
    assert [float(output[0]) for output in outputs] == [10 * rank + RANK for rank in range(SIZE)]
    return 5


def objects() -> int:
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * (10**RANK)}, group=OURS)
    assert [each["rank"] for each in gathered] == list(range(SIZE))
    broadcasted = [RANK, "root"] if RANK == SIZE - 1 else [None, None]
    dist.broadcast_object_list(broadcasted, SIZE - 1, group=OURS)
    assert broadcasted == [SIZE - 1, "root"]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [{"for": rank} for rank in range(SIZE)] if RANK == 0 else None, 0, group=OURS)
    assert scattered == [{"for": RANK}]
    collected: list[Any] | None = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, collected, 0, group=OURS)
    assert collected is None or collected == list(range(SIZE))
    if RANK == 0:
        dist.send_object_list([1, "two"], 1, group=OURS)
    elif RANK == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, 0, group=OURS)
        assert received == [1, "two"]
    return 5


count = compare_generated() + own_values() + sparse_and_coalesced() + objects()
print(f"compared {count} over {OURS._core.transport_name}")
dist.destroy_process_group()
