// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/tfevents.h"

#include <bit>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/tracking/file/protobuf_wire.h"
#include "lockstep/tracking/tensorboard/tfevents_fields.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

namespace lockstep::tracking::tfevents {
namespace {

using nlohmann::json;

ProtobufWriter event(double wall_time_s) {
  return ProtobufWriter().number(kEventWallTime, wall_time_s);
}

/// Leaves out step 0, as protobuf leaves out zeros.
ProtobufWriter event_of_step(double wall_time_s, int64_t step) {
  ProtobufWriter result = event(wall_time_s);
  if (step != 0) {
    result.varint(kEventStep, step);
  }
  return result;
}

ProtobufWriter plugin_metadata(std::string_view plugin, std::string_view content) {
  ProtobufWriter data;
  data.bytes(kPluginName, plugin);
  if (!content.empty()) {
    data.bytes(kPluginContent, content);
  }
  return ProtobufWriter().message(kMetadataPluginData, data);
}

/// Encodes a value that is a list of strings.
ProtobufWriter strings_value(
    const std::string& tag, std::string_view plugin, const std::vector<std::string>& strings) {
  const ProtobufWriter dim =
      ProtobufWriter().varint(kDimSize, static_cast<int64_t>(strings.size()));
  ProtobufWriter tensor;
  tensor.varint(kTensorDtype, kDtypeString)
      .message(kTensorShape, ProtobufWriter().message(kShapeDim, dim));
  for (const std::string& text : strings) {
    tensor.bytes(kTensorStrings, text);
  }
  return ProtobufWriter()
      .bytes(kValueTag, tag)
      .message(kValueTensor, tensor)
      .message(kValueMetadata, plugin_metadata(plugin, ""));
}

ProtobufWriter histogram_message(const Histogram& histogram) {
  std::string limits;
  std::string counts;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    append_little_endian(limits, std::bit_cast<uint64_t>(histogram.edges[i + 1]));
    append_little_endian(counts, std::bit_cast<uint64_t>(static_cast<double>(histogram.counts[i])));
  }
  return ProtobufWriter()
      .number(kHistogramMin, histogram.min)
      .number(kHistogramMax, histogram.max)
      .number(kHistogramNum, static_cast<double>(histogram.count))
      .number(kHistogramSum, histogram.sum)
      .number(kHistogramSumSquares, histogram.sum_of_squares)
      .bytes(kHistogramLimits, limits)
      .bytes(kHistogramCounts, counts);
}

std::string hparams_event(
    double wall_time_s, std::string_view tag, uint32_t field, const ProtobufWriter& data) {
  const ProtobufWriter content = ProtobufWriter().message(field, data);
  const ProtobufWriter value =
      ProtobufWriter()
          .bytes(kValueTag, tag)
          .message(kValueMetadata, plugin_metadata("hparams", content.written()));
  return event(wall_time_s)
      .message(kEventSummary, ProtobufWriter().message(kSummaryValue, value))
      .written();
}

ProtobufWriter struct_value(const json& value) {
  if (value.is_boolean()) {
    return ProtobufWriter().varint(kStructBool, value.get<bool>() ? 1 : 0);
  }
  if (value.is_number()) {
    return ProtobufWriter().number(kStructNumber, value.get<double>());
  }
  LOCKSTEP_ASSERT(
      value.is_string(), "flat_config left another type than boolean, number or string");
  return ProtobufWriter().bytes(kStructString, value.get_ref<const std::string&>());
}

int64_t type_of(const json& value) {
  if (value.is_boolean()) {
    return kTypeBool;
  }
  return value.is_number() ? kTypeNumber : kTypeString;
}

/// Rounds to single precision. Too large values, for which a cast is undefined, become infinite.
float to_single(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::isfinite(value) && std::abs(value) > kMost) {
    return std::copysign(
        std::numeric_limits<float>::infinity(), static_cast<float>(value > 0 ? 1 : -1));
  }
  return static_cast<float>(value);
}

}  // namespace

std::string frame_record(std::string_view payload) {
  std::string record;
  record.reserve(payload.size() + 16);
  append_little_endian(record, static_cast<uint64_t>(payload.size()));
  append_little_endian(record, masked_crc32c(crc32c(record)));
  record += payload;
  append_little_endian(record, masked_crc32c(crc32c(payload)));
  return record;
}

std::string file_version(double wall_time_s) {
  return event(wall_time_s).bytes(kEventFileVersion, "brain.Event:2").written();
}

std::string scalars(double wall_time_s, int64_t step, const Values& values) {
  ProtobufWriter summary;
  for (const auto& [tag, value] : values) {
    summary.message(
        kSummaryValue,
        ProtobufWriter().bytes(kValueTag, tag).number(kValueSimple, to_single(value)));
  }
  return event(wall_time_s).varint(kEventStep, step).message(kEventSummary, summary).written();
}

std::string text(double wall_time_s, int64_t step, const Texts& texts) {
  ProtobufWriter summary;
  for (const auto& [tag, markdown] : texts) {
    summary.message(kSummaryValue, strings_value(tag + "/text_summary", "text", {markdown}));
  }
  return event_of_step(wall_time_s, step).message(kEventSummary, summary).written();
}

std::string images(double wall_time_s, int64_t step, const ImageBatches& images) {
  ProtobufWriter summary;
  for (const auto& [tag, batch] : images) {
    std::vector<std::string> strings = {std::to_string(batch.width), std::to_string(batch.height)};
    for (int64_t i = 0; i < batch.count; ++i) {
      strings.push_back(png(batch, i));
    }
    summary.message(kSummaryValue, strings_value(tag, "images", strings));
  }
  return event_of_step(wall_time_s, step).message(kEventSummary, summary).written();
}

std::string histograms(double wall_time_s, int64_t step, const Histograms& histograms) {
  ProtobufWriter summary;
  for (const auto& [tag, histogram] : histograms) {
    if (histogram.count > 0) {
      summary.message(
          kSummaryValue,
          ProtobufWriter()
              .bytes(kValueTag, tag)
              .message(kValueHistogram, histogram_message(histogram)));
    }
  }
  return event_of_step(wall_time_s, step).message(kEventSummary, summary).written();
}

std::string session_start(double wall_time_s, const nlohmann::json& hparams) {
  ProtobufWriter start;
  for (const auto& [name, value] : hparams.items()) {
    start.message(
        kStartHParams,
        ProtobufWriter().bytes(kMapKey, name).message(kMapValue, struct_value(value)));
  }
  start.number(kStartTime, wall_time_s);
  return hparams_event(wall_time_s, "_hparams_/session_start_info", kHParamsSessionStart, start);
}

std::string experiment(
    double wall_time_s, const nlohmann::json& hparams, const std::vector<std::string>& metrics) {
  ProtobufWriter data;
  data.number(kExperimentTime, wall_time_s);
  for (const auto& [name, value] : hparams.items()) {
    data.message(
        kExperimentHParams,
        ProtobufWriter().bytes(kHParamName, name).varint(kHParamType, type_of(value)));
  }
  for (const std::string& metric : metrics) {
    const ProtobufWriter name = ProtobufWriter().bytes(kMetricNameTag, metric);
    data.message(kExperimentMetrics, ProtobufWriter().message(kMetricName, name));
  }
  return hparams_event(wall_time_s, "_hparams_/experiment", kHParamsExperiment, data);
}

std::string session_end(double wall_time_s, RunStatus status) {
  const int64_t code = status == RunStatus::kFinished ? kStatusSuccess : kStatusFailure;
  const ProtobufWriter end =
      ProtobufWriter().varint(kEndStatus, code).number(kEndTime, wall_time_s);
  return hparams_event(wall_time_s, "_hparams_/session_end_info", kHParamsSessionEnd, end);
}

}  // namespace lockstep::tracking::tfevents
