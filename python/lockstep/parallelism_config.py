# SPDX-License-Identifier: Apache-2.0
"""Accelerate's module of ParallelismConfig, whose constructor throws ConfigError."""

from .utils.dataclasses import ParallelismConfig

__all__ = ["ParallelismConfig"]
