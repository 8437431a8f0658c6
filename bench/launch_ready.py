#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a rank that only joins the others, for bench/launch.py:

    torchrun --nproc-per-node 2 bench/launch_ready.py torch|accelerate

Prints a JSON line once all ranks have joined: the time (CLOCK_MONOTONIC), and the launcher's peak
memory. launch_ready.cpp does the same.
"""
import json
import os
import sys
import time


def peak_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def main():
    if sys.argv[1] == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        size, end = dist.get_world_size(), dist.destroy_process_group
    else:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        accelerator.wait_for_everyone()
        size, end = accelerator.num_processes, accelerator.end_training
    ready = time.monotonic()
    line = {"ready": ready, "ranks": size, "launcher_peak_kib": peak_kib(os.getppid())}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    end()


if __name__ == "__main__":
    main()
