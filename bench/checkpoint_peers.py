#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times how a peer saves and loads a model and its Adam state, for bench/checkpoint.py:

    torchrun --nproc-per-node 2 bench/checkpoint_peers.py --peer torch --folder /disk/bench

The model and the output are those of checkpoint_bench.cpp: a JSON line for each measurement, with the
seconds of the slowest rank after a barrier. A save ends when rank 0 has flushed every file and the folder
to disk (fsync), a load when the call returns. "ready" ends when all that was loaded has been written once
in place.
"""
import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LAYERS = 50


class Layers(torch.nn.Module):
    """Holds square linear layers with `parameter_bytes` in total; their forward never runs."""

    def __init__(self, parameter_bytes):
        super().__init__()
        width = int(math.sqrt(parameter_bytes / 4 / LAYERS + 0.25) - 0.5)  # Solves width^2 + width.
        for i in range(LAYERS):
            self.register_parameter(f"layers_{i}_weight", torch.nn.Parameter(torch.empty(width, width).uniform_(-1, 1)))
            self.register_parameter(f"layers_{i}_bias", torch.nn.Parameter(torch.empty(width).uniform_(-1, 1)))


def adam_moments(model, optimizer):
    """Returns the optimizer's large tensors, by name."""
    return {
        f"{name}.{field}": optimizer.state[parameter][field]
        for name, parameter in model.named_parameters()
        for field in ("exp_avg", "exp_avg_sq")
    }


class Torch:
    """Saves both state dicts by torch.save on rank 0; every rank loads them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def save(self, folder):
        if dist.get_rank() == 0:
            folder.mkdir()
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, folder / "state.pt")

    def load(self, folder, mmap=False):
        state = torch.load(folder / "state.pt", weights_only=True, mmap=mmap)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def loads(self):
        return {"": self.load, "_mmap": lambda folder: self.load(folder, mmap=True)}


class Safetensors:
    """Saves model and optimizer by save_file on rank 0, one file each; every rank loads them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def save(self, folder):
        from safetensors.torch import save_file

        if dist.get_rank() == 0:
            folder.mkdir()
            save_file(self.model.state_dict(), folder / "model.safetensors")
            save_file(adam_moments(self.model, self.optimizer), folder / "optimizer.safetensors")

    def load(self, folder):
        from safetensors.torch import load_file

        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        moments = adam_moments(self.model, self.optimizer)
        for name, saved in load_file(folder / "optimizer.safetensors").items():
            moments[name].copy_(saved)

    def loads(self):
        return {"": self.load}


class Dcp:
    """Uses torch.distributed.checkpoint: both ranks write, and load in place."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": adam_moments(self.model, self.optimizer)}

    def save(self, folder):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(), checkpoint_id=folder)

    def load(self, folder):
        import torch.distributed.checkpoint as dcp

        dcp.load(self.state(), checkpoint_id=folder)

    def loads(self):
        return {"": self.load}


class Accelerate:
    """Uses accelerator.save_state and load_state with their defaults."""

    def __init__(self, model, optimizer):
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        self.accelerator.prepare(model, optimizer)

    def save(self, folder):
        self.accelerator.save_state(str(folder))

    def load(self, folder):
        self.accelerator.load_state(str(folder))

    def loads(self):
        return {"": self.load}


PEERS = {"torch": Torch, "safetensors": Safetensors, "dcp": Dcp, "accelerate": Accelerate}


def flush(folder):
    """Blocks until the disk has every file, and the folder's names."""
    for path in [*folder.rglob("*"), folder]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def bytes_in_memory(path):
    """Returns how many bytes of a file are in the page cache."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def drop(folder):
    """Drops the files from the page cache; the kernel keeps pages that a process has mapped."""
    gc.collect()
    dist.barrier()
    if dist.get_rank() == 0:
        for path in folder.rglob("*"):
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
            if (left := bytes_in_memory(path)) > 0:
                print(f"checkpoint_peers: {left} bytes of {path.name} stay in memory", file=sys.stderr, flush=True)
    dist.barrier()


def begin():
    """Starts a measurement on all ranks at once, after earlier data have been written to disk."""
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()
    return time.perf_counter()


def report(what, own):
    seconds = torch.tensor([own], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"measured": what, "seconds": seconds.item()}), flush=True)


def time_save(peer, folder):
    began = begin()
    peer.save(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        flush(folder)
    report("save", time.perf_counter() - began)


def time_load(what, load, model, optimizer):
    """Measures a load; appends `what` to the names of both measurements."""
    began = begin()
    load()
    loaded = time.perf_counter() - began
    with torch.no_grad():
        for tensor in (*model.parameters(), *adam_moments(model, optimizer).values()):
            tensor.mul_(1)  # As the first training step does.
    ready = time.perf_counter() - began
    report(f"load{what}", loaded)
    report(f"ready{what}", ready)


def forget(model, optimizer):
    """Zeroes all values before a load. The optimizer gets new tensors, since its old ones may be mapped from a file."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for state in optimizer.state.values():
        for field in ("exp_avg", "exp_avg_sq"):
            state[field] = torch.zeros_like(state[field])


def samples(model, optimizer):
    """Returns a few elements of everything that is saved."""
    tensors = [*model.parameters(), *adam_moments(model, optimizer).values()]
    return torch.cat([tensor.detach().flatten()[::4099] for tensor in tensors])


def measure(peer, model, optimizer, folder):
    wanted = samples(model, optimizer)
    saved = folder / "saved"
    time_save(peer, saved)
    for name, load in peer.loads().items():
        for cache in ("warm", "cold"):
            forget(model, optimizer)
            if cache == "cold":
                drop(saved)
            time_load(f"{name}_{cache}", lambda load=load: load(saved), model, optimizer)
            if not torch.equal(samples(model, optimizer), wanted):
                raise SystemExit(f"checkpoint_peers: load{name} returned other values than save wrote")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="bytes of parameters (default 1e9)")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder on the disk to measure")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Layers(options.bytes)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    measure(PEERS[options.peer](model, optimizer), model, optimizer, options.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
