# SPDX-License-Identifier: Apache-2.0
"""How the reductions of c10d are computed: most by the core, the others from all ranks' values."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from .. import _core

_RedOp: Any = ReduceOp.RedOpType  # Its type lacks the enumerators.
_CORE_OPS = {
    _RedOp.SUM: _core.ReduceOp.SUM,
    _RedOp.PREMUL_SUM: _core.ReduceOp.SUM,
    _RedOp.AVG: _core.ReduceOp.AVG,
    _RedOp.PRODUCT: _core.ReduceOp.PRODUCT,
    _RedOp.MIN: _core.ReduceOp.MIN,
    _RedOp.MAX: _core.ReduceOp.MAX,
}
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _RedOp.BAND: torch.bitwise_and,
    _RedOp.BOR: torch.bitwise_or,
    _RedOp.BXOR: torch.bitwise_xor,
}
_PAIRWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **_BITWISE,
    _RedOp.SUM: torch.add,
    _RedOp.PRODUCT: torch.mul,
    _RedOp.MIN: torch.minimum,
    _RedOp.MAX: torch.maximum,
}
_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_INTEGERS = {torch.uint8, torch.int8, torch.int32, torch.int64}
# A bool is 0 or 1, so these are logical or and logical and.
_BOOL_OPS = {
    _RedOp.SUM: _core.ReduceOp.MAX,
    _RedOp.MAX: _core.ReduceOp.MAX,
    _RedOp.BOR: _core.ReduceOp.MAX,
    _RedOp.PRODUCT: _core.ReduceOp.MIN,
    _RedOp.MIN: _core.ReduceOp.MIN,
    _RedOp.BAND: _core.ReduceOp.MIN,
}


def kind_of(op: Any) -> Any:
    """Returns the enumerator of a ReduceOp, which may have a factor."""
    return getattr(op, "op", op)


def core_op(dtype: torch.dtype, op: Any) -> Any:
    """Returns the core's operation for tensors of this dtype, which it takes as core_view; None: it has none."""
    kind = kind_of(op)
    if dtype in _FLOATS:
        return _CORE_OPS.get(kind)
    if dtype in _INTEGERS:
        return None if kind == _RedOp.AVG or kind == _RedOp.PREMUL_SUM else _CORE_OPS.get(kind)
    if dtype == torch.bool:
        return _BOOL_OPS.get(kind)
    return _CORE_OPS[kind] if dtype.is_complex and kind in (_RedOp.SUM, _RedOp.AVG) else None


def core_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor's memory with a dtype that the core reduces."""
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def factor_of(op: Any) -> Any:
    """Returns the factor by which each rank multiplies its values; None: there is none."""
    return op.factor if kind_of(op) == _RedOp.PREMUL_SUM else None


def fault_of(dtype: torch.dtype, op: Any) -> str | None:
    """Returns why the operation is not defined for the dtype; None: it is."""
    kind, is_real_or_complex = kind_of(op), dtype.is_floating_point or dtype.is_complex
    if kind in _BITWISE and is_real_or_complex:
        expected = "an integer tensor"
    elif kind == _RedOp.PREMUL_SUM and not is_real_or_complex:
        expected = "a floating point tensor"
    elif kind == _RedOp.AVG and dtype == torch.bool:
        expected = "a number"
    elif dtype.is_complex and kind not in (_RedOp.SUM, _RedOp.AVG):
        expected = "a real tensor"
    else:
        return None
    return f"{kind.name} is not defined for {dtype}; expected {expected}"


def reduce_rows(rows: torch.Tensor, op: Any) -> torch.Tensor:
    """Reduces the first dimension, in the order of the ranks."""
    kind, dtype = kind_of(op), rows.dtype
    if dtype.is_floating_point:  # 8-bit values, which torch does not add.
        rows = rows.to(torch.float32)
        if kind == _RedOp.PREMUL_SUM:
            rows = rows * factor_of(op)
    total = rows[0]
    pairwise = _PAIRWISE[_RedOp.SUM if kind in (_RedOp.AVG, _RedOp.PREMUL_SUM) else kind]
    for row in rows[1:]:
        total = pairwise(total, row)
    if kind == _RedOp.AVG:
        total = torch.div(total, len(rows), rounding_mode=None if dtype.is_floating_point else "trunc")
    return total.to(dtype)
