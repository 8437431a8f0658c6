// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/tfevents.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/tracking/file/little_endian.h"
#include "lockstep/tracking/tensorboard/tfevents_fields.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

namespace lockstep::tracking::tfevents {
namespace {

using nlohmann::json;
using protozero::pbf_writer;

/// Returns a message with one field, which is a message.
std::string message_of(uint32_t field, const std::string& content) {
  std::string bytes;
  pbf_writer(bytes).add_message(field, content);
  return bytes;
}

/// Encodes an event of a step. Leaves out step 0, as protobuf leaves out zeros.
std::string summary_event(double wall_time_s, int64_t step, const std::string& summary) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(kEventWallTime, wall_time_s);
  if (step != 0) {
    event.add_int64(kEventStep, step);
  }
  event.add_message(kEventSummary, summary);
  return bytes;
}

std::string plugin_metadata(const std::string& plugin, const std::string& content) {
  std::string data;
  pbf_writer writer(data);
  writer.add_string(kPluginName, plugin);
  if (!content.empty()) {
    writer.add_bytes(kPluginContent, content);
  }
  return message_of(kMetadataPluginData, data);
}

/// Appends a value that is a list of strings.
void add_strings_value(
    pbf_writer& summary,
    const std::string& tag,
    const std::string& plugin,
    const std::vector<std::string>& strings) {
  pbf_writer value(summary, kSummaryValue);
  value.add_string(kValueTag, tag);
  {
    pbf_writer tensor(value, kValueTensor);
    tensor.add_int64(kTensorDtype, kDtypeString);
    pbf_writer shape(tensor, kTensorShape);
    pbf_writer(shape, kShapeDim).add_int64(kDimSize, static_cast<int64_t>(strings.size()));
    shape.commit();
    for (const std::string& text : strings) {
      tensor.add_bytes(kTensorStrings, text);
    }
  }
  value.add_message(kValueMetadata, plugin_metadata(plugin, ""));
}

void add_histogram(pbf_writer& summary, const std::string& tag, const Histogram& histogram) {
  const std::vector<double> counts(histogram.counts.begin(), histogram.counts.end());
  pbf_writer value(summary, kSummaryValue);
  value.add_string(kValueTag, tag);
  pbf_writer data(value, kValueHistogram);
  data.add_double(kHistogramMin, histogram.min);
  data.add_double(kHistogramMax, histogram.max);
  data.add_double(kHistogramNum, static_cast<double>(histogram.count));
  data.add_double(kHistogramSum, histogram.sum);
  data.add_double(kHistogramSumSquares, histogram.sum_of_squares);
  data.add_packed_double(kHistogramLimits, histogram.edges.begin() + 1, histogram.edges.end());
  data.add_packed_double(kHistogramCounts, counts.begin(), counts.end());
}

std::string hparams_event(
    double wall_time_s, const std::string& tag, uint32_t field, const std::string& data) {
  std::string value;
  pbf_writer writer(value);
  writer.add_string(kValueTag, tag);
  writer.add_message(kValueMetadata, plugin_metadata("hparams", message_of(field, data)));
  return summary_event(wall_time_s, 0, message_of(kSummaryValue, value));
}

std::string struct_value(const json& value) {
  std::string bytes;
  pbf_writer writer(bytes);
  if (value.is_boolean()) {
    writer.add_bool(kStructBool, value.get<bool>());
  } else if (value.is_number()) {
    writer.add_double(kStructNumber, value.get<double>());
  } else {
    LOCKSTEP_ASSERT(
        value.is_string(), "flat_config left another type than boolean, number or string");
    writer.add_string(kStructString, value.get_ref<const std::string&>());
  }
  return bytes;
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
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(kEventWallTime, wall_time_s);
  event.add_string(kEventFileVersion, "brain.Event:2");
  return bytes;
}

std::string scalars(double wall_time_s, int64_t step, const Values& values) {
  std::string summary;
  pbf_writer writer(summary);
  for (const auto& [tag, number] : values) {
    pbf_writer value(writer, kSummaryValue);
    value.add_string(kValueTag, tag);
    value.add_float(kValueSimple, to_single(number));
  }
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(kEventWallTime, wall_time_s);
  event.add_int64(kEventStep, step);
  event.add_message(kEventSummary, summary);
  return bytes;
}

std::string text(double wall_time_s, int64_t step, const Texts& texts) {
  std::string summary;
  pbf_writer writer(summary);
  for (const auto& [tag, markdown] : texts) {
    add_strings_value(writer, tag + "/text_summary", "text", {markdown});
  }
  return summary_event(wall_time_s, step, summary);
}

std::string images(double wall_time_s, int64_t step, const ImageBatches& images) {
  std::string summary;
  pbf_writer writer(summary);
  for (const auto& [tag, batch] : images) {
    std::vector<std::string> strings = {std::to_string(batch.width), std::to_string(batch.height)};
    for (int64_t i = 0; i < batch.count; ++i) {
      strings.push_back(png(batch, i));
    }
    add_strings_value(writer, tag, "images", strings);
  }
  return summary_event(wall_time_s, step, summary);
}

std::string histograms(double wall_time_s, int64_t step, const Histograms& histograms) {
  std::string summary;
  pbf_writer writer(summary);
  for (const auto& [tag, histogram] : histograms) {
    if (histogram.count > 0) {
      add_histogram(writer, tag, histogram);
    }
  }
  return summary_event(wall_time_s, step, summary);
}

std::string session_start(double wall_time_s, const nlohmann::json& hparams) {
  std::string start;
  pbf_writer writer(start);
  for (const auto& [name, value] : hparams.items()) {
    pbf_writer entry(writer, kStartHParams);
    entry.add_string(kMapKey, name);
    entry.add_message(kMapValue, struct_value(value));
  }
  writer.add_double(kStartTime, wall_time_s);
  return hparams_event(wall_time_s, "_hparams_/session_start_info", kHParamsSessionStart, start);
}

std::string experiment(
    double wall_time_s, const nlohmann::json& hparams, const std::vector<std::string>& metrics) {
  std::string data;
  pbf_writer writer(data);
  writer.add_double(kExperimentTime, wall_time_s);
  for (const auto& [name, value] : hparams.items()) {
    pbf_writer column(writer, kExperimentHParams);
    column.add_string(kHParamName, name);
    column.add_int64(kHParamType, type_of(value));
  }
  for (const std::string& metric : metrics) {
    std::string name;
    pbf_writer(name).add_string(kMetricNameTag, metric);
    writer.add_message(kExperimentMetrics, message_of(kMetricName, name));
  }
  return hparams_event(wall_time_s, "_hparams_/experiment", kHParamsExperiment, data);
}

std::string session_end(double wall_time_s, RunStatus status) {
  std::string end;
  pbf_writer writer(end);
  writer.add_int64(kEndStatus, status == RunStatus::kFinished ? kStatusSuccess : kStatusFailure);
  writer.add_double(kEndTime, wall_time_s);
  return hparams_event(wall_time_s, "_hparams_/session_end_info", kHParamsSessionEnd, end);
}

}  // namespace lockstep::tracking::tfevents
