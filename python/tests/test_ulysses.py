# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's Ulysses: ranks that divide a sequence compute the attention of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launch import run_ranks

from lockstep import ConfigError, deepspeed
from lockstep._sequence_batches import with_shifted_labels
from lockstep.deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter
from lockstep.deepspeed.sequence.layer import DistributedAttention
from lockstep.state import PartialState

ATTENTION = """
import torch
import torch.distributed as dist
from torch.nn import functional as F

from lockstep import PartialState
from lockstep.deepspeed import comm
from lockstep.deepspeed.sequence import layer
from lockstep.deepspeed.sequence.layer import DistributedAttention, apply_rotary_pos_emb

comm.init_distributed(verbose=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
angles = torch.rand(12, 1, 1, 4, dtype=torch.float64)


def attend(q, k, v, merges=False):
    \"\"\"Causal attention of [seq, batch, heads, size].\"\"\"
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3)
    return out.flatten(2) if merges else out


def difference(group, heads, kv_heads, batch_first, merges=False, rotary=False, **options):
    shapes = [(12, 2, heads, 4)] + [(12, 2, kv_heads, 4)] * 2
    full = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    turned = [apply_rotary_pos_emb(x, angles.cos(), angles.sin()) if rotary else x for x in full[:2]]
    expected = attend(*turned, full[2], merges)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weight).sum().backward()
    parts = [x.detach().chunk(ranks)[rank] for x in full]
    parts = [x.transpose(0, 1) if batch_first else x for x in parts]
    parts = [x.clone().requires_grad_() for x in parts]
    local = lambda q, k, v: attend(q, k, v, merges)
    if batch_first:
        local = lambda q, k, v: attend(*(x.transpose(0, 1) for x in (q, k, v)), merges).transpose(0, 1)
    attention = DistributedAttention(local, group, **options)
    embedding = (angles.cos().permute(1, 0, 2, 3), angles.sin().permute(1, 0, 2, 3)) if rotary else None
    got = attention(*parts, 0 if batch_first else 1, embedding)
    own = weight.chunk(ranks)[rank]
    (got * (own.transpose(0, 1) if batch_first else own)).sum().backward()
    pairs = [(got, expected)] + [(x.grad, y.grad) for x, y in zip(parts, full)]
    back = lambda x: x.transpose(0, 1) if batch_first else x
    return max((back(x) - y.chunk(ranks)[rank]).abs().max().item() for x, y in pairs)


groups = {"torch": dist.group.WORLD, "own": PartialState().group}
for name, group in groups.items():
    for heads, kv_heads in ((4, 4), (8, 4), (3, 3), (6, 3)):
        for batch_first in (False, True):
            found = difference(group, heads, kv_heads, batch_first, merges=heads == 8, gather_idx=int(batch_first))
            assert found < 1e-12, (name, heads, kv_heads, batch_first, found)
assert difference(dist.group.WORLD, 4, 2, False, rotary=True) < 1e-12
assert difference(dist.group.WORLD, 6, 3, False, num_kv_heads=3) < 1e-12

# A control: without the messages each rank has its own parts.
layer._all_to_all = lambda group, output, input, *sizes: output.copy_(input)
assert difference(dist.group.WORLD, 4, 4, False) > 1e-3
"""


def test_ranks_that_divide_a_sequence_have_the_attention_and_gradients_of_one_process() -> None:
    run_ranks(ATTENTION, 2)


def test_what_the_attention_lacks_is_refused_by_name() -> None:
    group = PartialState(cpu=True).group
    for options, message in (
        ({"sp_stream": object()}, "got an sp_stream"),
        ({"scatter_idx": 1}, "scatter_idx is 1"),
        ({"gather_idx": 2}, "gather_idx 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            DistributedAttention(torch.nn.Identity(), group, **options)
    with pytest.raises(ConfigError, match="sequence_process_group is a NoneType"):
        DistributedAttention(torch.nn.Identity(), None)
    attention = DistributedAttention(lambda q, k, v: q, group)
    with pytest.raises(ConfigError, match="batch_dim_idx is 2"):
        attention(*[torch.ones(4, 2, 2, 4)] * 3, 2)
    with pytest.raises(ConfigError, match="3 heads, 2 of keys"):
        attention(torch.ones(4, 2, 3, 4), *[torch.ones(4, 2, 2, 4)] * 2, 1)


def test_the_tutorials_classes_refuse_what_they_cannot_divide() -> None:
    class Group:
        def size(self) -> int:
            return 1

        rank = size

    with pytest.raises(ConfigError, match="sp_rank is 0 of 1"):
        UlyssesSPDataLoaderAdapter([], 0, Group(), 1, "cpu")
    for call in (deepspeed.DeepSpeedConfig, deepspeed.zero.Init):
        with pytest.raises(ConfigError, match="got an mpu"):
            call(config={"train_batch_size": 1}, mpu=object())
    register = UlyssesSPAttentionHF.register_with_transformers
    assert register("a model", "sdpa", 1, 1) is None
    with pytest.raises(ConfigError, match="core_attn_implementation is 'flash_attention_2'"):
        register("a model", "flash_attention_2", 2, 1)
    with pytest.raises(ConfigError, match="seq_length None"):
        register("a model", "sdpa", 2, 1, seq_length_is_variable=False)
    attention = UlyssesSPAttentionHF(lambda *values: values, Group(), seq_length=4)
    heads = [torch.ones(1, 2, 6, 4)] * 3
    with pytest.raises(ConfigError, match="got an attention_mask"):
        attention(torch.nn.Identity(), *heads, torch.ones(1))
    with pytest.raises(ConfigError, match="expected seq_length, 4"):
        attention(torch.nn.Identity(), *heads, None)
    attention.seq_length = None
    with pytest.raises(ConfigError, match="got no position_ids"):
        attention(torch.nn.Identity(), *heads, None)


# The loaders and batch sizes of DeepSpeed's tutorial, on two ranks that divide sequences.
TUTORIAL = """
import torch
import torch.distributed as dist

from lockstep import ConfigError, deepspeed
from lockstep.deepspeed.runtime.sequence_parallel import parallel_state_sp
from lockstep.deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter

deepspeed.init_distributed(verbose=False)
rank = dist.get_rank()
parallel_state_sp.initialize_sequence_parallel(2)
group = parallel_state_sp.get_sequence_parallel_group()


def fails(message, body):
    try:
        body()
    except ConfigError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"expected: {message}")


def text(number, length=4):
    ids = torch.arange(length)[None] + 10 * number
    return {"input_ids": ids, "position_ids": torch.arange(length)[None], "labels": ids}


def adapter(*batches):
    return UlyssesSPDataLoaderAdapter(batches, rank, group, 2, "cpu")


# Names in another order on one rank.
own = text(rank) | {"name": f"rank {rank}"}
loader = adapter(dict(sorted(own.items(), reverse=rank == 1)))
for _ in range(2):
    parts = list(loader)
    for number, part in enumerate(parts):
        shifted = torch.nn.functional.pad(text(number)["labels"], (0, 1), value=-100)[:, 1:]
        for name, full in {**text(number), "shift_labels": shifted}.items():
            assert name == "labels" or torch.equal(part[name], full.chunk(2, 1)[rank]), (name, part[name])
        assert part["name"] == f"rank {number}" and "labels" not in part
    assert len(parts) == len(loader) == 2

# An error that one rank finds is thrown on both.
def first(batch, message):
    fails(message, lambda: next(adapter(batch if rank == 1 else text(0))))


first({"input_ids": torch.ones(1, 4)}, "with ['input_ids']; expected a dict")
first({**text(1), "position_ids": torch.tensor([[0, 1, 0, 1]])}, "position_ids of the batch are not consecutive")
first(text(1, 5), "the sequences have 5 positions")
first({**text(1), "more": torch.ones(1, 4)}, "the batch of rank 1 of the group has input_ids (a tensor), more (a tensor)")
fails("loaders of the ranks [1] of the group have fewer batches", lambda: list(adapter(*[text(0)] * (2 - rank))))
assert [len(part["input_ids"]) for part in adapter(text(0), text(1))] == [1] * 4  # A control.

# train_batch_size counts a text once, which two ranks compute.
config = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
of_mpu = deepspeed.DeepSpeedConfig(config, mpu=parallel_state_sp)
assert (of_mpu.world_size, of_mpu.gradient_accumulation_steps) == (1, 4)
plain, *_ = deepspeed.initialize(model=torch.nn.Linear(1, 1), config=config)
assert plain.get_batch_info() == (4, 1, 2)
for given in (config, of_mpu):
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(1, 1), config=given, mpu=parallel_state_sp)
    assert engine.get_batch_info() == (4, 1, 4)
    before = engine.module.weight.item()
    for step in range(4):
        assert engine.module.weight.item() == before and engine.global_steps == 0
        engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
    assert engine.module.weight.item() != before and (engine.global_steps, engine.global_samples) == (1, 4)
    engine.set_train_batch_size(3)
    assert engine.get_batch_info() == (3, 1, 3)
one = {"train_batch_size": 1, "zero_optimization": {"stage": 3}}
deepspeed.zero.Init(config=one, mpu=parallel_state_sp)
fails("batch sizes do not match", lambda: deepspeed.zero.Init(config=one))
model = deepspeed.pipe.PipelineModule([torch.nn.Linear(1, 1)], num_stages=1, loss_fn=torch.nn.MSELoss())
fails("an mpu with a PipelineModule", lambda: deepspeed.initialize(model=model, config=config, mpu=parallel_state_sp))
"""


def test_the_ranks_of_a_sequence_fail_together_and_count_its_batch_once() -> None:
    run_ranks(TUTORIAL, 2)


def test_a_mask_of_booleans_may_hide_the_end_of_a_text() -> None:
    ids = torch.arange(4)[None]
    batch = {"input_ids": ids, "position_ids": ids, "labels": torch.tensor([[0, 1, -100, -100]])}
    for kind in (torch.bool, torch.int64):
        mask = torch.tensor([[1, 1, 0, 0]]).to(kind)
        ready = with_shifted_labels({**batch, "attention_mask": mask})["attention_mask"]
        assert bool(ready.all()) and ready.dtype == kind
        with pytest.raises(ConfigError, match="hides positions that count"):
            with_shifted_labels({**batch, "labels": torch.full((1, 4), -100), "attention_mask": mask.flip(1)})


# Accelerate's documented loop: the loader divides batches, and the program averages losses over the ranks of a sequence.
LOOP = """
import os
import torch
import torch.distributed.nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lockstep import Accelerator, ConfigError, ParallelismConfig
from lockstep.deepspeed.utils import groups
from lockstep.state import AcceleratorState
from lockstep.utils import DeepSpeedPlugin, DummyOptim, DeepSpeedSequenceParallelConfig


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.places = torch.nn.Embedding(64, 8)
        self.qkv = torch.nn.Linear(8, 24)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, input_ids, position_ids, attention_mask, **unused):
        x = self.words(input_ids) + self.places(position_ids)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + attended.transpose(1, 2).flatten(2))


folder, world, halves = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"]), int(os.environ["HALVES"])
torch.manual_seed(0)
texts = torch.randint(16, (16, 12))
labels = torch.where(torch.rand(16, 12) < 0.4, -100, texts)
lengths = torch.randint(8, 13, (16,))


def collate(numbers, start=7, counts_padding=False):
    rows = torch.tensor(numbers)
    mask = (torch.arange(12) < lengths[rows, None]).long()
    shown = labels[rows] if counts_padding else labels[rows].masked_fill(mask == 0, -100)
    positions = torch.arange(start, start + 12).expand(len(rows), -1)
    return {"input_ids": texts[rows], "position_ids": positions, "labels": shown, "attention_mask": mask, "name": "x"}


def train(config, sequence=1, **options):
    AcceleratorState._reset_state()
    accelerator = Accelerator(parallelism_config=config, **options)
    torch.manual_seed(1)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    if accelerator.deepspeed_plugin is not None and accelerator.deepspeed_plugin.uses_ds_config:
        optimizer = DummyOptim(net.parameters())
    loader = DataLoader(range(16), batch_size=4 * sequence // world, collate_fn=collate)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if sequence > 1:
        group = accelerator.torch_device_mesh["sp"].get_group()
        assert groups._get_sequence_parallel_group().size() == groups._get_sequence_parallel_world_size() == 2
        assert group.rank() == groups._get_sequence_parallel_rank() == accelerator.process_index % 2
        assert groups.get_data_parallel_world_size() == world // 2
        assert groups.get_data_parallel_rank() == accelerator.process_index // 2
    for epoch in range(2):
        for batch in loader:
            scores = net(**batch)
            shifted = batch["shift_labels"] if sequence > 1 else F.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
            assert scores.shape[1] == 12 // sequence and batch["name"] == "x"
            rows = zip(scores.chunk(halves), shifted.chunk(halves))  # Of the processes with other samples.
            loss = sum(F.cross_entropy(x.flatten(0, 1), y.flatten()) for x, y in rows) / halves
            if sequence > 1:
                assert "labels" not in batch and bool(batch["attention_mask"].all())
                losses = torch.distributed.nn.functional.all_gather(loss, group=group)
                good = torch.distributed.nn.functional.all_gather((shifted != -100).sum(), group=group)
                loss = sum(losses[r] * good[r] for r in range(2) if good[r] > 0) / max(sum(good), 1)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    return accelerator, loader, state
"""

ONE_LOOP = LOOP + """
torch.save(train(None)[2], os.path.join(folder, "one.pt"))
"""

SEVERAL_LOOPS = LOOP + """
expected = torch.load(os.path.join(folder, "one.pt"))
handler = DeepSpeedSequenceParallelConfig(sp_seq_length=12, sp_seq_length_is_variable=False, sp_attn_implementation="sdpa")
file = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "gradient_clipping": 0.3,
        "optimizer": {"type": "SGD", "params": {"lr": 0.3, "momentum": 0.9}}}
for plugin in (DeepSpeedPlugin(hf_ds_config=file), DeepSpeedPlugin(zero_stage=2), None):
    config = ParallelismConfig(sp_backend="deepspeed", sp_size=2, sp_handler=handler)
    accelerator, loader, got = train(config, 2, deepspeed_plugin=plugin)
    for name, value in expected.items():
        assert (got[name] - value).abs().max() < 1e-12, (plugin, name, (got[name] - value).abs().max())


def fails(message, body):
    try:
        body()
    except ConfigError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"expected: {message}")


def one_batch(body=lambda batch: None, **options):
    torch.manual_seed(0)
    for batch in accelerator.prepare(DataLoader(range(4), batch_size=4, collate_fn=lambda rows: collate(rows, **options))):
        body(batch)


def opens_block(batch):
    with accelerator.maybe_context_parallel([batch["input_ids"]], [1]):
        pass


fails("hides positions that count", lambda: one_batch(counts_padding=True))
fails("the loader has divided this batch", lambda: one_batch(opens_block))
fails("loop over one loader within the other", lambda: list(zip(loader, loader)))
config.sp_handler.sp_seq_length = 8
fails("sp_seq_length is 8", one_batch)
fails("divide batches already", lambda: accelerator.deepspeed_ulysses_dl_adapter(loader, None))
AcceleratorState._reset_state()
lines = world // 2
divided = Accelerator(parallelism_config=ParallelismConfig(sp_size=2), deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=file))
net = Net().double()
net, optimizer, batches = divided.prepare(net, DummyOptim(net.parameters()), DataLoader(texts, batch_size=4 // (world // 2)))
fails("outside of a block", lambda: divided.backward(net(texts[:1], torch.arange(12)[None], None).sum()))
for batch in batches:
    with divided.maybe_context_parallel([batch], [1]):
        fails("has divided no attention", lambda: divided.backward(net.module.words(batch).sum()))
    break

# A batch has this process's part also after the loop, where attention would be over that only.
kept = next(iter(divided.prepare(DataLoader(range(16), batch_size=2, collate_fn=collate))))
assert kept["input_ids"].shape == (2, 6)
with torch.no_grad():
    fails("after the loop has left it", lambda: net(**kept))
    net(**collate([0, 1]))
fails("after the loop has left it", lambda: divided.maybe_context_parallel([kept["input_ids"]], [1]).__enter__())
for batch in divided.prepare(DataLoader(range(16), batch_size=2, collate_fn=collate)):
    fails("gather them before", lambda: divided.gather_for_metrics((torch.ones(2), batch["shift_labels"])))
    with divided.maybe_context_parallel() as block:
        full = divided.gather_for_metrics(block.gather(batch["shift_labels"]))
    assert torch.equal(full, F.pad(collate(range(2 * lines))["labels"], (0, 1), value=-100)[:, 1:])
    assert divided.gather_for_metrics(torch.ones(2)).shape == (2 * lines,)
    break

# Sizes that the processes do not divide: the batch of a line is one.
AcceleratorState._reset_state()
sizes = {**file, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}
odd = Accelerator(parallelism_config=ParallelismConfig(sp_size=2), deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=sizes))
net, optimizer, batches = odd.prepare(Net(), DummyOptim([]), DataLoader(range(16), batch_size=3, collate_fn=collate))
assert net.get_batch_info() == (6 * lines, 3, 2)
AcceleratorState._reset_state()
of_file = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={**file, "sequence_parallel_size": 2}))
assert of_file.parallelism_config.sp_size == 2
net, optimizer, batches = of_file.prepare(Net(), DummyOptim([]), DataLoader(range(16), batch_size=2, collate_fn=collate))
assert net.get_batch_info() == (2 * lines, 2, 1)
AcceleratorState._reset_state()
accelerator = Accelerator(parallelism_config=config)
# A batch with other keys is for maybe_context_parallel, which gets all of it.
for (batch,) in accelerator.prepare(DataLoader(torch.utils.data.TensorDataset(texts), batch_size=4)):
    assert batch.shape == (4, 12)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loop_that_accelerate_documents_trains_on_divided_batches_as_one_process(tmp_path: Any, ranks: int) -> None:
    run_ranks(ONE_LOOP, 1, FOLDER=str(tmp_path), HALVES=str(ranks // 2))
    run_ranks(SEVERAL_LOOPS, ranks, FOLDER=str(tmp_path), HALVES="1")
