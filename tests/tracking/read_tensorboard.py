#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the content of a run's folder, as TensorBoard's own reader reads it, as one JSON object.

    read_tensorboard.py DIR
    {"scalars": {"loss": [{"step": 0, "value": 0.5, "wall_time": 1732190000.1}, ...]},
     "text": {"config/text_summary": ["..."]},
     "images": {"samples": [{"step": 0, "size": ["2", "1"], "pixels": [[[[0], [255]]]]}]},
     "histograms": {"weights": [{"step": 0, "min": 0.0, ..., "limits": [1.0, 2.0], "counts": [3.0, 1.0]}]},
     "hparams": {"start": {"lr": 0.1}, "types": {"lr": 3}, "metrics": ["loss"], "status": 1}}

"hparams" is empty without any, has "start" while a run continues, and everything once it has finished.
Numbers JSON has no word for are the strings "NaN", "Infinity" and "-Infinity". Exit code 3: this
Python has no tensorboard.
"""
import io
import json
import math
import sys

try:
    import numpy
    from PIL import Image
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata as hparams_metadata
except ImportError as error:
    print(f"{sys.executable} has no tensorboard: {error}", file=sys.stderr)
    sys.exit(3)


def portable(number):
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def plain(value):
    """A google.protobuf.Value as JSON."""
    kind = value.WhichOneof("kind")
    return portable(value.number_value) if kind == "number_value" else getattr(value, kind)


def read_hparams(accumulator):
    tags = accumulator.PluginTagToContent("hparams") if "hparams" in plugins(accumulator) else {}
    found = {}
    if hparams_metadata.SESSION_START_INFO_TAG in tags:
        start = hparams_metadata.parse_session_start_info_plugin_data(
            tags[hparams_metadata.SESSION_START_INFO_TAG])
        found["start"] = {name: plain(value) for name, value in start.hparams.items()}
    if hparams_metadata.EXPERIMENT_TAG in tags:
        experiment = hparams_metadata.parse_experiment_plugin_data(
            tags[hparams_metadata.EXPERIMENT_TAG])
        found["types"] = {info.name: info.type for info in experiment.hparam_infos}
        found["metrics"] = [info.name.tag for info in experiment.metric_infos]
    if hparams_metadata.SESSION_END_INFO_TAG in tags:
        end = hparams_metadata.parse_session_end_info_plugin_data(
            tags[hparams_metadata.SESSION_END_INFO_TAG])
        found["status"] = end.status
    return found


def plugins(accumulator):
    return {
        metadata.plugin_data.plugin_name
        for metadata in accumulator.summary_metadata.values()
    }


def tensors_of(accumulator, plugin):
    return {
        tag: accumulator.Tensors(tag) for tag in accumulator.Tags()["tensors"]
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == plugin
    }


def histogram(value):
    return {"min": value.min, "max": value.max, "num": value.num, "sum": value.sum,
            "sum_squares": value.sum_squares, "limits": list(value.bucket_limit), "counts": list(value.bucket)}


def pixels(png):
    """The bytes of an image, by row, column and channel."""
    array = numpy.asarray(Image.open(io.BytesIO(png)))
    return (array if array.ndim == 3 else array[:, :, None]).tolist()


def main():
    accumulator = event_accumulator.EventAccumulator(
        sys.argv[1], size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = {
        tag: [{"step": event.step, "value": portable(event.value), "wall_time": event.wall_time}
              for event in accumulator.Scalars(tag)]
        for tag in tags["scalars"]
    }
    text = {
        tag: [value.decode() for event in events for value in event.tensor_proto.string_val]
        for tag, events in tensors_of(accumulator, "text").items()
    }
    images = {
        tag: [{"step": event.step, "size": [text.decode() for text in event.tensor_proto.string_val[:2]],
               "pixels": [pixels(file) for file in event.tensor_proto.string_val[2:]]} for event in events]
        for tag, events in tensors_of(accumulator, "images").items()
    }
    histograms = {
        tag: [{"step": event.step, **histogram(event.histogram_value)} for event in accumulator.Histograms(tag)]
        for tag in tags["histograms"]
    }
    print(json.dumps({"scalars": scalars, "text": text, "images": images, "histograms": histograms,
                      "hparams": read_hparams(accumulator)}))


if __name__ == "__main__":
    main()
