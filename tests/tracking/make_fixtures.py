#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the byte fixtures of lockstep/tracking/tensorboard/tfevents_test.cpp, made by TensorBoard's classes, and of
wandb_file_test.cpp, made by wandb's if this Python has wandb 0.25.

    make_fixtures.py > /tmp/fixtures     # "NAME hex", one a line
"""
import io
import pathlib
import sys
import tempfile

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


class Sink(io.BytesIO):
    def close(self):
        pass


def frame(payload):
    sink = Sink()
    RecordWriter(sink).write(payload)
    return sink.getvalue()


def event(*values, step=0):
    return event_pb2.Event(
        wall_time=1.5, step=step, summary=summary_pb2.Summary(value=values))


def scalar(tag, value):
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def metadata(plugin, content=b""):
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return summary_pb2.SummaryMetadata(plugin_data=data)


def hparams(tag, **data):
    # version 0 is the default, and not written.
    content = plugin_data_pb2.HParamsPluginData(**data).SerializeToString(deterministic=True)
    return event(summary_pb2.Summary.Value(
        tag="_hparams_/" + tag, metadata=metadata("hparams", content)))


def text(tag, markdown, step=0):
    tensor = tensor_pb2.TensorProto(dtype=7, string_val=[markdown.encode()])
    tensor.tensor_shape.dim.add(size=1)
    return event(summary_pb2.Summary.Value(
        tag=tag + "/text_summary", metadata=metadata("text"), tensor=tensor), step=step)


def histogram():
    return event(summary_pb2.Summary.Value(tag="w", histo=summary_pb2.HistogramProto(
        min=1, max=3, num=3, sum=6, sum_squares=14, bucket_limit=[2, 3], bucket=[1, 2])), step=2)


def session_start():
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=1.5)
    start.hparams["amp"].bool_value = True
    start.hparams["lr"].number_value = 0.1
    start.hparams["model"].string_value = "cnn"
    return hparams("session_start_info", session_start_info=start)


def experiment():
    return hparams("experiment", experiment=api_pb2.Experiment(
        time_created_secs=1.5,
        hparam_infos=[
            api_pb2.HParamInfo(name="amp", type=api_pb2.DATA_TYPE_BOOL),
            api_pb2.HParamInfo(name="lr", type=api_pb2.DATA_TYPE_FLOAT64),
            api_pb2.HParamInfo(name="model", type=api_pb2.DATA_TYPE_STRING)],
        metric_infos=[
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in ("accuracy", "loss")]))


def session_end(status):
    return hparams("session_end_info", session_end_info=plugin_data_pb2.SessionEndInfo(
        status=status, end_time_secs=1.5))


def wandb_file():
    """A .wandb file with two records."""
    import wandb
    from wandb.proto import wandb_internal_pb2 as proto
    from wandb.sdk.internal.datastore import DataStore

    wandb._assert_is_internal_process = True
    store = DataStore()
    with tempfile.TemporaryDirectory() as folder:
        store.open_for_write(folder + "/run.wandb")
        item = proto.HistoryItem(key="loss", value_json="0.5")
        store.write(proto.Record(num=1, history=proto.HistoryRecord(item=[item], step=proto.HistoryStep(num=7))))
        store.write(proto.Record(num=2, exit=proto.RunExitRecord(exit_code=1, runtime=5)))
        store.close()
        return pathlib.Path(folder, "run.wandb").read_bytes()


def main():
    infinity = float("inf")
    fixtures = {
        "FRAME": frame(b"abc"),
        "FRAME_EMPTY": frame(b""),
        "VERSION": event_pb2.Event(wall_time=1.5, file_version="brain.Event:2"),
        "SCALARS": event(scalar("loss", 0.25), scalar("train/accuracy", 1 / 3), step=300),
        "INFINITE": event(
            scalar("a", infinity), scalar("b", -infinity), scalar("c", infinity),
            scalar("d", -infinity), step=1),
        "TEXT": text("config", "# lr"),
        "TEXT_STEP": text("note", "hello", step=7),
        "HISTOGRAM": histogram(),
        "START": session_start(),
        "EXPERIMENT": experiment(),
        "END_SUCCESS": session_end(api_pb2.STATUS_SUCCESS),
        "END_FAILURE": session_end(api_pb2.STATUS_FAILURE),
    }
    try:
        fixtures["WANDB"] = wandb_file()
    except ImportError as error:
        print(f"no fixture of wandb: {error}", file=sys.stderr)
    for name, fixture in fixtures.items():
        if not isinstance(fixture, bytes):
            fixture = fixture.SerializeToString(deterministic=True)
        print(name, fixture.hex())


if __name__ == "__main__":
    main()
