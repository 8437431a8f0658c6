# SPDX-License-Identifier: Apache-2.0
"""Functions that report which packages and devices are available. None of them imports the package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from .._core import ConfigError
from .._enums import DistributedType
from .._environment import is_cuda_available
from ..state import AcceleratorState
from .environment import check_cuda_fp8_capability, parse_flag_from_env
from .versions import compare_versions, is_torch_version


@lru_cache
def _has_package(module: str, *distributions: str) -> bool:
    """Returns whether `module` can be imported and one of `distributions` (default: `module`) is installed."""
    if importlib.util.find_spec(module) is None:
        return False
    for distribution in distributions or (module,):
        try:
            importlib.metadata.distribution(distribution)
            return True
        except importlib.metadata.PackageNotFoundError:
            continue
    return False


def _package_check(module: str, *distributions: str) -> Callable[[], bool]:
    def is_available() -> bool:
        return _has_package(module, *distributions)

    is_available.__doc__ = f"Returns whether the package {module} is installed."
    return is_available


is_aim_available = _package_check("aim")
is_amdsmi_available = _package_check("amdsmi")
is_boto3_available = _package_check("boto3")
is_clearml_available = _package_check("clearml")
is_comet_ml_available = _package_check("comet_ml")
is_datasets_available = _package_check("datasets")
is_deepspeed_available = _package_check("deepspeed")  # DeepSpeedPlugin does not need it.
is_dvclive_available = _package_check("dvclive")
is_import_timer_available = _package_check("import_timer")
is_lomo_available = _package_check("lomo_optim")
is_matplotlib_available = _package_check("matplotlib")
is_mlflow_available = _package_check("mlflow", "mlflow", "mlflow-skinny")
is_msamp_available = _package_check("msamp", "ms-amp")
is_pandas_available = _package_check("pandas")
is_peft_available = _package_check("peft")
is_pynvml_available = _package_check("pynvml", "pynvml", "nvidia-ml-py")
is_pytest_available = _package_check("pytest")
is_sagemaker_available = _package_check("sagemaker")
is_schedulefree_available = _package_check("schedulefree")
is_swanlab_available = _package_check("swanlab")
is_timm_available = _package_check("timm")
is_torchao_available = _package_check("torchao")
is_torchdata_available = _package_check("torchdata")
is_torchvision_available = _package_check("torchvision")
is_tqdm_available = _package_check("tqdm")
is_trackio_available = _package_check("trackio")
is_transformer_engine_available = _package_check("transformer_engine", "transformer-engine")
is_transformers_available = _package_check("transformers")
is_triton_available = _package_check("triton")
is_wandb_available = _package_check("wandb")


def is_tensorboard_available() -> bool:
    """Returns true: Lockstep writes TensorBoard's files itself."""
    return True


def is_rich_available() -> bool:
    """Returns whether the package rich is installed and ACCELERATE_ENABLE_RICH is true."""
    return _has_package("rich") and parse_flag_from_env("ACCELERATE_ENABLE_RICH", False)


def is_bnb_available(min_version: str | None = None) -> bool:
    """Returns whether bitsandbytes is installed, in at least `min_version`."""
    return _has_package("bitsandbytes") and (min_version is None or compare_versions("bitsandbytes", ">=", min_version))


def is_4bit_bnb_available() -> bool:
    """Returns whether bitsandbytes 0.39 or later is installed."""
    return is_bnb_available("0.39.0")


def is_8bit_bnb_available() -> bool:
    """Returns whether bitsandbytes 0.37.2 or later is installed."""
    return is_bnb_available("0.37.2")


def is_bitsandbytes_multi_backend_available() -> bool:
    """Returns whether bitsandbytes 0.46, which supports several kinds of devices, or later is installed."""
    return is_bnb_available("0.46.0")


def is_torchdata_stateful_dataloader_available() -> bool:
    """Returns whether torchdata 0.8 or later is installed."""
    return is_torchdata_available() and compare_versions("torchdata", ">=", "0.8.0")


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Returns whether numpy is installed, in at least `min_version`."""
    return compare_versions("numpy", ">=", min_version)


def is_weights_only_available() -> bool:
    """Returns whether torch.load can restrict the types that it loads."""
    return is_torch_version(">=", "2.4.0")


def is_torch_distributed_available() -> bool:
    """Returns whether torch was built with torch.distributed. Lockstep does not need it."""
    return torch.distributed.is_available()


def is_rocm_available() -> bool:
    """Returns whether torch was built for ROCm and finds a device."""
    return torch.version.hip is not None and torch.cuda.is_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    """Returns whether Apple's MPS device exists."""
    return is_torch_version(">=", min_version) and torch.backends.mps.is_available()


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Returns whether the device computes in bfloat16. CPUs always do."""
    del ignore_tpu
    return not is_cuda_available() or torch.cuda.is_bf16_supported()


def is_fp16_available() -> bool:
    """Returns whether the device computes in float16. CPUs and CUDA devices do."""
    return not is_mps_available()


def is_fp8_available() -> bool:
    """Returns false: Lockstep does not train in fp8."""
    return False


def _unsupported(name: str) -> Callable[..., bool]:
    def is_available(*args: Any, **kwargs: Any) -> bool:
        del args, kwargs
        return False

    is_available.__doc__ = f"Returns false: Lockstep does not support {name}."
    return is_available


is_habana_gaudi1 = _unsupported("Gaudi")
is_hpu_available = _unsupported("Gaudi")
is_megatron_lm_available = _unsupported("Megatron-LM")
is_mlu_available = _unsupported("Cambricon MLU")
is_musa_available = _unsupported("Moore Threads GPUs")
is_neuron_available = _unsupported("AWS Neuron")
is_npu_available = _unsupported("Ascend NPU")
is_sdaa_available = _unsupported("SDAA")
is_torch_xla_available = _unsupported("TPUs and torch_xla")
is_transformer_engine_mxfp8_available = _unsupported("fp8")
is_pippy_available = _unsupported("pipelines of stages")
is_xccl_available = _unsupported("Intel GPUs")
is_xpu_available = _unsupported("Intel GPUs")


def torchao_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function: it throws ImportError if torchao is not installed."""

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not is_torchao_available():
            raise ImportError(f"{func.__name__} needs the package torchao; run `pip install torchao`")
        return func(*args, **kwargs)

    return wrapper


def deepspeed_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function: it throws ConfigError if an Accelerator without a DeepSpeedPlugin exists."""

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if AcceleratorState._shared_state and AcceleratorState().distributed_type != DistributedType.DEEPSPEED:
            raise ConfigError(f"[{func.__name__}] the Accelerator has no DeepSpeedPlugin; pass deepspeed_plugin=")
        return func(*args, **kwargs)

    return wrapper


__all__ = [name for name in globals() if name.startswith("is_") and name != "is_torch_version"]
__all__ += ["check_cuda_fp8_capability", "deepspeed_required", "torchao_required"]
