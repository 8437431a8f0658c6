// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target for the readers of manifest.json and of other JSON in a checkpoint. A text that
// begins like a manifest is also tried with a correct checksum, which chance never finds.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "tests/fuzz/require.h"

namespace {

using lockstep::CheckpointError;
using lockstep::fuzz::require;
using lockstep::storage::Manifest;

constexpr const char* kPath = "the/manifest.json";
constexpr std::string_view kBeforeCrc = "{\n  \"crc32c\": \"";
constexpr size_t kHexDigits = 8;

void try_json(const std::string& text) {
  nlohmann::json value;
  try {
    value = lockstep::storage::parse_json(kPath, text);
  } catch (const CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, kPath);
    return;
  }
  const std::string rendered = lockstep::storage::render_json(kPath, value);
  require(lockstep::storage::parse_json(kPath, rendered) == value, "other JSON after a round trip");
}

void try_manifest(const std::string& text) {
  Manifest manifest;
  try {
    manifest = lockstep::storage::parse_manifest(kPath, text);
  } catch (const CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, kPath);
    return;
  }
  require(manifest.sequence > 0 && manifest.world_size > 0, "a number that must be positive");
  for (const lockstep::storage::FileRecord& record : manifest.files) {
    require(
        !record.name.empty() && record.name.front() != '.' &&
            record.name.find('/') == std::string::npos,
        "a name that leads out of the folder");
  }
  const std::string rendered = lockstep::storage::render_manifest(kPath, manifest);
  const Manifest back = lockstep::storage::parse_manifest(kPath, rendered);
  require(
      lockstep::storage::render_manifest(kPath, back) == rendered,
      "another manifest after a round trip");
}

std::string with_right_checksum(std::string text) {
  const size_t covered = kBeforeCrc.size() + kHexDigits;
  char digits[kHexDigits + 1];
  const uint32_t crc = lockstep::crc32c(std::string_view(text).substr(covered));
  std::snprintf(digits, sizeof(digits), "%08x", crc);
  return text.replace(kBeforeCrc.size(), kHexDigits, digits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const std::string text(reinterpret_cast<const char*>(input), size);
  try_json(text);
  try_manifest(text);
  if (text.starts_with(kBeforeCrc) && text.size() >= kBeforeCrc.size() + kHexDigits) {
    try_manifest(with_right_checksum(text));
  }
  return 0;
}
