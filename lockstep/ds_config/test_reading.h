// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

/// Reads a text as the file ds.json.
inline Reading reading_of(const std::string& text, std::optional<int64_t> world_size = 1) {
  return read_ds_config(
      config::parse_document("ds.json", text, config::Format::kCommentedJson), world_size);
}

/// Reads a text without its outer braces and batch size.
inline Reading reading_with(const std::string& keys, std::optional<int64_t> world_size = 1) {
  return reading_of("{\"train_micro_batch_size_per_gpu\": 4,\n" + keys + "}", world_size);
}

/// Formats each as a line "[where] what".
inline std::string lines_of(const std::vector<Diagnostic>& diagnostics) {
  std::string lines;
  for (const Diagnostic& diagnostic : diagnostics) {
    lines += "[" + diagnostic.where + "] " + diagnostic.what + "\n";
  }
  return lines;
}

/// Returns the section "optimizer" of a ds_config.json.
inline std::string optimizer(const std::string& type, const std::string& params = "") {
  return R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}";
}

/// Returns the section "scheduler" of a ds_config.json.
inline std::string scheduler(const std::string& type, const std::string& params = "") {
  return R"("scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}";
}

inline std::string errors_of(const std::string& keys, std::optional<int64_t> world_size = 1) {
  return lines_of(reading_with(keys, world_size).errors);
}

inline std::string notes_of(const std::string& keys) {
  return lines_of(reading_with(keys).notes);
}

}  // namespace lockstep::ds_config
