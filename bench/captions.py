# SPDX-License-Identifier: Apache-2.0
"""Texts of tables and plots for a report (rounds.py): the titles of its rows, and its machine and versions."""
import json

TITLES = {
    "launch": {
        "nothing": "`true`, to the job's end, ms",
        "script": "an empty Python script, the same for all, ms",
        "ready": "until all ranks have met, ms",
        "ready_end": "to the end of that job, ms",
        "launcher_peak_kib": "the launcher's memory at most, KiB",
    },
    "loader": {"step": "a step, us", "ratio": "loader step / resident step"},
    "checkpoint": {
        "save": "save, s",
        "load_warm": "load, warm, s",
        "ready_warm": "ready, warm, s",
        "load_cold": "load, cold, s",
        "ready_cold": "ready, cold, s",
        "async_stall": "an asynchronous save keeps the loop, s",
    },
}
UNITS = {"step": "us", "optimizers": "us", "gpu": "us"}


def report_from(path):
    return json.loads(path.read_text(encoding="utf-8"))


def title_of(benchmark, row):
    """Of one row of figures, with their unit."""
    if benchmark == "zero":
        return row  # Each says its unit.
    if benchmark in UNITS:
        return f"{row}, {UNITS[benchmark]}"
    return TITLES[benchmark][row]


def programs_of(values):
    """All that are named in {row: {program: figures}}, in order: ours first."""
    longest_first = sorted(values.values(), key=len, reverse=True)
    return list(dict.fromkeys(name for by_program in longest_first for name in by_program))


def machine_of(report):
    """Date, machine, and how busy it was."""
    before, after = report["load"]
    real_time = ", all under `chrt -r 1`" if report["real_time"] else ""
    return (
        f"{report['rounds']} rounds{real_time}, {report['date'][:10]}; "
        f"{report['cores']} cores ({report['cpu']}), load {before:.1f} before and {after:.1f} after"
    )


def versions_of(report):
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)


def repeats_of(report):
    """Peers that had to be run again."""
    for kind, what in (("hangs", "hung"), ("failures", "failed")):
        for name, times in report[kind].items():
            yield f"{name} {what} {times} times and was run again."
