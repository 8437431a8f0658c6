# SPDX-License-Identifier: Apache-2.0
"""Draws reports as SVG, for report.py: plots.py FOLDER_OF_REPORTS FOLDER_OF_PLOTS

Bars of medians, with whiskers from least to most, a panel for each row of figures; collectives as lines of
time by size. The same report makes the same file, byte for byte.
"""
import io
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "lockstep",
        "svg.fonttype": "none",  # Text stays text: small files.
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
    }
)

from captions import machine_of, programs_of, report_from, title_of  # noqa: E402
from matplotlib import pyplot, ticker  # noqa: E402
from tables import size_text, spread, text_of  # noqa: E402

OURS, OTHERS = "#1f5fa8", "#a8a8a8"
LINES = {"lockstep": OURS, "gloo": "#d9822b", "openmpi": "#3a8f4c"}
WIDTH, MOST_COLUMNS = 10, 3
LOG_FROM = 30  # Bars that differ by more than this factor have a logarithmic axis.


def slim(text):
    """Halves an SVG: removes comments, metadata and names of groups, and rounds coordinates to two digits."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|(?<=<g) id=\"[^\"]*\"", "", text, flags=re.DOTALL)
    shorter = lambda tag: re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag[0])  # noqa: E731
    text = re.sub(r"<[^>]*>", shorter, text)  # Text between tags has the figures, which stay exact.
    text = re.sub(r" ?\n(?=[LzQC] ?|\")", " ", text)  # A path on one line.
    return re.sub(r"\n\s+", "\n", text)


def save(figure, path, report):
    # SVG text has no code marks.
    figure.supxlabel(machine_of(report).replace("`", ""), fontsize=8, color="#555555")
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    path.write_text(slim(drawn.getvalue()), encoding="utf-8")
    pyplot.close(figure)


def grid(panels, height):
    """Returns a figure of `panels` axes, each `height` inches high, and those axes."""
    columns = min(MOST_COLUMNS, panels)
    rows = -(-panels // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(WIDTH, rows * height + 0.5), squeeze=False, layout="constrained")
    for unused in axes.flat[panels:]:
        unused.set_axis_off()
    return figure, axes.flat[:panels]


def bars(axes, title, by_program, programs):
    """Draws one panel. Lockstep's bars are blue; a program without figures leaves a gap."""
    spreads = {name: spread(by_program[name]) for name in programs if name in by_program}
    medians = [middle for middle, _, _ in spreads.values()]
    log = max(medians) > LOG_FROM * min(medians)
    most = max(most for _, _, most in spreads.values())
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(least for _, least, _ in spreads.values()) / 2, most * 8)
    else:
        axes.set_xlim(0, most * 1.3)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.minorticks_off()
    axes.set_title(title, fontsize=9)
    for place, name in enumerate(programs):
        if name in spreads:
            middle, least, most = spreads[name]
            axes.barh(place, middle, color=OURS if name.startswith("lockstep") else OTHERS)
            axes.errorbar(middle, place, xerr=[[middle - least], [most - middle]], color="black", capsize=2, linewidth=0.8)
            axes.annotate(text_of(middle), (most, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(programs)))
    axes.set_ylim(len(programs) - 0.5, -0.5)


def draw_bars(report, path):
    values = report["values"]
    programs = programs_of(values)
    figure, panels = grid(len(values), 0.6 + 0.24 * len(programs))
    for number, (axes, (row, by_program)) in enumerate(zip(panels, values.items())):
        bars(axes, title_of(report["benchmark"], row).replace("`", ""), by_program, programs)
        axes.set_yticklabels(programs if number % MOST_COLUMNS == 0 else [])
    save(figure, path, report)


def line(axes, by_size, program, **look):
    sizes = [int(size) for size, by_program in by_size.items() if program in by_program]
    spreads = [spread(by_program[program]) for by_program in by_size.values() if program in by_program]
    if sizes:
        down, up = [m - least for m, least, _ in spreads], [most - m for m, _, most in spreads]
        axes.errorbar(sizes, [m for m, _, _ in spreads], yerr=[down, up], marker="o", markersize=3, linewidth=1.2, **look)


def draw_lines(report, by_operation, path):
    """Draws time by size, both logarithmic. Operations without a peer are in the panel of a similar one."""
    shown = [name for name, by_size in by_operation.items() if len(next(iter(by_size.values()))) > 1]
    figure, panels = grid(len(shown), 2.6)
    for axes, name in zip(panels, shown):
        for program, colour in LINES.items():
            line(axes, by_operation[name], program, color=colour, label=program)
        if name == "all_reduce":
            line(axes, by_operation["all_reduce_in_place"], "lockstep", color=OURS, linestyle=":", label="lockstep, in place")
        line(axes, by_operation["memcpy"], "lockstep", color=OTHERS, linestyle="--", label="memcpy")
        sizes = [int(size) for size in by_operation[name]]
        axes.set(xscale="log", yscale="log", title=name)
        axes.set_xticks(sizes, [size_text(size) for size in sizes], fontsize=7)
        axes.minorticks_off()
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_ylabel("us", fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    save(figure, path, report)


def main():
    reports, plots = map(Path, sys.argv[1:])
    plots.mkdir(parents=True, exist_ok=True)
    for source in sorted(reports.glob("*.json")):
        report = report_from(source)
        if report["benchmark"] == "collectives":
            for ranks, by_operation in report["values"].items():
                draw_lines(report, by_operation, plots / f"{source.stem}_{ranks}_ranks.svg")
        else:
            draw_bars(report, plots / f"{source.stem}.svg")


if __name__ == "__main__":
    main()
