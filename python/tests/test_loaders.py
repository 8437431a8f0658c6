# SPDX-License-Identifier: Apache-2.0
"""Prepared loaders of streams: left early, resumed, with short tails, with values that are not tensors."""

from __future__ import annotations

import textwrap

import pytest
from launch import finish_ranks, run_ranks

STREAMS = """
import contextlib
import gc
import itertools
import torch
from torch.utils.data import DataLoader, IterableDataset
from lockstep import Accelerator, DataLoaderConfiguration


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


accelerator = Accelerator(cpu=True)
"""


def streams(text: str) -> str:
    return STREAMS + textwrap.dedent(text)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dispatched_loop_may_be_left_in_any_way(ranks: int) -> None:
    program = streams("""
        loader, other = accelerator.prepare(DataLoader(Stream(24), batch_size=2), DataLoader(Stream(8), batch_size=2))
        per_round = 2 * accelerator.num_processes

        def by_break():
            for step, batch in enumerate(loader):
                if step == 1:
                    break

        def by_exception():
            with contextlib.suppress(KeyError):
                for batch in loader:
                    raise KeyError

        def by_del():
            batches = iter(loader)
            next(batches)
            del batches

        def by_garbage_collection():
            cycle = [iter(loader)]
            next(cycle[0])
            cycle.append(cycle)
            del cycle
            if accelerator.is_main_process:  # Each process collects at its own time.
                gc.collect()
            accelerator.wait_for_everyone()
            gc.collect()

        def by_zip():
            list(zip(range(1), loader))

        def by_islice():
            list(itertools.islice(loader, 2))

        def at_the_first_batch():
            next(iter(loader))

        def at_the_last_batch():
            for step, batch in enumerate(loader):
                if (step + 1) * per_round == 24:
                    break

        def within_another_loop():
            for _ in other:
                for batch in loader:
                    break

        def around_another_loop():
            for _ in loader:
                assert accelerator.gather(torch.cat(list(other))).tolist().count(7) == 1
                break

        for leave in (by_break, by_exception, by_del, by_garbage_collection, by_zip, by_islice, at_the_first_batch,
                      at_the_last_batch, within_another_loop, around_another_loop):
            leave()
            assert accelerator.reduce(torch.ones(1)).item() == accelerator.num_processes, leave
            seen = accelerator.gather(torch.cat(list(loader))).tolist()
            assert sorted(seen) == list(range(24)), (leave, seen)
    """)
    run_ranks(program, ranks)


def test_processes_that_leave_a_dispatched_loop_at_different_batches_get_an_error() -> None:
    program = streams("""
        loader = accelerator.prepare(DataLoader(Stream(24), batch_size=2))
        for step, batch in enumerate(loader):
            if step == accelerator.process_index:
                break
        for batch in loader:
            pass
    """)
    outputs = finish_ranks(program, 2)
    assert all(code != 0 for code, _ in outputs), outputs
    assert "main process at batch 0 of epoch 1" in outputs[1][1], outputs[1]
    assert "process 1 at batch 1 of epoch 0" in outputs[1][1], outputs[1]
