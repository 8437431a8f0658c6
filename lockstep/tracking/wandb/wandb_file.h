// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/tracking/file/append_file.h"

namespace lockstep::tracking {

/// Writes wandb's transaction log: LevelDB's log format with wandb's header, and CRC-32 in place of
/// CRC-32C. Each record is one write(2), so that readers of a killed process's file find complete
/// ones.
///
/// Source: the class DataStore of wandb 0.25, and LevelDB's page about its log format.
class WandbFile {
 public:
  /// Creates the file. Returns false if the name exists. Throws ConfigError as AppendFile does.
  bool create(const std::filesystem::path& path);
  /// Appends a Record of wandb_internal.proto: its number, and `message` as its field `field`.
  void append(uint32_t field, const std::string& message);
  void sync() { file_.sync(); }
  void close() { file_.close(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
  size_t size_ = 0;
  int64_t records_ = 0;
};

/// Splits `bytes` into the blocks of a log that has `offset` bytes already.
std::string wandb_log_blocks(std::string_view bytes, size_t offset);

}  // namespace lockstep::tracking
