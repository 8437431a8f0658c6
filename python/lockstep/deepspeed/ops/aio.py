# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's builder of asynchronous reads and writes, for programs that ask whether it exists."""

from __future__ import annotations

from .op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]
