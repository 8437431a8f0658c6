# SPDX-License-Identifier: Apache-2.0
"""Seed 003: DeepSpeed's three calls, checkpoints with a client state, and a second run that continues."""

import argparse
import itertools
import json

import torch
import torch.nn.functional as F
from common import FOLDER, Net, make_net, numbers, report, weights_of

import lockstep.deepspeed as deepspeed

# The seed's configuration. A micro-batch of 4 makes it valid for one and two processes, and its fp16 is an option.
parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
cmd_args = parser.parse_args()
config = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "fp16": {"enabled": cmd_args.fp16},
    "zero_optimization": True,
}
cmd_args.deepspeed_config = str(FOLDER / "ds_config.json")

deepspeed.init_distributed()
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
if rank == 0:
    (FOLDER / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
deepspeed.comm.barrier()


class NetWithLoss(torch.nn.Module):
    """The seed's engine returns the loss: loss = model_engine(batch)."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch):
        inputs, targets = (tensor.to(self.net.hidden.weight.device) for tensor in batch)
        return F.cross_entropy(self.net(inputs.to(self.net.hidden.weight.dtype)).float(), targets)


def data_of(rank, world, first=0):
    """Batches of 8 / world samples: each process has every world-th sample."""
    inputs, targets = numbers(320).tensors
    each = 8 // world
    batches = [
        (inputs[rank::world][i : i + each], targets[rank::world][i : i + each])
        for i in range(0, len(inputs) // world, each)
    ]
    return batches[first:]


def dataloader_to_step(data_loader, step):
    return itertools.islice(data_loader, step, None)


model = NetWithLoss(make_net())
params = [p for p in model.parameters() if p.requires_grad]
model_engine, optimizer, _, _ = deepspeed.initialize(args=cmd_args, model=model, model_parameters=params)

data_loader = data_of(rank, world)
save_interval, save_dir, ckpt_id = 10, str(FOLDER / "ckpt"), None
losses, client_sd = [], {}
for step, batch in enumerate(data_loader):
    # forward() method
    loss = model_engine(batch)

    # runs backpropagation
    model_engine.backward(loss)

    # weight update
    model_engine.step()
    losses.append(loss.item())

    # save checkpoint
    if step % save_interval == 0 and step > 0:
        client_sd["step"] = step
        ckpt_id = f"step_{step}"
        model_engine.save_checkpoint(save_dir, ckpt_id, client_state=client_sd)
last = weights_of(model)

# A new engine continues after the last checkpoint.
model = NetWithLoss(make_net(seed=5))
model_engine, optimizer, _, _ = deepspeed.initialize(args=cmd_args, model=model, model_parameters=model.parameters())

# load checkpoint
_, client_sd = model_engine.load_checkpoint(save_dir, ckpt_id)
step = client_sd["step"]
resumed_at = step

# advance data loader to ckpt step
data_loader = dataloader_to_step(data_of(rank, world), step + 1)

losses_again = []
for step, batch in enumerate(data_loader, start=step + 1):
    # forward() method
    loss = model_engine(batch)

    # runs backpropagation
    model_engine.backward(loss)

    # weight update
    model_engine.step()
    losses_again.append(loss.item())

report(
    rank,
    losses=losses,
    losses_again=losses_again,
    resumed_at=resumed_at,
    last_step=step,
    last=last,
    last_again=weights_of(model),
    global_steps=model_engine.global_steps,
)
