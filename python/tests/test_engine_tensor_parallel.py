# SPDX-License-Identifier: Apache-2.0
"""An engine of a ds_config whose ranks divide layers: tensor_parallel.autotp_size, tp_model_init, an Accelerator's tp_size."""

from __future__ import annotations

from typing import Any

from launch import run_ranks

TRAIN = """
import os
import torch
from lockstep import ConfigError, deepspeed
from lockstep.deepspeed import _tensor_parallel
from lockstep.deepspeed.utils import groups
from lockstep.state import AcceleratorState

folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])
SPECS = [
    {"patterns": [".*words.*"]},
    {"patterns": [r".*up\\.weight$"]},
    {"patterns": [r".*down\\.weight$"], "partition_type": "row"},
    {"patterns": ["head"], "gather_output": True},
]
PLAN = {"words": "embedding", "up": "colwise", "down": "rowwise", "head": "colwise_rep"}
torch.manual_seed(0)
tokens = torch.randint(16, (48, 4))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = torch.nn.Embedding(16, 8)
        self.up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(32, 8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.double()

    def forward(self, tokens):
        x = self.words(tokens)
        return self.head(x + self.down(torch.tanh(self.up(x))))


class PlannedNet(Net):
    tp_plan = PLAN


def file_of(ranks, stage=0, **tensor):
    return {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.3,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.05}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **({"tensor_parallel": {"autotp_size": ranks, **tensor}} if ranks else {}),
    }


def train(engine, steps=(0, 6)):
    micro = engine.train_micro_batch_size_per_gpu()
    lines = engine.dp_world_size
    for step in range(*steps):
        first = 4 * step + micro * engine.dp_rank
        batch = tokens[first : first + micro]
        scores = engine(batch)
        engine.backward(torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten()))
        engine.step()
    assert micro * lines == 4, (micro, lines)
    return {name: value.clone() for name, value in full(engine).items()}


def full(engine):
    engine.save_checkpoint(os.path.join(folder, f"full{world}"), tag="full")
    from safetensors.torch import load_file
    states = {}
    path = os.path.join(folder, f"full{world}", "full")
    for root, _, names in os.walk(path):
        for name in names:
            if name.startswith("model") and name.endswith(".safetensors"):
                states.update(load_file(os.path.join(root, name)))
    return states


def start(net, file, **arguments):
    AcceleratorState._reset_state()
    _tensor_parallel._recorded = None
    return deepspeed.initialize(model=net, config=file, model_parameters=net.parameters(), **arguments)[0]


def fails(text, body):
    try:
        body()
    except (ConfigError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError("expected: " + text)
"""

ONE = TRAIN + """
torch.save(train(start(Net(), file_of(0))), os.path.join(folder, "one.pt"))
"""

SEVERAL = TRAIN + """
expected = torch.load(os.path.join(folder, "one.pt"))


def check(got, what):
    assert set(got) == set(expected), (what, set(got), set(expected))
    for name, value in expected.items():
        assert got[name].shape == value.shape, (what, name, got[name].shape)
        assert (got[name] - value).abs().max() < 1e-12, (what, name, (got[name] - value).abs().max())


for stage in (0, 1, 2, 3):
    net = PlannedNet()
    engine = start(net, file_of(2, stage))
    if stage < 3:
        assert net.up.weight.shape == (16, 8), net.up.weight.shape
    assert (engine.train_batch_size(), engine.autotp_size(), engine.dp_world_size) == (8, 2, world // 2)
    assert groups.get_tensor_model_parallel_world_size() == 2
    assert groups.get_tensor_model_parallel_rank() == int(os.environ["RANK"]) % 2
    assert groups.get_data_parallel_world_size() == world // 2
    check(train(engine), f"stage {stage}")
    assert engine.global_samples == 24, engine.global_samples

# A file that names the layers, and tp_model_init in place of autotp_size.
net = Net()
fails("would be another function", lambda: start(net, file_of(2, partition_config={"layer_specs": SPECS})))
file = {**file_of(0, 2), "tensor_parallel": {"partition_config": {"layer_specs": SPECS}}}
_tensor_parallel._recorded = None
assert deepspeed.tp_model_init(net, 2, torch.float64, example=lambda: net(tokens[:2])) is net
engine = deepspeed.initialize(model=net, config=file)[0]
check(train(engine, (0, 4)) and train(engine, (4, 6)), "partition_config")
fails("an earlier call had", lambda: deepspeed.tp_model_init(net, 4, torch.float64))
fails("tp_size of tp_model_init is 2", lambda: deepspeed.initialize(model=Net(), config=file_of(4)))
fails("the engine computes in torch.bfloat16", lambda: deepspeed.initialize(model=Net(), config={**file, "bf16": {"enabled": True}}))
fails("which DeepSpeed ignores", lambda: deepspeed.tp_model_init(net, 2, torch.float64, exemple=1))
start(Net(), file_of(0))
assert groups.get_tensor_model_parallel_world_size() == 1 and groups.get_data_parallel_world_size() == world
fails("no inference engine", lambda: deepspeed.set_autotp_mode())

fails("has no tp_plan", lambda: start(Net(), file_of(2)))
fails("sequence_parallel_size is 2, and 1 ranks", lambda: start(Net(), {**file_of(0), "sequence_parallel_size": 2}))


class Mpu:
    def get_model_parallel_world_size(self):
        return 2

    def get_model_parallel_rank(self):
        return int(os.environ["RANK"]) % 2


fails("the mpu has 2 model parallel ranks, and the engine 1", lambda: start(Net(), file_of(0), mpu=Mpu()))
check(train(start(PlannedNet(), file_of(2), mpu=Mpu())), "mpu")

# An Accelerator with a ds_config.
from lockstep import Accelerator, ParallelismConfig
from lockstep.utils import DeepSpeedPlugin, DummyOptim, TorchTensorParallelConfig
for of_file in (True, False):
    AcceleratorState._reset_state()
    _tensor_parallel._recorded = None
    net = PlannedNet() if of_file else Net()
    handler = TorchTensorParallelConfig(plan=PLAN, example=lambda: net(tokens[:2]))
    config = None if of_file else ParallelismConfig(tp_size=2, tp_handler=handler)
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=file_of(2 if of_file else 0, 1)), parallelism_config=config
    )
    loader = torch.utils.data.DataLoader(tokens[:24], batch_size=4 // (world // 2))
    engine, optimizer, loader = accelerator.prepare(net, DummyOptim(net.parameters()), loader)
    for batch in loader:
        with accelerator.accumulate(engine):
            scores = engine(batch)
            loss = torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert accelerator.gather_for_metrics(torch.ones(2)).shape == (world,)
    check(accelerator.get_state_dict(engine), f"Accelerator, of the file: {of_file}")
"""

MISTAKES = TRAIN + """
from lockstep import Accelerator, ParallelismConfig, _core
from lockstep.deepspeed.runtime.sequence_parallel import parallel_state_sp
from lockstep.utils import DeepSpeedPlugin, DummyOptim, TorchTensorParallelConfig

rank = int(os.environ["RANK"])


def mpu(**sizes):
    class Mpu:
        def get_tensor_model_parallel_world_size(self):
            return 2

        def get_tensor_model_parallel_rank(self):
            return rank

    for name, size in sizes.items():
        setattr(Mpu, f"get_{name}_world_size", lambda self, size=size: size)
    return Mpu()


# An mpu whose other ranks would be dropped.
for name in ("sequence_parallel", "context_parallel", "pipeline_model_parallel", "pipe_parallel"):
    fails(f"get_{name}_world_size() of the mpu is 2", lambda: start(PlannedNet(), file_of(2), mpu=mpu(**{name: 2})))
fails("get_data_parallel_world_size() of the mpu is 2; expected 1", lambda: start(PlannedNet(), file_of(2), mpu=mpu(data_parallel=2)))
start(PlannedNet(), file_of(2), mpu=mpu(data_parallel=1, sequence_parallel=1, pipeline_model_parallel=1))

# Values of other types.
for value in (None, "2", [2], True, -1, 2.5):
    file = file_of(0) | {"tensor_parallel": {"autotp_size": value}}
    fails("invalid value for tensor_parallel.autotp_size", lambda: start(PlannedNet(), file))
    fails("invalid value for tensor_parallel.autotp_size", lambda: deepspeed.tp_model_init(PlannedNet(), 2, torch.float64, file))
    if value is not None:  # A plugin removes keys without a value.
        fails("invalid value for tensor_parallel.autotp_size", lambda: Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=file)))
        AcceleratorState._reset_state()
for section in ([1], "x"):
    fails("invalid value for tensor_parallel", lambda: start(PlannedNet(), file_of(0) | {"tensor_parallel": section}))
for value in (None, "2", 0):
    fails("invalid value for sequence_parallel_size", lambda: start(PlannedNet(), file_of(0) | {"sequence_parallel_size": value}))
fails("sequence_parallel_size is 2, and 1 ranks", lambda: start(PlannedNet(), file_of(0) | {"sequence_parallel_size": 2.0}))
start(PlannedNet(), file_of(0) | {"sequence_parallel_size": "auto", "tensor_parallel": {"autotp_size": "auto"}})
assert start(PlannedNet(), file_of(2.0)).autotp_size() == 2
AcceleratorState._reset_state()
_tensor_parallel._recorded = None
deepspeed.tp_model_init(PlannedNet(), 2, torch.float64)
fails("invalid value for bf16", lambda: deepspeed.initialize(model=PlannedNet(), config=file_of(2) | {"bf16": True}))
fails("computes in torch.bfloat16", lambda: deepspeed.initialize(model=PlannedNet(), config=file_of(2) | {"bfloat16": {"enabled": True}}))

# A failed call leaves no plan on the model.
net = PlannedNet()
fails("optimizer", lambda: start(net, file_of(2) | {"optimizer": {"type": "Lamb"}}))
assert not hasattr(net, "_lockstep_tensor_parallel")


# Layers that fuse several: a tp_plan with their sizes, and a file without them.
class FusedNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = torch.nn.Embedding(16, 8)
        self.gate_up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(16, 8)
        self.double()

    def forward(self, tokens):
        gate, up = self.gate_up(self.words(tokens)).chunk(2, -1)
        return self.down(up * torch.tanh(gate))


class PlannedFusedNet(FusedNet):
    tp_plan = {"gate_up": ("colwise", (1, 1)), "down": "rowwise"}


class DummyNet(FusedNet):
    dummy_inputs = {"tokens": tokens[:2]}

    def forward(self, tokens):
        return (super().forward(tokens),)


class WrongDummyNet(DummyNet):
    dummy_inputs = {"words": tokens[:2]}


def specs(shape):
    down = {"patterns": ["down.weight"], "partition_type": "row"}
    return {"partition_config": {"layer_specs": [{"patterns": ["gate_up.weight"], "shape": shape}, down]}}


expected = FusedNet()(tokens)
assert (start(PlannedFusedNet(), file_of(2))(tokens) - expected).abs().max() < 1e-12
assert (start(DummyNet(), file_of(2, **specs([2, -1])))(tokens)[0] - expected).abs().max() < 1e-12
fails("computes another function", lambda: start(DummyNet(), file_of(2, **specs([1, -1]))))
fails("its dummy_inputs failed", lambda: start(WrongDummyNet(), file_of(2, **specs([2, -1]))))

# transformers' Trainer: a size with each process, and a count that each process of a line has.
AcceleratorState._reset_state()


class Own(Accelerator):
    def gather(self, tensor):
        return super().gather(tensor)


trainer = {"__name__": "transformers.trainer"}
exec("def _get_num_items_in_batch(accelerator, count): return accelerator.gather(count)", trainer)
file = file_of(2) | {"train_micro_batch_size_per_gpu": 4, "train_batch_size": 4 * 2 * world}
for kind in (Accelerator, Own):
    accelerator = kind(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=dict(file)))
    net = PlannedNet()
    engine, _ = accelerator.prepare(net, DummyOptim(net.parameters()))
    assert engine.train_batch_size() == 8, engine.train_batch_size()
    count = torch.tensor(3)
    assert trainer["_get_num_items_in_batch"](accelerator, count).tolist() == [3, 3]
    assert accelerator.gather(count).sum().item() == 3
    AcceleratorState._reset_state()

# The mpu of ranks that divide sequences, with the same size in the file.
parallel_state_sp.initialize_sequence_parallel(2)
file = file_of(0) | {"train_micro_batch_size_per_gpu": 4, "sequence_parallel_size": 2}
read = deepspeed.DeepSpeedConfig(file, mpu=parallel_state_sp)
assert (read.train_batch_size, read.world_size) == (8, 1), (read.train_batch_size, read.world_size)
deepspeed.zero.Init(config=file, mpu=parallel_state_sp)
assert start(PlannedNet(), file, mpu=parallel_state_sp).train_batch_size() == 8
fails("sequence_parallel_size is 4, and 2 ranks", lambda: deepspeed.DeepSpeedConfig(file | {"sequence_parallel_size": 4}, mpu=parallel_state_sp))
fails("2 consecutive ranks divide layers, and 2 of them sequences", lambda: start(PlannedNet(), file_of(2), mpu=parallel_state_sp))
"""


def test_an_engine_whose_ranks_divide_layers_trains_as_one_process(tmp_path: Any) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, 2, FOLDER=str(tmp_path))


def test_an_engine_trains_on_tensor_and_data_parallel_ranks_as_one_process(tmp_path: Any) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, 4, FOLDER=str(tmp_path))


def test_an_engine_refuses_ranks_and_values_that_it_cannot_divide_by(tmp_path: Any) -> None:
    run_ranks(MISTAKES, 2, FOLDER=str(tmp_path))
