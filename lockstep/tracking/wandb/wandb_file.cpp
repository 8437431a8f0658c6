// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/wandb/wandb_file.h"

#include <algorithm>

#include <protozero/pbf_writer.hpp>
#include <zlib.h>

#include "lockstep/tracking/file/little_endian.h"

namespace lockstep::tracking {
namespace {

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;
constexpr uint8_t kFull = 1;
constexpr uint8_t kFirst = 2;
constexpr uint8_t kMiddle = 3;
constexpr uint8_t kLast = 4;
constexpr uint32_t kRecordNumber = 1;  // Field of wandb_internal.Record.

/// Appends a part of a record, which fits into the block.
void append_part(std::string& log, uint8_t type, std::string_view data) {
  uLong crc = ::crc32(0, &type, 1);
  crc = ::crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
  append_little_endian(log, static_cast<uint32_t>(crc));
  append_little_endian(log, static_cast<uint16_t>(data.size()));
  log += static_cast<char>(type);
  log += data;
}

}  // namespace

std::string wandb_log_blocks(std::string_view bytes, size_t offset) {
  std::string log;
  bool first = true;
  while (true) {
    size_t left = kBlockBytes - (offset + log.size()) % kBlockBytes;
    if (left < kHeaderBytes) {
      log.append(left, '\0');
      left = kBlockBytes;
    }
    const size_t size = std::min(bytes.size(), left - kHeaderBytes);
    const bool last = size == bytes.size();
    const uint8_t type = first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle);
    append_part(log, type, bytes.substr(0, size));
    if (last) {
      return log;
    }
    bytes.remove_prefix(size);
    first = false;
  }
}

bool WandbFile::create(const std::filesystem::path& path) {
  if (!file_.create(path)) {
    return false;
  }
  std::string header = ":W&B";
  append_little_endian(header, uint16_t{0xBEE1});
  header += '\0';  // The version.
  file_.append(header);
  size_ = header.size();
  return true;
}

void WandbFile::append(uint32_t field, const std::string& message) {
  std::string record;
  protozero::pbf_writer writer(record);
  writer.add_int64(kRecordNumber, records_ + 1);
  writer.add_message(field, message);
  const std::string log = wandb_log_blocks(record, size_);
  file_.append(log);
  size_ += log.size();
  ++records_;
}

}  // namespace lockstep::tracking
