# SPDX-License-Identifier: Apache-2.0
"""The trackers of the C++ library from Python: MLflow with its real server, wandb with its reader, exec, jsonl."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import numpy
import pytest
import torch

from lockstep import Accelerator, tracking
from lockstep._core import ConfigError
from lockstep.utils import ProjectConfiguration

from deepspeed_engines import start, update

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# A Python with mlflow and wandb: `./dev test` sets build/trackers, which scripts/bootstrap makes.
TRACKER_PYTHON = os.environ.get("LOCKSTEP_TRACKER_PYTHON", sys.executable)
LIMIT_S = 120


def has(package: str) -> bool:
    command = [TRACKER_PYTHON, "-c", f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{package}'))"]
    return subprocess.run(command, check=False).returncode == 0


def read_wandb(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the offline run in a folder, by wandb's own reader. Skips the test without it."""
    if not has("wandb.sdk.internal.datastore"):
        pytest.skip("no reader of wandb; set LOCKSTEP_TRACKER_PYTHON to a Python with wandb 0.25")
    script = REPOSITORY / "tests/tracking/read_wandb.py"
    return json.loads(subprocess.check_output([TRACKER_PYTHON, script, folder]))


def has_summary_writer() -> bool:
    """Returns whether torch's writer of TensorBoard can be used here."""
    return importlib.util.find_spec("tensorboard") is not None


def wait_until(condition):
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "the time is over"
        time.sleep(0.1)
    return found


class Server:
    """A real `mlflow server` on SQLite."""

    def __init__(self, folder: pathlib.Path, options: tuple[str, ...] = ()):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [TRACKER_PYTHON, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.folder}/runs.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1", *self.options]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(self.is_up)

    def is_up(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return urllib.request.urlopen(self.uri + "/health", timeout=LIMIT_S).status == 200
        except OSError:
            return False

    def stop(self):
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None

    def ask(self, path, data=None):
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def runs(self, experiment):
        try:
            found = self.ask(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]["experiment_id"]
        except urllib.error.HTTPError:  # There is none yet.
            return []
        return self.ask("runs/search", {"experiment_ids": [found]}).get("runs", [])

    def metric(self, run, key):
        history = self.ask(f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={key}&max_results=5000")
        return [(metric["step"], metric["value"]) for metric in history.get("metrics", [])]


@pytest.fixture
def server(tmp_path, monkeypatch):
    if not has("mlflow.server"):
        pytest.skip("no mlflow; set LOCKSTEP_TRACKER_PYTHON to a Python with it")
    server = Server(tmp_path / "server")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    yield server
    server.stop()


def test_mlflow_stores_a_run_of_all_kinds(server, tmp_path):
    server.start()
    accelerator = Accelerator(cpu=True, log_with="mlflow", project_dir=tmp_path)
    accelerator.init_trackers(
        "demo", {"lr": 0.1, "model": {"depth": 3}}, {"mlflow": {"run_name": "first", "tags": {"team": "a"}}}
    )
    for step in range(1200):
        accelerator.log({"loss": 1 / (step + 1)}, step=step)
    accelerator.log({"train/loss": float("nan"), "up": float("inf"), "note": "hello"}, step=7)
    tracker = accelerator.get_tracker("mlflow")
    tracker.log_images({"samples": [numpy.full((2, 3, 3), 7, dtype="uint8")] * 2}, step=7)
    tracker.log_histograms({"w": torch.arange(4.0)}, step=7)
    (tmp_path / "weights.bin").write_bytes(b"\0\1")
    tracker.log_artifact(tmp_path / "weights.bin", "models")
    wait_until(lambda: list(server.folder.glob("artifacts/*/*/artifacts/models/weights.bin")))  # Is sent last.
    accelerator.end_training()
    (run,) = server.runs("demo")
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == "first"
    assert {item["key"]: item["value"] for item in run["data"]["params"]} == {"lr": "0.1", "model.depth": "3"}
    assert {item["key"]: item["value"] for item in run["data"]["tags"]}["team"] == "a"
    history = server.metric(run, "loss")
    assert sorted(history) == [(step, 1 / (step + 1)) for step in range(1200)]
    assert server.metric(run, "train/loss") == [(7, "NaN")]
    assert server.metric(run, "up") == [(7, sys.float_info.max)]
    (files,) = (server.folder / "artifacts").glob("*/*/artifacts")
    found = sorted(str(path.relative_to(files)) for path in files.rglob("*") if path.is_file())
    assert found == [
        "config.json",
        "histograms/w/7.json",
        "images/samples/7_0.png",
        "images/samples/7_1.png",
        "models/weights.bin",
        "text/note/7.txt",
    ]
    assert (files / "models/weights.bin").read_bytes() == b"\0\1"
    assert (files / "text/note/7.txt").read_text() == "hello"
    assert list(tmp_path.glob("mlflow-*")) == []


LOAD_TABLE = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
table = client.load_table(sys.argv[2], sys.argv[3])
print(json.dumps({name: [None if value != value else value for value in table[name]] for name in table}))
"""


def test_mlflow_loads_tables_by_its_own_reader(server, tmp_path):
    server.start()
    accelerator = Accelerator(cpu=True, log_with="mlflow", project_dir=tmp_path)
    accelerator.init_trackers("demo")
    tracker = accelerator.get_tracker("mlflow")
    tracker.log_table("val/answers", columns=["text", "score"], data=[["yes", 0.5], ["no", float("nan")]], step=3)
    tracker.log_table("counts", columns=["n"], data=numpy.array([[1], [2]]), step=3)
    accelerator.end_training()
    (run,) = server.runs("demo")
    for path, table in [
        ("tables/val/answers/3.json", {"text": ["yes", "no"], "score": [0.5, None]}),
        ("tables/counts/3.json", {"n": [1, 2]}),
    ]:
        command = [TRACKER_PYTHON, "-c", LOAD_TABLE, server.uri, run["info"]["experiment_id"], path]
        assert json.loads(subprocess.check_output(command)) == table


PROGRAM = """
import os, signal, sys
from lockstep import tracking
from lockstep.state import PartialState
PartialState(cpu=True)
tracker = tracking.MLflowTracker("demo", sys.argv[1])
tracker.start()
tracker.store_init_configuration({"lr": 0.1})
for step in range(500):
    tracker.log({"loss": 0.5}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_mlflow_gets_the_values_of_a_killed_run_from_the_next_one(server, tmp_path):
    """The server is away during the first run, and comes back during the second."""
    spool = tmp_path / "spool"
    killed = subprocess.run([sys.executable, "-c", PROGRAM, spool], check=False)
    assert killed.returncode == -9
    tracker = tracking.MLflowTracker("demo", spool)
    Accelerator(cpu=True)
    tracker.start()
    tracker.log({"loss": 1.5}, step=0)
    server.start()
    runs = wait_until(lambda: len(found := server.runs("demo")) == 2 and found)
    histories = wait_until(
        lambda: sorted(map(len, found := [server.metric(run, "loss") for run in runs])) == [1, 500] and found
    )
    assert sorted(max(histories, key=len)) == [(step, 0.5) for step in range(500)]
    tracker.finish()


def test_mlflow_needs_a_server(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    accelerator = Accelerator(cpu=True, log_with="mlflow", project_dir=tmp_path)
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI"):
        accelerator.init_trackers("demo")
    with pytest.raises(ConfigError, match="nested_run is not supported"):
        tracking.MLflowTracker(nested_run=True)


def test_wandb_writes_an_offline_run(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="wandb")
    accelerator.init_trackers("demo", {"lr": 0.1}, {"wandb": {"name": "first", "dir": str(tmp_path), "id": "abc"}})
    accelerator.log({"loss": 0.5, "note": "hello", "lr": {"a": 1, "b": 2}}, step=3)
    tracker = accelerator.get_tracker("wandb")
    tracker.log_images({"samples": torch.zeros(2, 3, 4, 5)}, step=3)
    assert accelerator.get_tracker("wandb", unwrap=True).id == "abc"
    folder = pathlib.Path(tracker.run.dir)
    accelerator.end_training()
    assert sorted(path.name for path in folder.rglob("*.png")) == ["samples_3_0.png", "samples_3_1.png"]
    found = read_wandb(tmp_path)
    assert found["run"]["project"] == "demo" and found["config"] == {"lr": 0.1} and found["exit"] == 0
    first = {key: value for key, value in found["history"][0].items() if not key.startswith("_")}
    assert first == {"step": 3, "loss": 0.5, "lr/a": 1, "lr/b": 2}
    assert found["summary"]["note"] == "hello"


@pytest.mark.parametrize("logging_dir", [False, True])
def test_files_are_in_the_projects_folder(tmp_path, logging_dir):
    """A second project does not append to the files of the first."""
    runs = tmp_path / ("logs" if logging_dir else "runs")
    config = ProjectConfiguration(project_dir=tmp_path / "runs", logging_dir=runs if logging_dir else None)
    for value, project in enumerate(("first", "group/second")):
        accelerator = Accelerator(cpu=True, log_with=["csv", "jsonl", "tensorboard"], project_config=config)
        accelerator.init_trackers(project, {"lr": 0.1})
        accelerator.log({"loss": value, "note": "hello"}, step=1)
        if has_summary_writer():
            accelerator.get_tracker("tensorboard").log_images({"a": torch.zeros(1, 3, 2, 2)}, step=1)
        accelerator.end_training()
        folder = runs / project
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert lines[0]["config"] == {"lr": 0.1} and lines[1]["loss"] == value and lines[2]["text"] == {"note": "hello"}
        assert float((folder / "loss.csv").read_text().splitlines()[-1].split(",")[-1]) == value
        assert len(list(folder.glob("events.out.tfevents.*"))) == 1
        assert not has_summary_writer() or list(folder.glob("media/events.out.tfevents.*"))
    assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == ["first", "group"]
    for name in ("..", "/tmp/x", ""):
        with pytest.raises(ConfigError, match="project_name must name a folder in"):
            Accelerator(cpu=True, log_with="csv", project_dir=tmp_path).init_trackers(name)


def test_a_program_that_only_logs_writes_to_the_folder_logs(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    accelerator.log({"loss": 0.5, "ema_decay": None}, step=1)  # None: there is no value yet, as in Accelerate.
    accelerator.end_training()
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text()
    assert '"loss":' in lines and "ema_decay" not in lines


@pytest.mark.parametrize("logging_dir", [False, True])
def test_wandb_writes_below_the_projects_folder(tmp_path, monkeypatch, logging_dir):
    monkeypatch.chdir(tmp_path)
    config = ProjectConfiguration(project_dir="runs", logging_dir="logs" if logging_dir else None)
    for project in ("first", "group/second"):
        accelerator = Accelerator(cpu=True, log_with="wandb", project_config=config)
        accelerator.init_trackers(project)
        accelerator.log({"loss": 0.5}, step=1)
        folder = pathlib.Path(accelerator.get_tracker("wandb").run.dir).resolve()
        accelerator.end_training()
        expected = tmp_path / ("logs" if logging_dir else "runs") / project / "wandb"
        assert folder.parent == expected and list(folder.glob("run-*.wandb"))
    assert not list(tmp_path.glob("wandb")) and len(list(tmp_path.rglob("run-*.wandb"))) == 2
    for name in ("..", "/tmp/x", ""):
        with pytest.raises(ConfigError, match="project_name must name a folder in"):
            accelerator.init_trackers(name)


def test_wandb_without_a_project_folder_writes_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    accelerator = Accelerator(cpu=True, log_with="wandb")
    accelerator.init_trackers("demo")
    accelerator.end_training()
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "other"))
    accelerator = Accelerator(cpu=True, log_with="wandb", project_dir=tmp_path / "runs")
    accelerator.init_trackers("demo")
    accelerator.end_training()
    assert list(tmp_path.glob("other/wandb/offline-run-*/run-*.wandb")) and not list(tmp_path.rglob("demo"))


class Frame:
    """Stands in for a pandas.DataFrame, with the members that log_table uses."""

    columns = ["text", "score"]
    rows = numpy.array([["yes", 0.5]], dtype=object)

    def __getitem__(self, names):
        assert names == self.columns
        return self

    def astype(self, kind):
        assert kind is object
        return self

    @property
    def values(self):
        return self.rows


@pytest.mark.parametrize(
    "table",
    [
        {"columns": ["text", "score"], "data": [["yes", 0.5]]},
        {"columns": ("text", "score"), "data": [("yes", torch.tensor(0.5))]},
        {"columns": ["text", "score"], "data": numpy.array([["yes", 0.5]], dtype=object)},
        {"dataframe": Frame()},
        {"data": Frame()},
    ],
)
def test_wandb_stores_tables(tmp_path, table):
    Accelerator(cpu=True)
    tracker = tracking.WandBTracker("demo", dir=str(tmp_path))
    tracker.start()
    tracker.log_table("val/answers", step=3, **table)
    path = pathlib.Path(tracker.run.dir) / "files/media/table/val/answers_3.table.json"
    assert json.loads(path.read_text()) == {"columns": ["text", "score"], "data": [["yes", 0.5]]}
    tracker.finish()


def test_tables_that_cannot_be_stored_are_refused(tmp_path):
    accelerator = Accelerator(cpu=True, log_with=["jsonl", "csv"], project_dir=tmp_path)
    accelerator.init_trackers("demo")
    tracker = accelerator.get_tracker("jsonl")
    for table, message in [
        ({"columns": ["a"]}, "needs data or dataframe"),
        ({"data": [[1]]}, "the columns of the table 't' are missing"),
        ({"columns": ["a"], "data": [[object()]]}, "of type object; expected None"),
        ({"columns": ["a"], "data": numpy.array([["2026-01-01"]], "datetime64[ns]")}, "of type datetime64; expected None"),
        ({"columns": ["a", "b"], "data": [[1]]}, "has a row 0 of 1 cells; expected 2"),
    ]:
        with pytest.raises(ConfigError, match=message):
            tracker.log_table("t", **table)
    with pytest.raises(ConfigError, match="tracker 'csv' stores no tables"):
        accelerator.get_tracker("csv").log_table("t", columns=["a"], data=[[1]])
    accelerator.end_training()


def test_an_engine_writes_an_offline_run_of_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    engine, *_ = start(wandb={"enabled": True, "group": "sweep", "team": "vision", "project": "demo"})
    losses = [update(engine, step) for step in range(2)]
    engine.destroy()
    found = read_wandb(tmp_path)
    assert (found["run"]["project"], found["run"]["group"], found["run"]["entity"]) == ("demo", "sweep", "vision")
    rows = [{key: value for key, value in row.items() if key[0] != "_"} for row in found["history"]]
    name = "Train/Samples/"
    assert rows == [
        {"step": 4 * (step + 1), name + "train_loss": pytest.approx(loss), name + "lr": 0.01}
        for step, loss in enumerate(losses)
    ]
    assert found["summary"][name + "lr"] == 0.01 and found["exit"] == 0


def test_wandb_refuses_what_it_cannot_do():
    with pytest.raises(ConfigError, match="expected mode='offline'"):
        tracking.WandBTracker("demo", mode="online")
    with pytest.raises(ConfigError, match="unknown options \\['sync_tensorboard'\\]"):
        tracking.WandBTracker("demo", sync_tensorboard=True)
    with pytest.raises(ConfigError, match="the tracker is not open"):
        tracking.WandBTracker("demo").log({"loss": 1})


def test_exec_feeds_a_program_and_get_tracker_finds_it(tmp_path):
    output = tmp_path / "output"
    accelerator = Accelerator(cpu=True, log_with=[f"exec:cat > {output}", "jsonl"], project_dir=tmp_path)
    accelerator.init_trackers("demo", {"lr": 0.1})
    accelerator.log({"loss": 0.5, "note": "hello"}, step=3)
    accelerator.get_tracker("exec").log_histograms({"w": torch.arange(3.0)}, step=4)
    with pytest.raises(ConfigError, match="tracker 'jsonl' stores no images"):
        accelerator.get_tracker("jsonl").log_images({"a": torch.zeros(1, 1, 2, 2)})
    accelerator.end_training()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert lines[0]["config"] == {"lr": 0.1} and lines[1]["loss"] == 0.5 and lines[2]["text"] == {"note": "hello"}
    assert lines[3]["histograms"]["w"]["count"] == 3 and lines[4]["status"] == "finished"


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (torch.zeros(2, 3, 4, 5), (2, 3, 4, 5)),
        ([torch.zeros(3, 4, 5)] * 2, (2, 3, 4, 5)),
        ([numpy.zeros((4, 5, 3))] * 2, (2, 3, 4, 5)),
        ([numpy.zeros((4, 5))], (1, 1, 4, 5)),
        (numpy.zeros((2, 4, 5, 3)), (2, 3, 4, 5)),
    ],
)
def test_images_are_batches_or_lists(images, shape):
    assert tracking._batch("a", images, None).shape == shape
    if isinstance(images, torch.Tensor):
        assert tracking._batch("a", images.permute(0, 2, 3, 1), "NHWC").shape == shape


def test_images_of_different_sizes_are_refused():
    with pytest.raises(ConfigError, match="'a' have the shapes"):
        tracking._batch("a", [torch.zeros(3, 4, 4), torch.zeros(3, 5, 5)], None)
