#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the records of a run's .wandb file, as wandb's own reader reads them, as one JSON object.

    read_wandb.py DIR     # has wandb/offline-run-*/run-*.wandb
    {"run": {"run_id": "abc", "project": "demo"}, "config": {"lr": 0.1}, "history": [{"_step": 1, "loss": 0.5}],
     "summary": {"loss": 0.5}, "files": ["media/images/a_1_0.png"], "exit": 0, "numbers": [1, 2, 3]}

Numbers JSON has no word for are Python's NaN, Infinity and -Infinity, as strings. Exit code 3: this Python has no wandb
with that reader (0.25 has it, 0.31 does not).
"""
import json
import math
import pathlib
import sys

try:
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
except ImportError as error:
    print(f"{sys.executable} has no reader of wandb: {error}", file=sys.stderr)
    sys.exit(3)


def portable(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def values(items):
    return {item.key: portable(json.loads(item.value_json)) for item in items}


def main():
    (path,) = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb")
    wandb._assert_is_internal_process = True
    store = DataStore()
    store.open_for_scan(str(path))
    found = {"config": {}, "history": [], "summary": {}, "files": [], "exit": None, "numbers": []}
    while True:
        data = store.scan_data()
        if data is None:
            break
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        found["numbers"].append(record.num)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found["run"] = {"run_id": run.run_id, "project": run.project, "display_name": run.display_name,
                            "tags": list(run.tags), "start_s": run.start_time.seconds, "group": run.run_group,
                            "entity": run.entity}
        elif kind == "config":
            found["config"].update(values(record.config.update))
        elif kind == "history":
            found["history"].append({"step": record.history.step.num, **values(record.history.item)})
        elif kind == "summary":
            found["summary"].update(values(record.summary.update))
        elif kind == "files":
            found["files"] += [item.path for item in record.files.files]
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    print(json.dumps(found))


if __name__ == "__main__":
    main()
