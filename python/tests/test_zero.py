# SPDX-License-Identifier: Apache-2.0
"""ZeRO on Python modules: the losses, weights and texts are those of data parallel, on two and three processes."""

from __future__ import annotations

import pytest

from launch import run_ranks

# A language model with tied weights, a bare parameter, a buffer, and a run that returns what it has computed.
MODEL = """
import json, os, sys
import torch
from torch import nn
from torch.utils import checkpoint
import lockstep.deepspeed as deepspeed

WORDS, WIDTH = 64, 32

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(x)))

class Model(nn.Module):
    def __init__(self, recompute=None):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(()))
        self.recompute = recompute

    def forward(self, tokens):
        self.calls += 1
        x = self.embed(tokens) + self.shift
        for block in self.blocks:
            if self.recompute is None:
                x = block(x)
            elif self.recompute == "deepspeed":
                x = deepspeed.checkpointing.checkpoint(block, x)
            else:
                x = checkpoint.checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        return self.head(x)

def config(stage, optimizer="AdamW", accumulate=1, **more):
    zero = {"stage": stage}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 100
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0,
        "optimizer": {"type": optimizer, "params": {"lr": 0.003}},
        "zero_optimization": zero,
        **more,
    }

def tokens_of(step, rank):
    return torch.randint(0, WORDS, (4, 9), generator=torch.Generator().manual_seed(1000 * step + rank))

def build(recompute=None):
    torch.manual_seed(0)
    return Model(recompute)

def train(engine, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        tokens = tokens_of(step, engine.global_rank)
        loss = nn.functional.cross_entropy(engine(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses

def weights(model):
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: value.detach().float().clone() for name, value in model.state_dict().items()}

def run(stage, model=None, steps=4, **more):
    model = build() if model is None else model
    engine, *_ = deepspeed.initialize(model=model, config=config(stage, **more))
    losses = train(engine, steps * more.get("accumulate", 1))
    result = losses, weights(model)
    engine.destroy()
    return result

def largest_difference(one, other):
    assert one[1].keys() == other[1].keys()
    return max(
        max(abs(a - b) for a, b in zip(one[0], other[0])),
        max((one[1][name] - other[1][name]).abs().max().item() for name in one[1]),
    )
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_stage_trains_as_data_parallel(ranks):
    """With plain SGD on two ranks bit-exact; with AdamW and on three ranks up to the order of sums."""
    run_ranks(
        MODEL
        + """
ranks = int(os.environ["WORLD_SIZE"])
for optimizer, tolerance in [("SGD", 0 if ranks == 2 else 1e-5), ("AdamW", 1e-3)]:
    expected = run(0, optimizer=optimizer)
    assert expected[0][0] != expected[0][-1]
    for stage in (1, 2, 3):
        difference = largest_difference(run(stage, optimizer=optimizer), expected)
        assert difference <= tolerance, (optimizer, stage, difference)
""",
        ranks,
    )


def test_accumulation_adds_micro_steps_in_every_stage():
    run_ranks(
        MODEL
        + """
expected = run(0, optimizer="SGD", accumulate=3)
for stage in (1, 2, 3):
    difference = largest_difference(run(stage, optimizer="SGD", accumulate=3), expected)
    assert difference < 1e-5, (stage, difference)
""",
        2,
    )


@pytest.mark.parametrize("recompute", ["reentrant", "not reentrant", "deepspeed"])
def test_layers_may_be_computed_again_in_backward(recompute):
    run_ranks(
        MODEL
        + f"""
expected = run(0, optimizer="SGD")
for stage in (1, 2, 3):
    for accumulate in (1, 2):
        expected = run(0, optimizer="SGD", accumulate=accumulate)
        got = run(stage, build({recompute!r}), optimizer="SGD", accumulate=accumulate)
        assert largest_difference(got, expected) < 1e-5, (stage, accumulate)
assert largest_difference(run(0, build({recompute!r}), optimizer="SGD"), run(0, optimizer="SGD")) == 0
""",
        2,
    )


@pytest.mark.parametrize(
    "precision",
    [
        '{"bf16": {"enabled": True}}',
        '{"bf16": {"enabled": True}, "data_types": {"param_dtype": "bf16"}}',
        '{"fp16": {"enabled": True, "initial_scale_power": 8}}',
        '{"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}',
    ],
)
def test_16_bit_training_is_the_same_in_every_stage(precision):
    run_ranks(
        MODEL
        + f"""
more = {precision}
expected = run(0, **more)
assert expected[0][-1] < expected[0][0]
for stage in (1, 2, 3):
    difference = largest_difference(run(stage, **more), expected)
    assert difference < 1e-5, (stage, difference)
""",
        2,
    )


def test_stage_3_generates_text_without_gradients():
    run_ranks(
        MODEL
        + """
def text(engine):
    tokens = tokens_of(99, 0)[:, :3]
    with torch.no_grad():
        for _ in range(5):
            tokens = torch.cat([tokens, engine.module(tokens)[:, -1:].argmax(-1)], 1)
    return tokens

texts = []
for stage in (0, 3):
    engine, *_ = deepspeed.initialize(model=build(), config=config(stage, "SGD"))
    engine.eval()
    texts.append(text(engine))
    engine.train()
    train(engine, 2)
    texts.append(text(engine))
    with torch.inference_mode():
        assert torch.equal(engine(tokens_of(5, 0)), engine(tokens_of(5, 0)))
    with deepspeed.zero.unwrap_model_for_generation(engine) as module:
        texts.append(module(tokens_of(5, 0)).detach().clone())
    train(engine, 1, first=2)
    engine.destroy()
for i in range(3):
    assert torch.equal(texts[i], texts[i + 3]), i
""",
        2,
    )


def test_hooks_of_the_program_run_in_every_stage():
    run_ranks(
        MODEL
        + """
def hooked(stage):
    model = build()
    seen = {"forward": 0, "before": 0, "tensor": 0, "accumulated": 0, "backward": 0}
    def count(name):
        def hook(*args):
            seen[name] += 1
        return hook
    model.blocks[0].register_forward_hook(count("forward"))
    model.blocks[0].register_forward_pre_hook(count("before"))
    model.blocks[1].register_full_backward_hook(count("backward"))
    model.blocks[1].up.weight.register_post_accumulate_grad_hook(count("accumulated"))
    model.embed.weight.register_hook(lambda grad: (count("tensor")(), grad * 0.5)[1])
    result = run(stage, model, optimizer="SGD")
    return result, seen

expected, seen = hooked(0)
assert all(count >= 4 for count in seen.values()), seen
plain = run(0, optimizer="SGD")
assert largest_difference(expected, plain) > 0
for stage in (1, 2, 3):
    got, counts = hooked(stage)
    assert counts == seen, (stage, counts, seen)
    assert largest_difference(got, expected) == 0, stage
""",
        2,
    )


def test_a_model_built_in_zero_init_trains_as_one_built_in_full():
    run_ranks(
        MODEL
        + """
WIDTH = 80  # Tensors of more than 4096 elements are sharded when they are created.
expected = run(0, optimizer="SGD")
for stage in (3, 1):
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = Model()
    with deepspeed.zero.GatheredParameters([model.blocks[0].up.weight]):
        assert torch.equal(model.blocks[0].up.weight.detach(), build().blocks[0].up.weight)
    got = run(stage, model, optimizer="SGD")
    assert largest_difference(got, expected) == 0, stage
with deepspeed.zero.Init(config_dict_or_path=config(2)):
    torch.manual_seed(0)
    model = Model()
assert largest_difference(run(2, model, optimizer="SGD"), expected) == 0
model = build()
deepspeed.zero.Init(module=model)
assert largest_difference(run(3, model, optimizer="SGD"), expected) == 0
from lockstep import Accelerator, DeepSpeedPlugin
accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))
torch.manual_seed(0)
with deepspeed.zero.Init():
    model = Model()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.003))
for step in range(4):
    tokens = tokens_of(step, accelerator.process_index)
    accelerator.backward(nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    optimizer.step()
    optimizer.zero_grad()
assert largest_difference((expected[0], weights(model)), expected) == 0
with deepspeed.zero.Init(dtype=torch.bfloat16):
    assert nn.Linear(100, 100).weight.dtype == torch.bfloat16
assert nn.Linear(2, 2).weight.dtype == torch.float32
""",
        2,
    )


def test_gathered_parameters_are_full_and_may_be_changed_by_one_rank():
    run_ranks(
        MODEL
        + """
model = build()
engine, *_ = deepspeed.initialize(model=model, config=config(3, "SGD"))
weight = model.blocks[1].up.weight
with deepspeed.zero.GatheredParameters(weight):
    assert weight.data_ptr() != 0 and torch.equal(weight.detach(), build().blocks[1].up.weight)
    full = model.state_dict()["blocks.1.up.weight"].clone()
assert torch.equal(full, build().blocks[1].up.weight)
with deepspeed.zero.GatheredParameters([weight, model.shift], modifier_rank=1):
    if engine.global_rank == 1:
        weight.data.fill_(0.25)
        model.shift.data.fill_(2)
assert (weight.detach() == 0.25).all() and (model.shift.detach() == 2).all()
try:
    with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):
        raise KeyError("of the program")
except KeyError:
    pass
try:
    deepspeed.zero.GatheredParameters(weight, modifier_rank=7).__enter__()
    raise SystemExit("expected an error")
except deepspeed.DeepSpeedConfigError as error:
    assert "expected 0 to 1" in str(error), error
train(engine, 1)
assert not (weight.detach() == 0.25).all()
with deepspeed.zero.GatheredParameters(weight, modifier_rank=0, enabled=False):
    pass
""",
        2,
    )


def test_zero_through_the_accelerator_trains_as_data_parallel():
    run_ranks(
        MODEL
        + """
from lockstep import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from states import forget_accelerators

def accelerate(**plugin):
    forget_accelerators()
    accelerator = Accelerator(cpu=True, **plugin)
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.003))
    losses = []
    for step in range(4):
        tokens = tokens_of(step, accelerator.process_index)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    full = accelerator.get_state_dict(model)
    assert full.keys() == state.keys() and all(torch.equal(full[name], state[name]) for name in full)
    return losses, state

expected = accelerate()
for stage in (1, 2, 3):
    assert largest_difference(accelerate(deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage)), expected) == 0, stage
for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
    plugin = FullyShardedDataParallelPlugin(sharding_strategy=strategy)
    assert largest_difference(accelerate(fsdp_plugin=plugin), expected) == 0, strategy
""",
        2,
    )


def test_frozen_parameters_and_a_second_forward_in_one_step():
    run_ranks(
        MODEL
        + """
def frozen(stage):
    model = build()
    model.blocks[0].requires_grad_(False)
    engine, *_ = deepspeed.initialize(model=model, config=config(stage, "SGD"))
    losses = []
    for step in range(3):
        tokens = tokens_of(step, engine.global_rank)
        loss = engine(tokens).square().mean() + engine(tokens.flip(1)).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    result = losses, weights(model)
    engine.destroy()
    return result

expected = frozen(0)
for stage in (1, 2, 3):
    assert largest_difference(frozen(stage), expected) < 1e-5, stage
""",
        2,
    )
