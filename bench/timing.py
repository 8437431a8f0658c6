# SPDX-License-Identifier: Apache-2.0
"""Timers of the peers' Python programs; the same as timing.h."""
import time


def seconds_of(operation, times):
    began = time.perf_counter()
    for _ in range(times):
        operation()
    return time.perf_counter() - began


def step_microseconds(step, steps, finish=lambda: None):
    """Of one of `steps` steps in the mean, after a few to warm up. `finish` waits for what a step has left to a device."""
    seconds_of(step, min(max(steps // 5, 3), 50))
    finish()
    return seconds_of(lambda: (seconds_of(step, steps), finish()), 1) * 1e6 / steps


def microseconds(operation, seconds, slowest, barrier):
    """Of one operation among as many as take `seconds`, back to back. `slowest` is the largest of all ranks' values."""
    seconds_of(operation, 2)
    once = slowest(seconds_of(operation, 3) / 3)
    times = int(seconds / once) + 2
    barrier()
    return slowest(seconds_of(operation, times) / times) * 1e6
