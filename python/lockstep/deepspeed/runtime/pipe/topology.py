# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.pipe.topology: how the processes of a job are arranged."""

from __future__ import annotations

__all__ = ["PipeDataParallelTopology"]


class PipeDataParallelTopology:
    """`num_pp` stages, each on `num_dp` processes with consecutive numbers."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        self.num_pp = num_pp
        self.num_dp = num_dp

    def world_size(self) -> int:
        return self.num_pp * self.num_dp

    def get_axis_names(self) -> list[str]:
        return ["pipe", "data"]

    def get_dim(self, axis: str) -> int:
        """Returns the size of "pipe" or "data"; 0 for another axis, as DeepSpeed does."""
        return {"pipe": self.num_pp, "data": self.num_dp}.get(axis, 0)

    def get_rank(self, pipe: int, data: int) -> int:
        """Returns the number of the process at these coordinates."""
        return pipe * self.num_dp + data
