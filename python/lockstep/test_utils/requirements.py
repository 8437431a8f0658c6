# SPDX-License-Identifier: Apache-2.0
"""Decorators that skip a test where a package or a device is missing."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..utils import imports
from ..utils.environment import parse_flag_from_env
from ..utils.versions import is_torch_version

Test = TypeVar("Test")

_GPUS = torch.cuda.device_count() if imports.is_cuda_available() else 0


def _require(is_met: bool, what: str) -> Callable[[Test], Test]:
    def decorate(test_case: Test) -> Test:
        return unittest.skipUnless(is_met, f"the test needs {what}")(test_case)  # type: ignore[type-var]

    return decorate


skip = _require(False, "another version")
slow = _require(parse_flag_from_env("RUN_SLOW", False), "the variable RUN_SLOW=1")
require_bnb = _require(imports.is_bnb_available(), "the package bitsandbytes")
require_cpu = _require(_GPUS == 0, "a machine without a GPU")
require_cuda = _require(_GPUS > 0, "a GPU")
require_cuda_or_hpu = require_cuda
require_cuda_or_xpu = require_cuda
require_datasets = _require(imports.is_datasets_available(), "the package datasets")
require_deepspeed = _require(imports.is_deepspeed_available(), "the package deepspeed")
require_fp16 = _require(imports.is_fp16_available(), "a device that computes in float16")
require_huggingface_suite = _require(
    imports.is_transformers_available() and imports.is_datasets_available(), "the packages transformers and datasets"
)
require_matplotlib = _require(imports.is_matplotlib_available(), "the package matplotlib")
require_mlflow = _require(imports.is_mlflow_available(), "the package mlflow")
require_multi_device = _require(_GPUS > 1, "several GPUs")
require_multi_gpu = require_multi_device
require_multi_gpu_or_xpu = require_multi_device
require_non_cpu = require_cuda
require_non_hpu = _require(True, "a device other than Gaudi")
require_non_torch_xla = _require(True, "a device other than a TPU")
require_non_xpu = _require(True, "a device other than an Intel GPU")
require_pandas = _require(imports.is_pandas_available(), "the package pandas")
require_peft = _require(imports.is_peft_available(), "the package peft")
require_schedulefree = _require(imports.is_schedulefree_available(), "the package schedulefree")
require_single_device = _require(_GPUS == 1, "exactly one GPU")
require_single_gpu = require_single_device
require_tensorboard = _require(imports.is_tensorboard_available(), "TensorBoard's files")
require_timm = _require(imports.is_timm_available(), "the package timm")
require_torchvision = _require(imports.is_torchvision_available(), "the package torchvision")
require_transformers = _require(imports.is_transformers_available(), "the package transformers")
require_triton = _require(imports.is_triton_available(), "the package triton")
require_wandb = _require(imports.is_wandb_available(), "the package wandb")
# Devices and methods that Lockstep does not support.
require_fp8 = _require(False, "training in fp8")
require_hpu = _require(False, "Gaudi")
require_mlu = _require(False, "Cambricon MLU")
require_mps = _require(False, "Apple's MPS")
require_multi_xpu = _require(False, "Intel GPUs")
require_musa = _require(False, "Moore Threads GPUs")
require_npu = _require(False, "Ascend NPU")
require_pippy = _require(False, "pipelines of stages")
require_sdaa = _require(False, "SDAA")
require_single_xpu = _require(False, "an Intel GPU")
require_torchao = _require(False, "training in fp8")
require_tpu = _require(False, "a TPU")
require_transformer_engine = _require(False, "training in fp8")
require_transformer_engine_mxfp8 = _require(False, "training in fp8")
require_xpu = _require(False, "an Intel GPU")


def require_torch_min_version(test_case: Any = None, version: str | None = None) -> Any:
    """Skips the test with a torch older than `version`."""
    if test_case is None:
        return lambda one: require_torch_min_version(one, version)
    return _require(version is None or is_torch_version(">=", version), f"torch {version} or later")(test_case)


__all__ = [name for name in globals() if name.startswith("require_")] + ["skip", "slow"]
