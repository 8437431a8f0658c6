# SPDX-License-Identifier: Apache-2.0
"""lockstep.logging and lockstep.tracking: who writes what."""

from __future__ import annotations

import logging

import pytest
from launch import run_ranks

from lockstep import tracking
from lockstep._core import ConfigError
from lockstep.logging import get_logger
from lockstep.state import PartialState
from lockstep.utils import LoggerType

PROGRAM = """
import logging, sys
from lockstep.logging import get_logger
from lockstep.state import PartialState
logging.basicConfig(stream=sys.stdout, format="%(filename)s %(levelname)s %(message)s")
logger = get_logger("test")
state = PartialState()
"""


def test_only_the_main_process_logs_by_default():
    outputs = run_ranks(
        PROGRAM + 'logger.warning("one %s", "text")\nlogger.error("all", main_process_only=False)\nlogger.info("low")',
        2,
    )
    assert outputs == [
        "program.py WARNING [RANK 0] one text\nprogram.py ERROR [RANK 0] all\n",
        "program.py ERROR [RANK 1] all\n",
    ]


def test_processes_log_in_order_to_one_file(tmp_path):
    file = tmp_path / "log"
    run_ranks(
        PROGRAM
        + f'logger.logger.addHandler(logging.FileHandler("{file}"))\n'
        + 'for line in range(3):\n    logger.warning(f"line {line}", in_order=True)',
        3,
    )
    expected = [f"[RANK {rank}] line {line}" for line in range(3) for rank in range(3)]
    assert file.read_text(encoding="utf-8").splitlines() == expected


def test_logging_before_a_state_exists_is_an_error():
    with pytest.raises(RuntimeError, match="before an Accelerator or a PartialState exists"):
        get_logger("early").warning("text")


def test_a_warning_once_is_logged_once(caplog):
    PartialState(cpu=True)
    logger = get_logger("once")
    for _ in range(3):
        logger.warning_once("again")
    logger.warning_once("other")
    assert [record.getMessage() for record in caplog.records] == ["[RANK 0] again", "[RANK 0] other"]


def test_the_level_comes_from_the_argument_or_the_variable(monkeypatch):
    root = logging.getLogger()
    level = root.level
    try:
        monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "error")
        assert get_logger("level.a").logger.level == logging.ERROR
        assert get_logger("level.b", log_level="debug").isEnabledFor(logging.DEBUG) and root.level == logging.DEBUG
    finally:
        root.setLevel(level)


class Mine(tracking.GeneralTracker):
    name = "mine"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.lines = []

    @property
    def tracker(self):
        return self.lines

    @tracking.on_main_process
    def log(self, values, step=None, **kwargs):
        self.lines.append((step, values))


def test_trackers_are_names_and_objects():
    mine = Mine()
    found = tracking.filter_trackers([LoggerType.TENSORBOARD, "csv", mine, "csv", "jsonl"], "runs")
    assert found == ["tensorboard", "csv", mine, "jsonl"]
    assert tracking.filter_trackers("exec:Plot --live", "runs") == ["exec:Plot --live"]
    assert tracking.filter_trackers(None) == []
    for choice, text in [
        ("aim", "no tracker 'aim'; expected one of csv, jsonl, tensorboard, mlflow, wandb, exec:COMMAND"),
        ("wandbb", "unknown tracker"),
    ]:
        with pytest.raises(ConfigError, match=text):
            tracking.filter_trackers(choice, "runs")
    with pytest.raises(ConfigError, match="pass project_dir"):
        tracking.filter_trackers("csv")


def test_log_with_all_selects_the_usable_trackers(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.filter_trackers("all", "runs") == ["csv", "jsonl", "tensorboard", "wandb"]


def test_a_registered_class_has_a_name(monkeypatch):
    monkeypatch.setattr(tracking, "LOGGER_TYPE_TO_CLASS", dict(tracking.LOGGER_TYPE_TO_CLASS))
    tracking.register_tracker_class(Mine)
    assert tracking.filter_trackers("mine") == ["mine"]
    with pytest.warns(UserWarning, match="takes the place"):
        tracking.register_tracker_class(Mine)
    with pytest.raises(ConfigError, match="derived from GeneralTracker"):
        tracking.register_tracker_class(dict)


def test_an_incomplete_tracker_class_is_an_error():
    class Incomplete(tracking.GeneralTracker):
        name = "incomplete"

    with pytest.raises(NotImplementedError, match="lacks requires_logging_directory, tracker"):
        Incomplete()
    Incomplete(_blank=True)


def test_only_the_main_process_writes_to_a_tracker():
    outputs = run_ranks(
        """
from lockstep.state import PartialState
from lockstep import tracking
PartialState()
class Mine(tracking.GeneralTracker):
    name, requires_logging_directory, tracker = "mine", False, None
    @tracking.on_main_process
    def log(self, values, step=None):
        print(step, values)
Mine().log({"loss": 1.5}, step=3)
""",
        2,
    )
    assert outputs == ["3 {'loss': 1.5}\n", ""]


def test_tensorboard_tracker_writes_values_and_settings(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    PartialState(cpu=True)
    tracker = tracking.TensorBoardTracker("run", tmp_path)
    tracker.start()
    tracker.store_init_configuration({"lr": 0.5, "name": "x: y"})
    tracker.log({"loss": 1.5, "note": "text"}, step=7)
    with pytest.raises(ConfigError, match="'bad' is of type list"):
        tracker.log({"bad": [1]})
    tracker.finish()
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(7, 1.5)]
    (settings,) = tmp_path.glob("run/*/hparams.yml")
    assert settings.read_text(encoding="utf-8") == '"lr": 0.5\n"name": "x: y"\n'
