# SPDX-License-Identifier: Apache-2.0
"""Formats a bench's figures: median, least and most of the rounds, and the ratio to Lockstep's."""
import statistics


def spread(figures):
    return statistics.median(figures), min(figures), max(figures)


def text_of(figure):
    """Formats three digits or more: 0.0123, 1.23, 12.3, 12,345."""
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:#.3g}"


def size_text(size):
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def print_table(title, programs):
    """Prints a line for each of {program: figures}, with its ratio to the first one, which is ours."""
    print(f"\n{title:40}{'median':>10}{'min':>10}{'max':>10}{'to ours':>10}")
    ours = None
    for program, figures in programs.items():
        middle, least, most = spread(figures)
        ours = ours or middle
        row = "".join(f"{text_of(figure):>10}" for figure in (middle, least, most))
        print(f"{program:40}{row}{text_of(middle / ours):>10}", flush=True)
