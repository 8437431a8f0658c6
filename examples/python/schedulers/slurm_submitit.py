# SPDX-License-Identifier: Apache-2.0
"""Runs the loop as a job of two tasks by submitit: `python slurm_submitit.py slurm`, or `local` for this host."""
import sys

import cloudpickle
import loop
import submitit


def train_on_task() -> float:
    # Sets torchrun's variables. Under Slurm, Lockstep also reads srun's own.
    submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    return loop.train()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(loop)  # The tasks need not find its file.
    executor = submitit.AutoExecutor(folder="submitit_logs", cluster=sys.argv[1])
    executor.update_parameters(nodes=1, tasks_per_node=2, cpus_per_task=1, timeout_min=60)
    job = executor.submit(train_on_task)
    print(f"loss {job.results()[0]:.6f}")
