# SPDX-License-Identifier: Apache-2.0
"""Defines timers of the peers' Python programs; the same as in timing.h."""
import time


def seconds_of(operation, times):
    began = time.perf_counter()
    for _ in range(times):
        operation()
    return time.perf_counter() - began


def step_microseconds(step, steps, finish=lambda: None):
    """Returns the mean time of `steps` steps, after a few to warm up. `finish` waits for the device."""
    seconds_of(step, min(max(steps // 5, 3), 50))
    finish()
    return seconds_of(lambda: (seconds_of(step, steps), finish()), 1) * 1e6 / steps


def microseconds(operation, seconds, slowest, barrier):
    """Returns the mean time of an operation, repeated for `seconds`. `slowest` returns the largest value of all ranks."""
    seconds_of(operation, 2)
    once = slowest(seconds_of(operation, 3) / 3)
    times = int(seconds / once) + 2
    barrier()
    return slowest(seconds_of(operation, times) / times) * 1e6
