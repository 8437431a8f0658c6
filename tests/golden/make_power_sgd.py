#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes power_sgd.json: results of torch's PowerSGD hooks for two ranks' gradients, for
lockstep/sync/power_sgd_test.cpp.

Run with torch installed (made with torch 2.13.0):

    python tests/golden/make_power_sgd.py

Gradients and first Qs are formulas, the same in the test. The result is {case: [step][parameter] ->
averaged gradient, flat}. Buckets hold parameters in reverse order, as DDP's and Lockstep's do.
torch's batched hook hands its orthogonalisation a matrix where that asserts a batch of them; it is
mended here.
"""

import json
import math
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

SHAPES = [(12, 16), (16, 8), (16,)]
STEPS = 4
CASES = {
    "rank_2": (power.powerSGD_hook, 2, True),
    "rank_1_without_feedback": (power.powerSGD_hook, 1, False),
    "batched": (power.batched_powerSGD_hook, 1, True),
}


def gradient(rank, step, index):
    count = math.prod(SHAPES[index])
    shift = 0.71 * step + 2 * index
    values = [math.sin(0.37 * i * (1 + rank) + shift) + 0.1 * rank for i in range(count)]
    return torch.tensor(values, dtype=torch.float32)


def first_q(shift, *shape):
    values = [math.cos(0.9 * i + shift) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).view(shape)


def orthogonalize(matrices, epsilon=0, inner=power._orthogonalize):
    inner(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


class Bucket:
    """Stands in for the one bucket of DDP, with the members that the hooks use."""

    def __init__(self, buffer):
        self._buffer = buffer

    def buffer(self):
        return self._buffer

    def gradients(self):
        parts = self._buffer.split([math.prod(shape) for shape in reversed(SHAPES)])
        return [part.view(shape) for part, shape in zip(parts, reversed(SHAPES))]

    def index(self):
        return 0

    def is_last(self):
        return True


def run(rank, store, results):
    power._orthogonalize = orthogonalize
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name, (hook, columns, feedback) in CASES.items():
        state = power.PowerSGDState(
            None,
            matrix_approximation_rank=columns,
            start_powerSGD_iter=2,
            min_compression_rate=1,
            use_error_feedback=feedback,
        )
        state.iter = 2
        if hook is power.batched_powerSGD_hook:
            side = math.ceil(math.sqrt(sum(math.prod(shape) for shape in SHAPES)))
            state.q_memory_dict[0] = first_q(0, side, columns)
            state.p_memory_dict[0] = torch.empty(side, columns)
        else:
            qs = [first_q(index, SHAPES[index][1], columns) for index in (1, 0)]
            state.q_memory_dict[0] = torch.cat([q.flatten() for q in qs])
            state.p_memory_dict[0] = torch.empty(sum(SHAPES[i][0] for i in (1, 0)) * columns)
        steps = []
        for step in range(STEPS):
            parts = [gradient(rank, step, i) for i in reversed(range(len(SHAPES)))]
            averaged = hook(state, Bucket(torch.cat(parts))).wait()
            if 0 in state.error_dict:  # Past the last gradient; torch feeds it back.
                state.error_dict[0][averaged.numel() :] = 0
            parts = reversed(Bucket(averaged).gradients())
            steps.append([[float(f"{value:.7g}") for value in part.flatten()] for part in parts])
        results[name] = steps
    dist.destroy_process_group()


def main():
    path = pathlib.Path(__file__).with_name("power_sgd.json")
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(run, args=(f"{folder}/store", results), nprocs=2)
        path.write_text(json.dumps(dict(results), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
