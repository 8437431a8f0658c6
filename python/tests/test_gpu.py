# SPDX-License-Identifier: Apache-2.0
"""Programs on a GPU: their numbers are those of the CPU, and two processes may share a GPU. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launch import run_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and a torch built for CUDA")

# A loop of Accelerate's calls. `main` returns the losses of an epoch, the weights and the gathered targets.
LOOP = """
import os, sys, tempfile
import torch
from torch import nn
from lockstep import Accelerator
from lockstep.utils import GradScalerKwargs
from states import forget_accelerators

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))

def loader(size):
    x = torch.sin(torch.arange(64 * 16.0)).reshape(64, 16)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=size)

def main(cpu, batch, epochs=2, **options):
    accelerator = Accelerator(cpu=cpu, **options)
    assert accelerator.device.type == ("cpu" if cpu else "cuda")
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(batch))
    losses, targets = [], []
    for _ in range(epochs):
        targets.clear()
        for x, y in batches:
            assert x.device == y.device == accelerator.device
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            targets.append(accelerator.gather_for_metrics(y))
    weights = [value.detach().float().cpu() for value in accelerator.unwrap_model(model).parameters()]
    return losses, weights, torch.cat(targets).flatten().cpu()

def check_equal(one, other, tolerance):
    assert one[0][0] != one[0][-1]
    torch.testing.assert_close(one[0], other[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one[1], other[1], rtol=tolerance, atol=tolerance)
    assert torch.equal(one[2], other[2])
"""


def run(program: str, ranks: int) -> None:
    run_ranks(program, ranks, ACCELERATE_USE_CPU="false")


def test_a_compiled_model_trains_the_same() -> None:
    pytest.importorskip("triton")
    run(
        LOOP
        + """
expected = main(False, 8)
forget_accelerators(and_connection=True)
plain = net
net = lambda: torch.compile(plain())
check_equal(main(False, 8), expected, 1e-4)
""",
        1,
    )


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_trains_as_on_the_cpu(precision: str, accumulate: int) -> None:
    """16-bit products differ in the third digit; other sums only in their order."""
    run(
        LOOP
        + f"""
expected = main(True, 8, gradient_accumulation_steps={accumulate})
forget_accelerators(and_connection=True)
got = main(
    False,
    8,
    gradient_accumulation_steps={accumulate},
    mixed_precision={precision!r},
    kwargs_handlers=[GradScalerKwargs(init_scale=256)],
)
check_equal(got, expected, {1e-4 if precision == "no" else 5e-2})
""",
        1,
    )


def test_two_processes_that_share_a_gpu_train_as_one(tmp_path: Path) -> None:
    for ranks in (1, 2):
        run(LOOP + f"""
result = main(False, {8 // ranks})
if os.environ["RANK"] == "0":
    torch.save(result, {str(tmp_path / str(ranks))!r})
""", ranks)
    for one, two in zip(torch.load(tmp_path / "1"), torch.load(tmp_path / "2"), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


def test_a_loaded_checkpoint_continues_with_the_gpus_random_numbers() -> None:
    run(
        LOOP
        + """
accelerator = Accelerator()
model = net()
model, optimizer, batches = accelerator.prepare(model, torch.optim.Adam(model.parameters()), loader(8))
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder + "/saved")
    drawn = torch.rand(8, device="cuda")
    weight = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.zero_()
    accelerator.load_state(folder + "/saved")
    assert model[0].weight.device == accelerator.device
    assert torch.equal(model[0].weight, weight)
    assert torch.equal(torch.rand(8, device="cuda"), drawn)
""",
        1,
    )


# DeepSpeed's engine trains the same model in every stage.
ENGINE = (
    LOOP
    + """
import lockstep.deepspeed as deepspeed

def train(stage, zero={}, **more):
    model = net()
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **zero},
        **more,
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    assert engine.device.type == "cuda", engine.device
    kind = torch.bfloat16 if "bf16" in more else torch.float16 if "fp16" in more else torch.float32
    losses = []
    for x, y in loader(8):
        x, y = x.to(engine.device, kind), y.to(engine.device)
        loss = nn.functional.mse_loss(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weights = [value.detach().float().cpu() for value in model.parameters()]
    engine.destroy()
    return losses, weights, torch.zeros(0)
"""
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_engine_trains_the_same_in_every_stage(ranks: int) -> None:
    run(
        ENGINE
        + """
expected = train(0)
cpu, nvme = {"device": "cpu"}, {"device": "nvme", "nvme_path": tempfile.mkdtemp()}
for stage in (1, 2, 3):
    check_equal(train(stage), expected, 1e-5)
    check_equal(train(stage, {"offload_optimizer": cpu}), expected, 1e-4)
check_equal(train(2, {"offload_optimizer": nvme}), expected, 1e-4)
check_equal(train(3, {"offload_optimizer": cpu, "offload_param": cpu}), expected, 1e-4)
check_equal(train(3, {"offload_optimizer": nvme, "offload_param": nvme}), expected, 1e-4)
""",
        ranks,
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_engine_trains_in_16_bits(precision: str) -> None:
    settings = {"enabled": True} | ({"initial_scale_power": 8} if precision == "fp16" else {})
    run(
        ENGINE
        + f"""
expected = train(0)
for stage in (0, 1, 2, 3):
    check_equal(train(stage, {precision}={settings}), expected, 1e-1)
""",
        1,
    )
