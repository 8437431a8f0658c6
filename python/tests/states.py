# SPDX-License-Identifier: Apache-2.0
"""The state that Accelerators of a process share, for tests that create several of them."""

from __future__ import annotations

from lockstep.state import AcceleratorState, GradientState


def forget_accelerators(and_connection: bool = False) -> None:
    """Resets the state, so that the next Accelerator may have other options. Also disconnects if `and_connection`."""
    GradientState._reset_state()
    AcceleratorState._reset_state(and_connection)
