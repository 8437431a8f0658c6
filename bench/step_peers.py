# SPDX-License-Identifier: Apache-2.0
"""Times a step in Python like step_bench.cpp: alone, with DistributedDataParallel, Accelerate, DeepSpeed or FSDP2, and
with the Python package lockstep by Accelerate's calls (lockstep) or DeepSpeed's (lockstep_engine)."""
import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import re
from pathlib import Path

import torch
from models import model_and_batch
from pictures import endless, picture_loader
from timing import seconds_of, step_microseconds
from torch import nn
from torch.nn import functional


PEERS = ("alone", "ddp", "accelerate", "deepspeed", "fsdp2", "lockstep", "lockstep_engine")
# The modules of peers, of which a run imports one.
MODULES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "lockstep": "lockstep",
    "lockstep_engine": "lockstep.deepspeed",
}


def cross_entropy(scores, target):
    return functional.cross_entropy(scores.flatten(0, -2), target.flatten())


def loss_of(options, net, data, target):
    if options.precision == "no":
        return cross_entropy(net(data), target)
    with torch.autocast(options.device, torch.bfloat16):
        return cross_entropy(net(data), target)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)


def plain_step(options, net, optimizer, batches, no_sync):
    def step():
        for i in range(options.accumulate):
            data, target = next(batches)
            with no_sync(i):
                loss_of(options, net, data, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def accelerate_step(options, net, optimizer, batches):
    library = importlib.import_module(options.peer)
    accelerator = library.Accelerator(
        cpu=options.device == "cpu",
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
    )
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    model, optimizer = accelerator.prepare(net, optimizer)
    if options.workers is not None:
        batches = iter(endless(accelerator.prepare(picture_loader(options.workers, sharded=False))))

    def step():
        for _ in range(options.accumulate):
            data, target = next(batches)
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = cross_entropy(model(data), target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    return step


def ddp_step(options, net, batches):
    torch.distributed.init_process_group("gloo" if options.device == "cpu" else "nccl")
    net = nn.parallel.DistributedDataParallel(net)
    last = options.accumulate - 1
    if options.workers is not None:
        batches = iter(endless(picture_loader(options.workers, sharded=True)))
    no_sync = lambda i: contextlib.nullcontext() if i == last else net.no_sync()  # noqa: E731
    return plain_step(options, net, adamw(net), batches, no_sync)


def deepspeed_step(options, net, batches):
    # DeepSpeed runs with DS_ACCELERATOR=cpu.
    deepspeed = importlib.import_module(MODULES[options.peer])
    deepspeed.init_distributed("gloo" if options.device == "cpu" else "nccl")
    world = int(os.environ["WORLD_SIZE"])
    config = {
        "train_batch_size": options.accumulate * world,  # DeepSpeed does not count rows.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": options.zero},
        "bf16": {"enabled": options.precision == "bf16"},
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=adamw(net), config=config)

    def step():
        for _ in range(options.accumulate):
            data, target = next(batches)
            engine.backward(cross_entropy(engine(data), target))
            engine.step()

    return step


def fsdp2_step(options, net, batches):
    """Makes each block a unit, as FSDP2's documentation does. Stage 2 keeps parameters from forward to backward."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo" if options.device == "cpu" else "nccl")
    mesh = torch.distributed.device_mesh.init_device_mesh(options.device, (int(os.environ["WORLD_SIZE"]),))
    how = {"mesh": mesh, "reshard_after_forward": options.zero == 3}
    for block in getattr(net, "blocks", [layer for layer in net.children() if list(layer.parameters())]):
        fully_shard(block, **how)
    fully_shard(net, **how)

    @contextlib.contextmanager
    def no_sync(i):
        net.set_requires_gradient_sync(i == options.accumulate - 1)
        yield

    return plain_step(options, net, adamw(net), batches, no_sync)


def peak_mib():
    """Returns the peak resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def largest(options, figures):
    """Returns the largest figures of all ranks."""
    if options.peer.startswith("lockstep"):
        return importlib.import_module("lockstep.utils").reduce(figures, "max").tolist()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(figures, torch.distributed.ReduceOp.MAX)
    return figures.tolist()


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--zero", type=int, default=0, help="ZeRO's stage; fsdp2 has 2 and 3")
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, help="workers of a DataLoader, instead of one resident batch; cnn only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--trace", type=Path, help="a file for a trace of three more steps")
    return parser.parse_args()


def measure(options):
    """Returns the microseconds of a step and the peak memory in MiB, the largest of all ranks.

    The model is freed at the end: with a model that outlives its process group, torch may hang at the exit.
    """
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    net, data, target = (part.to(options.device) for part in model_and_batch(options.model))
    batches = itertools.repeat((data, target))
    if options.peer in ("accelerate", "lockstep"):
        step = accelerate_step(options, net, adamw(net), batches)
    elif options.peer == "ddp":
        step = ddp_step(options, net, batches)
    elif options.peer in ("deepspeed", "lockstep_engine"):
        step = deepspeed_step(options, net, batches)
    elif options.peer == "fsdp2":
        step = fsdp2_step(options, net, batches)
    else:
        step = plain_step(options, net, adamw(net), batches, lambda i: contextlib.nullcontext())
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    us = step_microseconds(step, options.steps, finish)
    if options.trace is not None:
        with torch.profiler.profile() as profile:
            seconds_of(step, 3)
            finish()
        profile.export_chrome_trace(str(options.trace))
    return largest(options, torch.tensor([us, peak_mib()], device=options.device))


def main():
    options = parse_arguments()
    if options.peer in MODULES:
        importlib.import_module(MODULES[options.peer])  # As programs do, before they create anything of torch's.
    us, peak = measure(options)
    gc.collect()  # The step and the model are a cycle.
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"us": us, "peak_mib": peak}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
