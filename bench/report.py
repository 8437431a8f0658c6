#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates the figures of docs/benchmarks.md from the reports of the benches.

Copies the reports in build/bench (or another folder) to docs/benchmarks, to be committed. Draws the plots
in docs/plots from all reports there (plots.py, in the peers' Python). Replaces the text between
`<!-- generated: NAME -->` and `<!-- end -->` in docs/benchmarks.md by the table of NAME.json, its plot, its
machine and versions. Sections without a report stay as they are.
"""
import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from captions import machine_of, programs_of, repeats_of, report_from, title_of, versions_of
from peers import ROOT, own_python
from tables import size_text, spread, text_of


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build/bench", help="folder of the reports (default build/bench)")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of benchmarks.md (default docs)")
    parser.add_argument("--peers-python", type=Path, default=None, help="a Python with matplotlib (default: build/bench-peers)")
    return parser.parse_args()


def markdown(rows):
    """Formats a table, whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def cell(figures, ours):
    """Formats the median (least to most), and, for peers, the ratio to ours."""
    if figures is None:
        return ""
    middle, least, most = spread(figures)
    ratio = "" if figures is ours else f", {text_of(middle / spread(ours)[0])}"
    return f"{text_of(middle)} ({text_of(least)} to {text_of(most)}){ratio}"


def table(benchmark, values):
    """Formats programs as columns, or as rows if there are more programs than measurements."""
    programs = programs_of(values)
    cells = {
        (row, program): cell(by_program.get(program), next(iter(by_program.values())))
        for row, by_program in values.items()
        for program in programs
    }
    titles = {row: title_of(benchmark, row) for row in values}
    if len(programs) <= len(values):
        return markdown([["", *programs], *([titles[row], *(cells[row, each] for each in programs)] for row in values)])
    return markdown([["", *titles.values()], *([each, *(cells[row, each] for row in values)] for each in programs)])


def collectives_cell(by_program):
    """Formats the median (least to most) of ours, and the ratios of the peers to it."""
    ours, *peers = by_program
    ratios = ", ".join(text_of(spread(by_program[peer])[0] / spread(by_program[ours])[0]) for peer in peers)
    return cell(by_program[ours], by_program[ours]) + (f"; {ratios}" if ratios else "")


def collectives_table(by_operation):
    """Formats operations as rows, sizes as columns."""
    sizes = list(next(iter(by_operation.values())))
    head = ["us", *(size_text(int(size)) for size in sizes)]
    return markdown([head, *([name, *map(collectives_cell, by_size.values())] for name, by_size in by_operation.items())])


def generated(name, report):
    """Returns the text between the markers of `name`."""
    values, benchmark = report["values"], report["benchmark"]
    parts = []
    if benchmark == "collectives":
        for ranks, by_operation in values.items():
            parts += [f"{ranks} ranks:", collectives_table(by_operation), f"![{ranks} ranks](plots/{name}_{ranks}_ranks.svg)"]
    else:
        parts += [table(benchmark, values), f"![{benchmark}](plots/{name}.svg)"]
    taken = f"`./dev bench {benchmark}`: {machine_of(report)}; {versions_of(report)}."
    parts.append("\n".join([taken, *repeats_of(report)]))
    return "\n\n".join(parts)


def write_page(page, reports):
    text = page.read_text(encoding="utf-8")
    for name, report in reports.items():
        found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        if found:
            text = text[: found.start(1)] + generated(name, report) + "\n" + text[found.end(1) :]
        else:
            print(f"report: {page} has no section for {name}; add <!-- generated: {name} --> and <!-- end -->", file=sys.stderr)
    page.write_text(text, encoding="utf-8")


def main():
    options = parse_arguments()
    kept = options.docs / "benchmarks"
    kept.mkdir(exist_ok=True)
    for path in options.folder.glob("*.json"):
        shutil.copy(path, kept)
    reports = {path.stem: report_from(path) for path in sorted(kept.glob("*.json"))}
    python = options.peers_python or own_python()
    subprocess.run([str(python), str(ROOT / "bench/plots.py"), str(kept), str(options.docs / "plots")], check=True)
    write_page(options.docs / "benchmarks.md", reports)
    print(f"{options.docs / 'benchmarks.md'}: {', '.join(reports) or 'no reports'}")


if __name__ == "__main__":
    main()
