// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/event_file.h"

#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/tracking/file/protobuf_wire.h"
#include "lockstep/tracking/tensorboard/tfevents_fields.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

/// Returns the bytes of the last field `number` of a message; empty if it has none.
std::string_view bytes_of_field(std::string_view message, uint32_t number) {
  std::string_view found;
  for (ProtobufReader reader(message); reader.next();) {
    found = reader.field() == number ? reader.bytes() : found;
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
std::string status_in(std::string_view metadata) {
  using namespace tfevents;
  const auto content =
      bytes_of_field(bytes_of_field(metadata, kMetadataPluginData), kPluginContent);
  for (ProtobufReader end(bytes_of_field(content, kHParamsSessionEnd)); end.next();) {
    if (end.field() == kEndStatus) {
      return name_of(end.varint() == kStatusSuccess ? RunStatus::kFinished : RunStatus::kFailed);
    }
  }
  return "";
}

void read_value(std::string_view value, int64_t step, EventFile& file) {
  using namespace tfevents;
  std::string tag;
  std::optional<double> number;
  std::string_view tensor;
  std::string_view metadata;
  for (ProtobufReader reader(value); reader.next();) {
    if (reader.field() == kValueTag) {
      tag = reader.bytes();
    } else if (reader.field() == kValueSimple) {
      number = reader.single();
    } else if (reader.field() == kValueTensor) {
      tensor = reader.bytes();
    } else if (reader.field() == kValueMetadata) {
      metadata = reader.bytes();
    }
  }
  if (number) {
    file.scalars[tag][step] = *number;
  } else if (tag == "config/text_summary") {
    const json config = config_in(bytes_of_field(tensor, kTensorStrings));
    file.config = config.is_null() ? file.config : config;
  } else if (tag == "_hparams_/session_end_info") {
    file.status = status_in(metadata);
  }
}

void read_event(std::string_view event, EventFile& file) {
  using namespace tfevents;
  int64_t step = 0;
  std::string_view summary;
  for (ProtobufReader reader(event); reader.next();) {
    if (reader.field() == kEventStep) {
      step = reader.varint();
    } else if (reader.field() == kEventSummary) {
      summary = reader.bytes();
    }
  }
  for (ProtobufReader reader(summary); reader.next();) {
    if (reader.field() == kSummaryValue) {
      read_value(reader.bytes(), step, file);
    }
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
    read_event(bytes, result);
  }
  return result;
}

}  // namespace lockstep::tracking
