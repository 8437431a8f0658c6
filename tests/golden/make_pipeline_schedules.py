#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pipeline_schedules.json: the computations of torch's pipeline schedules, for lockstep/pipeline_schedule's tests.

Run with torch installed: `python tests/golden/make_pipeline_schedules.py`. An action is written as torch does:
"5F3" is the forward of stage 5 (our chunk 5) for micro-batch 3, B its backward, I and W the backward for inputs and for
weights. The actions of GPipe and 1F1B are those that a stage is asked for when the schedule runs. (In torch 2.13,
Schedule1F1B._get_pipeline_order begins the last rank with micro-batch 1; the schedule itself does not.)
"""

import json
import pathlib

import torch
from torch.distributed.pipelining import schedules


class RecordingStage:
    """A stage without a model and without messages, which records what a schedule asks it to compute."""

    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, rank, ranks, stages
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, True
        self.group, self.device, self.submod = None, torch.device("cpu"), torch.nn.Identity()
        self.stage_index_to_group_rank = {stage: stage % ranks for stage in range(stages)}
        self.actions = []

    def get_fwd_recv_ops(self, *_):
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.actions.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch, **_):
        self.actions.append(f"{self.stage_index}B{micro_batch}")

    def perform_reduce_grad(self, *_):
        pass


def recorded(kind, ranks, micro_batches):
    """The actions of each rank of a schedule with one stage on each rank, as it runs."""
    lists = []
    for rank in range(ranks):
        stage = RecordingStage(rank, rank, ranks, ranks)
        schedule = kind(stage, micro_batches)
        schedule._initialize_stage = lambda *_, **__: None
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        lists.append(" ".join(stage.actions))
    return lists


def planned(kind, ranks, chunks, micro_batches):
    """The actions of each rank in the plan of a schedule with several stages on each rank, without its waits."""
    stages = [RecordingStage(chunk * ranks, 0, ranks, ranks * chunks) for chunk in range(chunks)]
    order = kind(stages, micro_batches).pipeline_order
    return [" ".join(str(action) for action in order[rank] if action is not None) for rank in range(ranks)]


ONE_CHUNK = ((1, 3), (2, 2), (2, 5), (3, 7), (4, 4), (4, 8), (8, 16))
CHUNKS = ((2, 2, 4), (2, 3, 6), (3, 2, 3), (4, 2, 3), (4, 2, 8), (4, 3, 10), (8, 4, 16))


def main():
    cases = []

    def add(kind, ranks, chunks, micro_batches, lists):
        cases.append({"kind": kind, "ranks": ranks, "chunks": chunks, "micro_batches": micro_batches, "actions": lists})

    for ranks, micro_batches in ONE_CHUNK:
        add("gpipe", ranks, 1, micro_batches, recorded(schedules.ScheduleGPipe, ranks, micro_batches))
        add("1f1b", ranks, 1, micro_batches, recorded(schedules.Schedule1F1B, ranks, micro_batches))
    for shape in CHUNKS:
        add("interleaved", *shape, planned(schedules.ScheduleInterleaved1F1B, *shape))
    for shape in ((2, 1, 2), (4, 1, 3), (4, 1, 8), *CHUNKS):
        add("zero-bubble", *shape, planned(schedules.ScheduleInterleavedZeroBubble, *shape))
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    made_by = f"tests/golden/make_pipeline_schedules.py, torch {torch.__version__}"
    text = f'{{"made_by":{json.dumps(made_by)},\n"schedules":[\n{lines}\n]}}\n'
    pathlib.Path(__file__).with_name("pipeline_schedules.json").write_text(text)


if __name__ == "__main__":
    main()
