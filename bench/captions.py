# SPDX-License-Identifier: Apache-2.0
"""Builds the texts of a report's tables and plots (rounds.py): titles of rows, machine, versions."""
import json

TITLES = {
    "launch": {
        "nothing": "`true`, to the job's end, ms",
        "script": "an empty Python script, the same for all, ms",
        "ready": "until all ranks have joined, ms",
        "ready_end": "to the end of that job, ms",
        "launcher_peak_kib": "the launcher's memory at most, KiB",
    },
    "compile": {"seconds": "user CPU, s", "ratio": "ratio to `torch/torch.h` alone"},
    "python": {
        "mlp": "step of mlp, us",
        "cnn": "step of cnn, us",
        "lm": "step of lm, us",
        "job": "from launch to exit, s",
        "import": "import after torch's, ms",
    },
    "loader": {"step": "a step, us", "ratio": "loader step / resident step"},
    "checkpoint": {
        "save": "save, s",
        "load_warm": "load, warm, s",
        "ready_warm": "ready, warm, s",
        "load_cold": "load, cold, s",
        "ready_cold": "ready, cold, s",
        "async_stall": "an asynchronous save blocks the loop, s",
    },
}
UNITS = {"step": "us", "optimizers": "us", "gpu": "us"}


def report_from(path):
    return json.loads(path.read_text(encoding="utf-8"))


def title_of(benchmark, row):
    """Returns the title of one row of figures, with their unit."""
    if benchmark == "zero":
        return row  # The row already has its unit.
    if benchmark in UNITS:
        return f"{row}, {UNITS[benchmark]}"
    return TITLES[benchmark][row]


def programs_of(values):
    """Returns the programs in {row: {program: figures}}, in order: ours first."""
    longest_first = sorted(values.values(), key=len, reverse=True)
    return list(dict.fromkeys(name for by_program in longest_first for name in by_program))


def machine_of(report):
    """Formats the date, the machine and its load."""
    before, after = report["load"]
    real_time = ", all under `chrt -r 1`" if report["real_time"] else ""
    gpus = f"{report['ranks']} {report['gpu']}; " if "gpu" in report else ""
    return (
        f"{report['rounds']} rounds{real_time}, {report['date'][:10]}; "
        f"{gpus}{report['cores']} cores ({report['cpu']}), load {before:.1f} before and {after:.1f} after"
    )


def versions_of(report):
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)


def repeats_of(report):
    """Yields a sentence for each peer that ran again."""
    for kind, what in (("hangs", "hung"), ("failures", "failed")):
        for name, times in report[kind].items():
            yield f"{name} {what} {times} times and was run again."
