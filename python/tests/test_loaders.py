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

        kept = []

        def by_an_iterator_that_is_kept():
            kept.append(iter(loader))
            next(kept[-1])

        def by_an_exception_that_is_kept():
            try:
                for batch in loader:
                    raise KeyError
            except KeyError as error:
                kept.append(error)

        for leave in (by_an_iterator_that_is_kept, by_an_exception_that_is_kept, by_break, by_exception, by_del, by_garbage_collection, by_zip, by_islice, at_the_first_batch,
                      at_the_last_batch, within_another_loop, around_another_loop):
            leave()
            assert accelerator.reduce(torch.ones(1)).item() == accelerator.num_processes, leave
            seen = accelerator.gather(torch.cat(list(loader))).tolist()
            assert sorted(seen) == list(range(24)), (leave, seen)
        try:
            for _ in loader:
                list(loader)
        except Exception as error:
            assert "a second loop over this loader began" in str(error)
        else:
            raise AssertionError
        assert len(list(loader)) == 24 // per_round
    """)
    run_ranks(program, ranks)


def test_processes_at_different_batches_or_loaders_get_an_error() -> None:
    program = streams("""
        first, second = accelerator.prepare(DataLoader(Stream(24), batch_size=2), DataLoader(Stream(24), batch_size=2))
        {loops}
    """)
    loops = {
        ("main process at batch 0 of epoch 1", "process 1 at batch 1 of epoch 0"): """
            for step, batch in enumerate(first):
                if step == accelerator.process_index:
                    break
            list(first)
        """,
        ("main process at batch 0 of epoch 0 of loader 0", "batch 0 of epoch 0 of loader 1"): """
            list(second if accelerator.process_index else first)
        """,
    }
    for expected, loop in loops.items():
        outputs = finish_ranks(program.replace("{loops}", textwrap.dedent(loop)), 2)
        assert all(code != 0 for code, _ in outputs), outputs
        assert all(text in outputs[1][1] for text in expected), outputs[1]


TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
ranks = accelerator.num_processes
model = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def loader_of(batches):
    return accelerator.prepare(DataLoader(TensorDataset(torch.ones(batches * ranks, 1)), batch_size=1))


def updates(batches):
    flags = []
    for (x, *_) in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            optimizer.step()
            optimizer.zero_grad()
        flags.append(int(accelerator.sync_gradients))
    return flags


def iterator_at_its_last_batch(loader, grad=True):
    with torch.set_grad_enabled(grad):
        iterator = iter(loader)
        for _ in range(len(loader)):
            next(iterator)
    return iterator
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_unfinished_evaluation_ends_no_accumulation_group(ranks: int) -> None:
    program = TRAINING + textwrap.dedent("""
        train, evaluation, single = loader_of(8), loader_of(3), loader_of(1)
        plain = [0, 0, 0, 1] * 2
        assert updates(train) == plain

        unfinished = iterator_at_its_last_batch(evaluation)
        assert updates(train) == plain
        del unfinished
        unfinished = iterator_at_its_last_batch(single, grad=False)
        assert updates(train) == plain
        del unfinished

        def with_evaluation():
            for step, batch in enumerate(train):
                if step == 1:
                    unfinished = iterator_at_its_last_batch(evaluation)
                assert accelerator.gradient_state.active_dataloader is (evaluation if step == 1 else train)
                yield batch
        assert updates(with_evaluation()) == plain

        def with_a_finished_evaluation():
            for batch in train:
                list(evaluation)
                yield batch
        train = loader_of(6)
        assert updates(with_a_finished_evaluation()) == [0, 0, 0, 1, 0, 1]
        next(iter(single))
        assert updates(loader_of(8)) == plain

        def read_without_gradients():
            batches = iter(train)
            for _ in range(len(train)):
                with torch.no_grad():
                    batch = next(batches)
                yield batch
        assert updates(read_without_gradients()) == [0, 0, 0, 1, 0, 1]

        def with_a_batch_of_the_evaluation():
            batches = iter(evaluation)
            for step, batch in enumerate(loader_of(8)):
                if step < 3:
                    with torch.no_grad():
                        next(batches)
                yield batch
        assert updates(with_a_batch_of_the_evaluation()) == plain
    """)
    run_ranks(program, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_of_two_loaders_that_ends_ends_the_accumulation_group(ranks: int) -> None:
    program = TRAINING + textwrap.dedent("""
        short, long = loader_of(6), loader_of(9)
        assert updates((a[0], b[0]) for a, b in zip(short, long)) == [0, 0, 0, 1, 0, 1]
        assert updates((a[0], b[0]) for a, b in zip(long, short)) == [0, 0, 0, 1, 0, 1]

        def two_steps_for_each_batch():
            for batch in short:
                yield batch
                yield batch
        assert updates(two_steps_for_each_batch()) == [0, 0, 0, 1] * 2 + [0, 0, 1, 1]
    """)
    run_ranks(program, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_process_gets_an_empty_batch_of_a_short_stream(ranks: int) -> None:
    program = streams("""
        for dispatches in (True, False):
            accelerator = Accelerator(
                cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatches)
            )
            for size in (1, 2, 3, 4, 5, 7):
                for batch_size in (1, 2):
                    loader = accelerator.prepare(DataLoader(Stream(size), batch_size=batch_size))
                    batches = list(loader)
                    sizes = [len(batch) for batch in batches]
                    assert min(sizes) > 0, (dispatches, size, batch_size, sizes)
                    seen = accelerator.gather(torch.cat(batches)).tolist()
                    assert set(seen) == set(range(size)), (dispatches, size, batch_size, seen)
                    if dispatches:
                        trimmed = [accelerator.gather_for_metrics(batch) for batch in loader]
                        assert torch.cat(trimmed).tolist() == list(range(size)), (size, batch_size, trimmed)
    """)
    run_ranks(program, ranks)


OWN_SHARDS = """
from lockstep.logging import get_logger


class OwnShard(Stream):
    def __iter__(self):
        rank, ranks = accelerator.process_index, accelerator.num_processes
        return iter(range(rank, self.size, ranks))


class Noisy(Stream):  # The order is random, and equal on all processes.
    def __iter__(self):
        return iter(torch.randperm(self.size).tolist())


class OnMain(Stream):
    def __iter__(self):
        assert accelerator.is_main_process
        return super().__iter__()


def read(dataset, dispatches, **options):
    config = DataLoaderConfiguration(dispatch_batches=dispatches)
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(dataset, batch_size=2, **options))
    return [list(loader) for _ in range(2)]
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stream_that_each_process_has_sharded_is_named(ranks: int) -> None:
    program = streams(OWN_SHARDS) + textwrap.dedent("""
        import sys
        import warnings
        for number, (dataset, dispatches, options) in enumerate([
            (OwnShard(24), None, {}),
            (OwnShard(24), False, {}),
            (OwnShard(24), None, {"num_workers": 1}),
            (OwnShard(24), False, {"num_workers": 1}),
            (Stream(24), None, {}),
            (Stream(24), False, {"num_workers": 1}),
            (Noisy(24), None, {}),
            (Noisy(24), False, {}),
            (OnMain(24), None, {}),
            (OwnShard(24), True, {}),
        ]):
            print("case", number, file=sys.stderr, flush=True)
            read(dataset, dispatches, **options)
    """)
    outputs = run_ranks(program, ranks)
    cases = outputs[0].split("case ")[1:]
    named = ["begins with another sample" in case for case in cases]
    assert named == [ranks > 1] * 4 + [False] * 6, outputs
    assert all(case.count("begins with another sample") <= 1 for case in cases), "once, though there are two passes"
    assert ranks == 1 or "dispatch_batches=True" in cases[0] and "dispatch_batches=True" not in cases[1]
    assert all("begins with" not in output for output in outputs[1:])


@pytest.mark.parametrize("ranks", [1, 2])
def test_gather_for_metrics_drops_repeated_samples_of_every_form(ranks: int) -> None:
    program = textwrap.dedent("""
        import collections
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from lockstep import Accelerator

        accelerator = Accelerator(cpu=True)
        Pair = collections.namedtuple("Pair", "first second")

        def loader_of(size, batch_size=2):
            return accelerator.prepare(DataLoader(TensorDataset(torch.arange(size)), batch_size=batch_size))

        # A pass with one batch, whose iterator is gone.
        (only,) = next(iter(loader_of(3, batch_size=4)))
        assert accelerator.gather_for_metrics(only).tolist() == [0, 1, 2]
        assert sorted(accelerator.gather_for_metrics([str(x) for x in only.tolist()])) == ["0", "1", "2"]
        train, short = loader_of(8), loader_of(3, batch_size=4)
        for (batch,) in train:
            (other,) = next(iter(short))
            assert accelerator.gather_for_metrics(other).tolist() == [0, 1, 2]
        for (batch,) in train:
            list(short)
            assert accelerator.gather_for_metrics(batch).numel() == 2 * accelerator.num_processes

        def texts(batch, prefix):
            return [prefix + str(value) for value in batch.tolist()]

        forms = {
            "list": lambda a, b, x: a,
            "tuple of lists": lambda a, b, x: (a, b),
            "three lists": lambda a, b, x: [a, b, a],
            "dict": lambda a, b, x: {"a": a, "b": b, "x": x, "flag": True},
            "named tuple": lambda a, b, x: Pair(a, b),
            "zipped": lambda a, b, x: tuple(zip(a, b)),
            "ragged tensors": lambda a, b, x: [torch.ones(2)] * len(a),
        }
        for size in (3, 5):
            for name, form in forms.items():
                count = collections.Counter()
                for (batch,) in loader_of(size):
                    given = form(texts(batch, "a"), texts(batch, "b"), batch)
                    got = accelerator.gather_for_metrics(given, use_gather_object=True)
                    if name == "ragged tensors":
                        assert all(len(one) == 2 for one in got)
                        count["a"] += len(got)
                    for text in str(got).replace("'", " ").split():
                        count[text] += text[0] in "ab" and text[1:].isdigit()
                if name == "ragged tensors":
                    assert count["a"] == size, (size, name, count)
                    continue
                expected = 2 if name == "three lists" else 1
                assert all(count[f"a{index}"] == expected for index in range(size)), (size, name, count)
    """)
    run_ranks(program, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_have_the_mapping_type_of_the_program(ranks: int) -> None:
    program = textwrap.dedent("""
        import collections
        import torch
        from torch.utils.data import DataLoader
        from lockstep import Accelerator, DataLoaderConfiguration, skip_first_batches
        from lockstep.utils import concatenate, send_to_device, slice_tensors

        def collate(samples):
            batch = collections.defaultdict(list)
            batch["x"] = torch.stack(samples)
            return batch

        class Own(dict):
            def __init__(self, first, second):
                super().__init__(x=first)

        for dispatches in (False, True):
            config = DataLoaderConfiguration(dispatch_batches=dispatches)
            accelerator = Accelerator(cpu=True, dataloader_config=config)
            for batch in accelerator.prepare(DataLoader(torch.arange(8), batch_size=2, collate_fn=collate)):
                assert batch["x"].shape == (2,)
                gathered = accelerator.gather_for_metrics(batch)
                assert gathered["x"].numel() == 2 * accelerator.num_processes
                if not dispatches or accelerator.is_main_process:
                    assert type(batch) is type(gathered) is collections.defaultdict and gathered["new"] == []
        own = slice_tensors(Own(torch.arange(3), None), slice(0, 2))
        assert type(own) is Own and own["x"].tolist() == [0, 1]

        plain = DataLoader(torch.arange(8), batch_size=2)
        assert [len(skip_first_batches(plain, count)) for count in (0, 3, 4, 9)] == [4, 1, 0, 0]
        assert list(skip_first_batches(plain, 9)) == []
        try:
            skip_first_batches(plain, -1)
        except Exception as error:
            assert "num_batches is -1; expected at least 0" in str(error)
        else:
            raise AssertionError
    """)
    run_ranks(program, ranks)


TEXTS = """
import collections
Pair = collections.namedtuple("Pair", "text number")


class Samples(Stream):
    def __init__(self, size, make):
        super().__init__(size)
        self.make = make

    def __iter__(self):
        return (self.make(index) for index in range(self.size))


def dispatched(size, make=int, collate_fn=None, batch_size=2):
    return accelerator.prepare(DataLoader(Samples(size, make), batch_size=batch_size, collate_fn=collate_fn))


def everything(batches):
    from lockstep.utils import gather_object
    return gather_object([batch for batch in batches])
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_dispatched_batch_may_have_text_and_flags_beside_tensors(ranks: int) -> None:
    program = streams(TEXTS) + textwrap.dedent("""
        for size in (12, 13, 1):
            texts, numbers = [], []
            for batch in dispatched(size, lambda i: {"x": torch.tensor([i, i]), "text": f"t{i}", "pair": (i, f"p{i}")}):
                assert batch["text"] == [f"t{i}" for i in batch["x"][:, 0].tolist()], batch
                assert list(batch["pair"][1]) == [f"p{i}" for i in batch["pair"][0].tolist()], batch
                texts += accelerator.gather_for_metrics(batch["text"])
                numbers += accelerator.gather_for_metrics(batch["x"])[:, 0].tolist()
            assert sorted(texts) == sorted(f"t{i}" for i in range(size)) and numbers == list(range(size))

        for batch in dispatched(12, lambda i: Pair(f"t{i}", torch.tensor(i))):
            assert type(batch).__name__ == "Pair" and list(batch.text) == [f"t{i}" for i in batch.number.tolist()]
        for batch in dispatched(12, lambda i: f"t{i}"):  # No tensor at all.
            assert len(batch) == 2 and batch[0].startswith("t")
        tokens = dispatched(12, int, lambda samples: {"x": torch.tensor(samples), "t": [["a", str(i)] for i in samples]})
        for batch in tokens:
            assert batch["t"] == [["a", str(i)] for i in batch["x"].tolist()], batch

        def with_flags(samples):
            first = samples[0]
            return {"x": torch.tensor(samples), "flag": True, "none": None, "name": "train", "begins": first,
                    "scalar": torch.tensor(0.5)}
        for batch in dispatched(12, int, with_flags):
            assert batch["flag"] is True and batch["none"] is None and batch["name"] == "train", batch
            assert batch["begins"] == batch["x"][0] and batch["scalar"] == 0.5, batch
    """)
    run_ranks(program, ranks)


def test_a_flag_that_differs_within_a_share_is_named() -> None:
    program = streams(TEXTS) + textwrap.dedent("""
        loader = dispatched(14, int, lambda samples: {"x": torch.tensor(samples), "begins": samples[0]}, batch_size=4)
        for batch in loader:
            assert batch["begins"] == batch["x"][0]
    """)
    for code, output in finish_ranks(program, 2):
        assert code != 0 and "batch['begins'] differs between batches" in output, output
