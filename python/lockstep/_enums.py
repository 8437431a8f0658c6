# SPDX-License-Identifier: Apache-2.0
"""Enumerations of Accelerate, with its values, and the base class of keyword handlers."""

from __future__ import annotations

import copy
import enum
from typing import Any

from ._environment import clear_environment


# The names of backends of torch.distributed that a program may pass; Lockstep selects the transports itself.
BACKENDS = (None, "nccl", "gloo", "lockstep", "cuda:nccl,cpu:gloo", "cpu:lockstep,cuda:nccl")


class _ContainsValues(enum.EnumMeta):
    """Lets `value in Class` accept a value or a member, without an exception for other types."""

    def __contains__(cls, item: Any) -> bool:
        try:
            cls(item)
        except ValueError:
            return False
        return True


class BaseEnum(enum.Enum, metaclass=_ContainsValues):
    """An enumeration of texts: str(member) is its value."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def list(cls) -> list[str]:
        """Returns the values of all members."""
        return [str(member) for member in cls]


class DistributedType(str, enum.Enum):
    """How processes train together. Lockstep sets NO, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    TPU = "XLA"  # Another name of XLA, of Accelerate 0.24.
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


class SageMakerDistributedType(str, enum.Enum):
    """How SageMaker distributes training. Lockstep never sets it."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class FP8BackendType(str, enum.Enum):
    """The packages that train in fp8. Lockstep uses none of them."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class ComputeEnvironment(str, enum.Enum):
    """Where a job runs. Lockstep supports LOCAL_MACHINE, which includes clusters."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class DynamoBackend(str, BaseEnum):
    """The backends of torch.compile, in upper case."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


class LoggerType(BaseEnum):
    """The trackers that Accelerate knows. `lockstep.tracking` says which of them Lockstep has."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class PrecisionType(str, BaseEnum):
    """The values of Accelerator's mixed_precision. Lockstep supports no, fp16 and bf16."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(BaseEnum):
    """The random generators that processes can synchronize. Lockstep supports torch, cuda and generator."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class CustomDtype(enum.Enum):
    """Types of elements that torch has no dtype for, in sizes of models."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class DDPCommunicationHookType(BaseEnum):
    """The compression of gradients for communication."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class KwargsHandler:
    """Base of dataclasses that hold keyword arguments."""

    def to_dict(self) -> dict[str, Any]:
        """Returns a deep copy of the fields."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """Returns the fields that differ from those of an object created without arguments or variables."""
        with clear_environment():
            defaults = self.__class__().to_dict()
        return {key: value for key, value in self.to_dict().items() if key not in defaults or defaults[key] != value}
