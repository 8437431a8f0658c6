// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/event_file.h"

#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include <protozero/pbf_reader.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/tracking/file/little_endian.h"
#include "lockstep/tracking/tensorboard/tfevents_fields.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using protozero::data_view;
using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

/// Returns the bytes of the last field `number` of a message; empty if it has none.
data_view bytes_of_field(data_view message, uint32_t number) {
  data_view found;
  for (pbf_reader reader(message); reader.next(number, pbf_wire_type::length_delimited);) {
    found = reader.get_view();
  }
  return found;
}

/// Returns the settings in the text that TensorBoardTracker::do_store_config writes; null for
/// another text.
json config_in(std::string_view markdown) {
  constexpr std::string_view kBefore = "```json\n";
  constexpr std::string_view kAfter = "\n```";
  if (!markdown.starts_with(kBefore) || !markdown.ends_with(kAfter)) {
    return nullptr;
  }
  markdown.remove_prefix(kBefore.size());
  markdown.remove_suffix(kAfter.size());
  const json config = json::parse(markdown, nullptr, false);
  return config.is_object() ? config : json();
}

/// Returns the status in the metadata of the end of a session.
std::string status_in(data_view metadata) {
  using namespace tfevents;
  const auto content =
      bytes_of_field(bytes_of_field(metadata, kMetadataPluginData), kPluginContent);
  pbf_reader end(bytes_of_field(content, kHParamsSessionEnd));
  if (!end.next(kEndStatus, pbf_wire_type::varint)) {
    return "";
  }
  return name_of(end.get_int64() == kStatusSuccess ? RunStatus::kFinished : RunStatus::kFailed);
}

void read_value(pbf_reader reader, int64_t step, EventFile& file) {
  using namespace tfevents;
  std::string tag;
  std::optional<double> number;
  data_view tensor;
  data_view metadata;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(kValueTag, pbf_wire_type::length_delimited):
        tag = reader.get_string();
        break;
      case tag_and_type(kValueSimple, pbf_wire_type::fixed32):
        number = reader.get_float();
        break;
      case tag_and_type(kValueTensor, pbf_wire_type::length_delimited):
        tensor = reader.get_view();
        break;
      case tag_and_type(kValueMetadata, pbf_wire_type::length_delimited):
        metadata = reader.get_view();
        break;
      default:
        reader.skip();
    }
  }
  if (number) {
    file.scalars[tag][step] = *number;
  } else if (tag == "config/text_summary") {
    const data_view text = bytes_of_field(tensor, kTensorStrings);
    const json config = config_in({text.data(), text.size()});
    file.config = config.is_null() ? file.config : config;
  } else if (tag == "_hparams_/session_end_info") {
    file.status = status_in(metadata);
  }
}

void read_event(const std::string& event, EventFile& file) {
  using namespace tfevents;
  int64_t step = 0;
  pbf_reader summary;
  for (pbf_reader reader(event); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(kEventStep, pbf_wire_type::varint):
        step = reader.get_int64();
        break;
      case tag_and_type(kEventSummary, pbf_wire_type::length_delimited):
        summary = reader.get_message();
        break;
      default:
        reader.skip();
    }
  }
  while (summary.next(kSummaryValue, pbf_wire_type::length_delimited)) {
    read_value(summary.get_message(), step, file);
  }
}

bool read_bytes(std::ifstream& file, std::string& bytes, size_t size) {
  bytes.resize(size);
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  return static_cast<size_t>(file.gcount()) == size;
}

/// Reads `size` bytes and their checksum. Returns whether they agree.
bool read_checked(std::ifstream& file, std::string& bytes, size_t size) {
  std::string crc;
  return read_bytes(file, bytes, size) && read_bytes(file, crc, sizeof(uint32_t)) &&
         little_endian(crc) == masked_crc32c(crc32c(bytes));
}

}  // namespace

bool is_event_file_name(const std::string& name) {
  return name.starts_with("events.out.tfevents.");
}

EventFile read_event_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (!file || error) {
    throw ConfigError(path.string(), "cannot be read; expected an event file of TensorBoard");
  }
  EventFile result;
  std::string bytes;
  while (file.peek() != std::ifstream::traits_type::eof()) {
    if (!read_checked(file, bytes, sizeof(uint64_t)) || little_endian(bytes) > size ||
        !read_checked(file, bytes, little_endian(bytes))) {
      result.is_complete = false;
      break;
    }
    try {
      read_event(bytes, result);
    } catch (const protozero::exception&) {
      // An event that is no valid message.
    }
  }
  return result;
}

}  // namespace lockstep::tracking
