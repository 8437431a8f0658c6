#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes config/: files of Accelerate, for the import in lockstep/config.

Run with accelerate 1.15 installed:

    python tests/golden/make_config.py

`basic_*` is output of `accelerate config default` (JSON under any file name); the rest is output of its
questionnaire for the answers below.
"""

import pathlib
import shutil

from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.config.default import write_basic_config

FOLDER = pathlib.Path(__file__).parent / "config"
COMMON = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "no", "use_cpu": False, "debug": False}
TPU_LESS = {"tpu_env": [], "tpu_vm": [], "same_network": True, "downcast_bf16": "no"}
ANSWERS = {
    "multi_cpu": {
        "distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 4, "num_machines": 2, "machine_rank": 1,
        "main_process_ip": "10.0.0.1", "main_process_port": 29501, "mixed_precision": "bf16", "debug": True
    },
    "multi_gpu": {
        "distributed_type": "MULTI_GPU", "num_processes": 2, "gpu_ids": "0,2", "mixed_precision": "fp16",
        "enable_cpu_affinity": True
    },
    "mpirun": {
        "distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 8,
        "mpirun_config": {"mpirun_hostfile": "/etc/hosts.mpi", "mpirun_ccl": "1"}
    },
    "deepspeed_inline": {
        "distributed_type": "DEEPSPEED", "num_processes": 8, "num_machines": 2, "mixed_precision": "bf16",
        "main_process_ip": "node1", "main_process_port": 29500,
        "deepspeed_config": {
            "zero_stage": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
            "offload_optimizer_device": "cpu", "offload_param_device": "none", "zero3_init_flag": False,
            "deepspeed_multinode_launcher": "pdsh", "deepspeed_hostfile": "/job/hostfile",
            "deepspeed_inclusion_filter": "node1:0,1@node2"
        }
    },
    "deepspeed_file": {
        "distributed_type": "DEEPSPEED", "num_processes": 2, "mixed_precision": None,
        "deepspeed_config": {"deepspeed_config_file": "ds_config.json", "zero3_init_flag": False}
    },
    "fsdp": {
        "distributed_type": "FSDP", "num_processes": 2,
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True}
    },
    "tpu": {
        "distributed_type": "XLA", "num_processes": 8, "tpu_name": "my-tpu", "tpu_zone": "eu", "tpu_use_cluster": True
    },
    "fp8": {"distributed_type": "NO", "mixed_precision": "fp8", "fp8_config": {"backend": "TE", "margin": 0}},
    "dynamo": {
        "distributed_type": "NO", "num_processes": 1,
        "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}
    },
}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for precision in ("no", "fp16", "bf16"):
        assert write_basic_config(precision, str(FOLDER / f"basic_{precision}.yaml"))
    for name, answers in ANSWERS.items():
        ClusterConfig(**{**COMMON, **TPU_LESS, **answers}).to_yaml_file(str(FOLDER / f"{name}.yaml"))


if __name__ == "__main__":
    main()
