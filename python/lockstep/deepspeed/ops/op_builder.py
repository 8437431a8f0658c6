# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's builders of kernels, for programs that ask which of them exist. Lockstep builds none at run time."""

from __future__ import annotations

from typing import Any, NoReturn

from ... import _core

# Kernels by the names of DeepSpeed's builders, and whether Lockstep's C++ library has what they do.
_OPS = {
    "AsyncIO": ("async_io", True),
    "CPUAdagrad": ("cpu_adagrad", True),
    "CPUAdam": ("cpu_adam", True),
    "CPULion": ("cpu_lion", True),
    "EvoformerAttn": ("evoformer_attn", False),
    "FPQuantizer": ("fp_quantizer", False),
    "FusedAdam": ("fused_adam", True),
    "FusedLamb": ("fused_lamb", True),
    "FusedLion": ("fused_lion", True),
    "GDS": ("gds", False),
    "Inference": ("transformer_inference", False),
    "InferenceCoreOps": ("inference_core_ops", False),
    "PinMemory": ("pin_memory", False),
    "Quantizer": ("quantizer", False),
    "RaggedUtils": ("ragged_ops", False),
    "RandomLTD": ("random_ltd", False),
    "SparseAttn": ("sparse_attn", False),
    "SpatialInference": ("spatial_inference", False),
    "StochasticTransformer": ("stochastic_transformer", False),
    "Transformer": ("transformer", False),
    "Utils": ("utils", False),
}
compatible_ops = dict(_OPS.values())


class OpBuilder:
    """A kernel of DeepSpeed. Its `load` throws ConfigError."""

    NAME = ""

    def is_compatible(self, verbose: bool = False) -> bool:
        """Returns whether Lockstep has what the kernel does."""
        return compatible_ops.get(self.NAME, False)

    def load(self, verbose: bool = False) -> NoReturn:
        raise _core.ConfigError(
            f"[{type(self).__name__}] Lockstep builds no kernels at run time: "
            + (
                "its C++ library has this one; use the optimizer or key of the file that needs it"
                if self.is_compatible()
                else "it lacks this one; remove what needs it"
            )
        )


_BUILDERS = {f"{name}Builder": type(f"{name}Builder", (OpBuilder,), {"NAME": op}) for name, (op, _) in _OPS.items()}
__all__ = ["OpBuilder", "compatible_ops", *_BUILDERS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _BUILDERS:
        return _BUILDERS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
