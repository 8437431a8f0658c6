# SPDX-License-Identifier: Apache-2.0
"""deepspeed.pipe.PipelineModule: pipelines on two and four processes train as plain torch does in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launch import run_ranks
from lockstep import Accelerator, ConfigError, ParallelismConfig, deepspeed
from lockstep.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from lockstep.deepspeed.runtime.pipe import PipeDataParallelTopology
from lockstep.utils import MegatronLMPlugin

# Two embeddings of 11 words and 8 numbers, tied; between the layers go a hidden state and a mask.
MODEL = """
import os
import torch
from torch.nn.functional import cross_entropy, linear
from lockstep import Accelerator, ParallelismConfig, deepspeed
from lockstep.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from lockstep.state import AcceleratorState

folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])
torch.set_default_dtype(torch.float64)
LEARNING_RATE, UPDATES, MICRO_BATCHES = 0.02, 4, 4


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, given):
        hidden, mask = given
        self.seen += self.training
        return hidden + self.dropout(self.down(self.up(self.norm(hidden)).relu())) * mask, mask


def add_mask(given):
    hidden, lengths = given
    return hidden, (torch.arange(hidden.shape[1]) < lengths[:, None])[..., None]


def embed(words, given):
    tokens, lengths = given
    return words(tokens), lengths


def scores(words, given):
    return linear(given[0], words.weight)


def loss_of(output, labels):
    return cross_entropy(output.flatten(0, 1), labels.flatten())


def layers(dropout=0.0):
    torch.manual_seed(0)
    return [TiedLayerSpec("words", torch.nn.Embedding, 11, 8, forward_fn=embed), add_mask,
            *[LayerSpec(Block, dropout) for _ in range(4)],
            TiedLayerSpec("words", torch.nn.Embedding, 11, 8, forward_fn=scores)]


def micro_batch(number):  # The length of the text changes from one to the next.
    draw = torch.Generator().manual_seed(number)
    tokens = torch.randint(11, (2, 5 + number % 3), generator=draw)
    return (tokens, torch.tensor([4, 5])), tokens.roll(1, 1)


class OwnAdamW(torch.optim.AdamW):
    pass


def train(stages, dropout=0.0, save=None, load=None, updates=UPDATES, evaluates=True, zero=0, own_rate=None, **options):
    model = PipelineModule(layers(dropout), num_stages=stages, loss_fn=loss_of, **options)
    data = world // stages
    settings = {"lr": LEARNING_RATE, "eps": 1e-4, "weight_decay": 0.1}
    own = None if own_rate is None else OwnAdamW(model.parameters(), **settings | {"lr": own_rate})
    engine, *_ = deepspeed.initialize(model=model, optimizer=own, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": MICRO_BATCHES // data,
        "gradient_clipping": 0.5, "zero_optimization": {"stage": zero}}
        | ({} if own else {"optimizer": {"type": "AdamW", "params": settings}}))
    if load is not None:
        engine.load_checkpoint(load)
    losses = []
    for update in range(engine.global_steps, updates):
        own = MICRO_BATCHES // data
        first = MICRO_BATCHES * update + engine.dp_rank * own
        losses.append(engine.train_batch(iter([micro_batch(first + i) for i in range(own)])).item())
    if save is not None:
        engine.save_checkpoint(save)
    if evaluates:
        own = [micro_batch(100 + i) for i in range(engine.dp_rank * MICRO_BATCHES // data, (engine.dp_rank + 1) * MICRO_BATCHES // data)]
        losses.append(engine.eval_batch(iter(own)).item())
    assert (engine.global_steps, engine.global_samples, engine.micro_steps) == (updates, updates * 8, updates * MICRO_BATCHES // data)
    assert engine.train_batch_size() == 8
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    engine.destroy()
    return losses, state
"""

ONE = MODEL + """
class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, given):
        state = add_mask(embed(self.words, given))
        for block in self.blocks:
            state = block(state)
        return scores(self.words, state)


model = Whole()
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=1e-4, weight_decay=0.1)
losses = []
for update in range(UPDATES):
    parts = [loss_of(model(x), y) for x, y in (micro_batch(MICRO_BATCHES * update + i) for i in range(MICRO_BATCHES))]
    loss = sum(parts) / MICRO_BATCHES
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    losses.append(sum(loss_of(model(x), y) for x, y in (micro_batch(100 + i) for i in range(MICRO_BATCHES))).item() / MICRO_BATCHES)
state = {"tied_modules.words.weight": model.words.weight.detach()}
for i, block in enumerate(model.blocks):
    state.update({f"{i + 2}.{name}": value for name, value in block.state_dict().items()})
torch.save((losses, state), f"{folder}/plain.pt")
torch.save(train(1, dropout=0.3, seed_layers=True), f"{folder}/dropout.pt")
same = train(1)
assert all(abs(a - b) < 1e-12 for a, b in zip(same[0], losses)), (same[0], losses)
assert set(same[1]) == set(state), sorted(same[1])
train(1, save=f"{folder}/one", updates=2, evaluates=False)
"""

CHECK = MODEL + """
def check(got, name="plain", complete=False):
    (losses, state), (expected, full) = got, torch.load(f"{folder}/{name}.pt")
    expected = expected[-len(losses):]
    assert len(losses) and all(abs(a - b) < 1e-12 for a, b in zip(losses, expected)), (name, losses, expected)
    assert set(state) == set(full) if complete else set(state) < set(full), sorted(state)
    for key, value in state.items():
        # A block counts its forwards: those of its own micro-batches.
        if not key.endswith("seen"):
            assert (value - full[key]).abs().max() < 1e-12, (name, key, (value - full[key]).abs().max())
"""

TWO = CHECK + """
check(train(2))
check(train(2, zero=1))
check(train(2, partition_method="type:block", activation_checkpoint_interval=1))
check(train(2, partition_method="uniform", schedule="gpipe"))
check(train(2, chunks_per_stage=2))
check(train(2, schedule="zero-bubble"))
check(train(2, dropout=0.3, seed_layers=True), "dropout")
saved = f"{folder}/two"
train(2, save=saved, updates=2, evaluates=False)
check(train(2, load=saved))
check(train(2, load=f"{folder}/one"))
check(train(2, load=saved, zero=1, chunks_per_stage=2))
check(train(2, own_rate=LEARNING_RATE))
try:
    train(2, own_rate=LEARNING_RATE * (1 + int(os.environ["RANK"])))
except Exception as error:
    assert "[prepare] the settings of optimizer 0 must be equal on all ranks" in str(error), error
else:
    raise AssertionError("no error for rates that differ")
"""

FOUR = CHECK + """
for zero in (0, 1, 2):
    check(train(2, zero=zero))
check(train(2, own_rate=LEARNING_RATE))
check(train(4))
"""

BACK = CHECK + """
check(train(1, load=f"{folder}/two"), complete=True)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_pipeline_trains_as_plain_torch(tmp_path: Any, ranks: int) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(TWO if ranks == 2 else FOUR, ranks, FOLDER=str(tmp_path))
    if ranks == 2:
        run_ranks(BACK, 1, FOLDER=str(tmp_path))


ACCELERATOR = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator, ParallelismConfig, deepspeed
from lockstep.deepspeed.pipe import PipelineModule
from lockstep.state import AcceleratorState
from lockstep.utils import MegatronLMPlugin

folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
inputs, targets = torch.randn(48, 6).double(), torch.randn(48, 3).double()


class Last(torch.nn.Module):  # Shares the first layer's weight, and has a bias.
    def __init__(self, first):
        super().__init__()
        self.weight, self.bias = first.weight, torch.nn.Parameter(torch.zeros(6))
        self.out = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x @ self.weight + self.bias)


def layers():
    torch.manual_seed(1)
    first = torch.nn.Linear(6, 8)
    made = [first, torch.tanh, torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8, affine=False), torch.nn.Linear(8, 8), Last(first)]
    return [layer.double() if isinstance(layer, torch.nn.Module) else layer for layer in made]


def train(save=None, load=None, zero=None, megatron=False, config=None, precision="no", **options):
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision=precision, parallelism_config=config, gradient_accumulation_steps=2, zero=zero, megatron_lm_plugin=(
        MegatronLMPlugin(pp_degree=2, num_micro_batches=1, num_layers_per_virtual_pipeline_stage=1, gradient_clipping=0.3)
        if megatron else None))
    model = PipelineModule(layers(), loss_fn=torch.nn.functional.mse_loss, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8 * model.num_stages // world)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if load is not None:
        accelerator.load_state(load)
    losses = []
    for _ in range(1 if save is not None or load is not None else 2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = model(x, y)
                accelerator.backward(loss)
                losses.append(accelerator.reduce(loss.detach(), "mean").item())
                if not megatron:
                    accelerator.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(save)
        accelerator.save_model(model, save + "_model")
    state = {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}
    accelerator.free_memory()
    return losses, state


def check(got, name="one"):
    losses, state = got
    expected, full = torch.load(f"{folder}/{name}.pt")
    expected = expected[-len(losses):]
    assert all(abs(a - b) < 1e-12 for a, b in zip(losses, expected)), (losses, expected)
    assert set(state) == set(full), (sorted(state), sorted(full))
    for key, value in state.items():
        assert (value - full[key]).abs().max() < 1e-12, (key, (value - full[key]).abs().max())
"""

# One micro-batch, since the normalisation of a batch depends on its size.
ONE_ACCELERATOR = ACCELERATOR + """
torch.save(train(num_stages=1), f"{folder}/one.pt")
torch.save(train(num_stages=1, precision="bf16"), f"{folder}/bf16.pt")
AcceleratorState._reset_state()
accelerator = Accelerator(gradient_accumulation_steps=2)
plain = torch.nn.Sequential(*[layer if isinstance(layer, torch.nn.Module) else torch.nn.Tanh() for layer in layers()])
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
plain, optimizer, loader = accelerator.prepare(plain, optimizer, loader)
losses = []
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(plain):
            loss = torch.nn.functional.mse_loss(plain(x), y)
            losses.append(loss.item())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(plain.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
check((losses, dict(plain.state_dict())))
"""

TWO_ACCELERATOR = ACCELERATOR + """
pp = ParallelismConfig(pp_size=2)
check(train(config=pp))
check(train(config=pp, zero={"stage": 1}, partition_method="uniform"))
saved = f"{folder}/saved"
train(config=pp, save=saved)
check(train(config=pp, load=saved, chunks_per_stage=2))
check(train(megatron=True))
check(train(config=pp, precision="bf16"), "bf16")
"""

BACK_ACCELERATOR = ACCELERATOR + """
check(train(num_stages=1, load=f"{folder}/saved"))
from safetensors.torch import load_file
first = load_file(f"{folder}/saved_model/model.safetensors")
assert "0.weight" in first and "5.out.weight" in first, sorted(first)
"""


def test_an_accelerator_trains_a_pipeline_as_one_process(tmp_path: Any) -> None:
    run_ranks(ONE_ACCELERATOR, 1, FOLDER=str(tmp_path))
    run_ranks(TWO_ACCELERATOR, 2, FOLDER=str(tmp_path))
    run_ranks(BACK_ACCELERATOR, 1, FOLDER=str(tmp_path))


WRONG = """
import logging
import torch
from lockstep import Accelerator, ConfigError, ParallelismConfig, deepspeed
from lockstep.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

deepspeed.init_distributed()
CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
data = iter([(torch.randn(2, 4), torch.randn(2, 4))] * 9)
warnings = []


class Kept(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())


deepspeed.logger.addHandler(Kept(logging.WARNING))


def refused(expected, call):
    try:
        call()
    except ConfigError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"expected {expected}")


def linear(count=4):
    return [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(count)]


def engine_of(layers, config=CONFIG, **options):
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, **options)
    return deepspeed.initialize(model=model, config=config)[0]


refused("num_stages is 3; expected a divisor", lambda: PipelineModule(linear(), num_stages=3))
refused("the number of stages is unknown", lambda: PipelineModule(linear()))
refused("stage 3", lambda: engine_of(linear(), {**CONFIG, "zero_optimization": {"stage": 3}}))
refused("the layers of stage 1 have no trained parameters", lambda: engine_of([*linear(1), torch.relu], partition_method="uniform"))
refused("arguments of PipelineModule say it", lambda: engine_of(linear(), {**CONFIG, "pipeline": {"stages": "auto"}}))
engine = engine_of(linear())
assert (engine.is_first_stage(), engine.is_last_stage()) == (engine.stage_id == 0, engine.stage_id == 1)
for call in (lambda: engine(torch.randn(2, 4)), lambda: engine.backward(torch.zeros(())), engine.step):
    refused("train_batch()", call)
with torch.no_grad():
    refused("gradients are disabled", lambda: engine.train_batch(data))
engine.train_batch(iter([(torch.ones(2, 4), torch.ones(2, 4))]))
assert not warnings
try:
    engine.train_batch(iter([]))
except StopIteration:
    pass
outputs = engine.eval_batch(data, compute_loss=False, reduce_output=None, num_micro_batches=2)
assert outputs is None if engine.is_first_stage() else [tuple(each.shape) for each in outputs] == [(2, 4), (2, 4)]
engine_of(linear()).train_batch(iter([(torch.full((2, 4), float(engine.stage_id)), torch.zeros(2, 4))]))
assert [text.count("different batches") for text in warnings] == ([1] if engine.is_first_stage() else [])
loss, logits = engine.eval_batch(data, return_logits=True, bcast_loss=False)
assert (loss, logits) == (None, None) if engine.is_first_stage() else logits.shape == (2, 4)
accelerator = Accelerator(parallelism_config=ParallelismConfig(pp_size=2))
refused("this model is no pipeline", lambda: accelerator.prepare(torch.nn.Linear(2, 2)))
"""


def test_wrong_pipelines_are_refused_by_name() -> None:
    run_ranks(WRONG, 2)


def test_wrong_layers_are_refused_by_name() -> None:
    one = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    for arguments, message in (
        ({"layers": [*one, 3]}, "layer 2 is a int; expected a torch.nn.Module"),
        ({"partition_method": "profile"}, "partition_method is 'profile'; expected 'parameters'"),
        ({"partition_method": "type:conv"}, "matches 0 of 2 layers"),
        ({"num_stages": 3}, "num_stages is 3; expected a divisor of the number of processes, 1"),
        ({"topology": "pipe"}, "topology is a str"),
        ({"topology": PipeDataParallelTopology(1, 2)}, "the topology has 1 stages and 2 processes"),
    ):
        with pytest.raises(ConfigError, match=message):
            PipelineModule(**{"layers": one, "num_stages": 1, **arguments})
    tied = [TiedLayerSpec("a", torch.nn.Linear, 2, 2), TiedLayerSpec("a", torch.nn.Embedding, 2, 2)]
    with pytest.raises(ConfigError, match="tied as 'a' are a Linear and a Embedding"):
        PipelineModule(tied, num_stages=1)
    with pytest.raises(ConfigError, match="has no parameter 'words'"):
        PipelineModule([TiedLayerSpec("a", torch.nn.Linear, 2, 2, tied_weight_attr="words")], num_stages=1)
    with pytest.raises(ConfigError, match="expected a class of torch.nn.Module"):
        LayerSpec(torch.relu)  # type: ignore[arg-type]


def test_a_batch_that_micro_batches_do_not_divide_is_refused() -> None:
    model = PipelineModule([torch.nn.Linear(2, 2)], 1, loss_fn=torch.nn.functional.mse_loss, micro_batches=3)
    with pytest.raises(ConfigError, match="not connected"):
        model(torch.ones(3, 2), torch.ones(3, 2))
    model, _ = Accelerator().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="that 3 micro-batches divide"):
        model(torch.ones(4, 2), torch.ones(4, 2))
    assert model(torch.ones(3, 2)).shape == (3, 2)  # The layers alone.
    for wrong, message in ((None, "loss is a NoneType"), (torch.ones(2, requires_grad=True), "2 elements")):
        model.loss_fn = lambda output, target, wrong=wrong: wrong
        with pytest.raises(ConfigError, match=message):
            model(torch.ones(3, 2), torch.ones(3, 2))


def test_what_cannot_be_sent_is_refused() -> None:
    model = PipelineModule(
        [torch.nn.Linear(2, 2), lambda x: [x], torch.nn.Linear(2, 2)],
        1,
        loss_fn=torch.nn.functional.mse_loss,
        partition_method="uniform",
        chunks_per_stage=2,
    )
    model, _ = Accelerator().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="layer 1, the last of its chunk, returned a list; expected a tensor"):
        model(torch.ones(3, 2), torch.ones(3, 2))


def test_degrees_of_megatron_become_a_mesh() -> None:
    plugin = MegatronLMPlugin(pp_degree=2, num_micro_batches=4)
    assert (plugin.pp_degree, plugin.num_micro_batches, plugin.num_layers_per_virtual_pipeline_stage) == (2, 4, None)
    with pytest.raises(ConfigError, match="num_micro_batches is 4; expected None; without pp_degree above 1"):
        MegatronLMPlugin(num_micro_batches=4)
    with pytest.raises(ConfigError, match="num_layers_per_virtual_pipeline_stage is 2"):
        MegatronLMPlugin(num_layers_per_virtual_pipeline_stage=2)
    config = ParallelismConfig(pp_size=2, tp_size=2)
    assert config._mesh_text == "pp=2,dp_replicate=1,dp_shard=1,cp=1,sp=1,tp=2,ep=1"
    assert config.non_data_parallel_size == 4 and config.pp_enabled and config.non_dp_dim_names == ["tp", "pp"]
    assert deepspeed.PipelineModule is PipelineModule
    assert torch.nn.Module in PipelineModule.__mro__
