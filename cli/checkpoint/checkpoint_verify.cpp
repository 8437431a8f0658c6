// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <fmt/format.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "lockstep/base/program/progress.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/byte_size.h"
#include "lockstep/storage/stored_checkpoint.h"
#include "lockstep/storage/verify.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::Damage;
using storage::StoredCheckpoint;
using Json = nlohmann::json;

constexpr uint64_t kBytesPerUnit = 1'000'000;
constexpr uint64_t kMinBytesForBar = 100'000'000;  // Less is read in a fraction of a second.

uint64_t bytes_of(const StoredCheckpoint& stored) {
  uint64_t bytes = 0;
  for (const storage::FileRecord& record : stored.manifest().files) {
    bytes += record.summary.bytes;
  }
  return bytes;
}

ProgressTerminal terminal_for(uint64_t bytes) {
  ProgressTerminal terminal = ProgressTerminal::standard_error();
  terminal.on = terminal.on && bytes >= kMinBytesForBar;
  return terminal;
}

/// A progress bar of bytes, drawn in units of 1 MB.
class VerifyProgress {
 public:
  explicit VerifyProgress(uint64_t total_bytes)
      : bar_(
            {.label = "verify",
             .total = static_cast<int64_t>(total_bytes / kBytesPerUnit),
             .unit = "MB"},
            terminal_for(total_bytes)) {}
  void advance(uint64_t bytes) {
    done_bytes_ += bytes;
    bar_.advance(static_cast<int64_t>(done_bytes_ / kBytesPerUnit) - bar_.done());
  }
  void finish() { bar_.finish(); }

 private:
  ProgressBar bar_;
  uint64_t done_bytes_ = 0;
};

/// A checkpoint and its damage; `stored` is empty if the manifest is invalid.
struct Verified {
  fs::path path;
  std::optional<StoredCheckpoint> stored;
  std::vector<Damage> damage;
};

Json to_json(const Verified& verified) {
  Json damage = Json::array();
  for (const Damage& each : verified.damage) {
    damage.push_back(
        {{"file", each.file.empty() ? Json() : Json(each.file)},
         {"tensor", each.tensor.empty() ? Json() : Json(each.tensor)},
         {"why", each.why}});
  }
  Json json = {
      {"path", verified.path.native()},
      {"valid", verified.damage.empty()},
      {"files", nullptr},
      {"bytes", nullptr},
      {"damage", std::move(damage)}};
  if (verified.stored) {
    json["files"] = verified.stored->manifest().files.size();
    json["bytes"] = bytes_of(*verified.stored);
  }
  return json;
}

std::string to_text(const Verified& verified) {
  if (verified.damage.empty()) {
    return fmt::format(
        "{}: complete; {}, {}\n",
        printable(verified.path),
        counted(verified.stored->manifest().files.size(), "file"),
        storage::format_bytes(bytes_of(*verified.stored)));
  }
  std::string text = fmt::format("{}: damaged\n", printable(verified.path));
  for (const Damage& each : verified.damage) {
    text += "  " + printable(without_folder(each.why, verified.path)) + "\n";
  }
  return text;
}

}  // namespace

Report verify_report(const std::vector<fs::path>& paths) {
  std::vector<Verified> all;
  uint64_t total_bytes = 0;
  for (const fs::path& path : paths) {
    Verified& verified = all.emplace_back(Verified{path, std::nullopt, {}});
    if (storage::checkpoint_number(path) && storage::why_not_folder(path)) {
      verified.damage.push_back({"", "", storage::not_a_checkpoint(path).what()});
      continue;
    }
    try {
      verified.stored = open_checkpoint(path, storage::Verify::kManifest);
      total_bytes += bytes_of(*verified.stored);
    } catch (const CheckpointError& error) {
      verified.damage.push_back({storage::kManifestName, "", error.what()});
    }
  }
  VerifyProgress progress(total_bytes);
  Report report;
  Json entries = Json::array();
  for (Verified& verified : all) {
    if (verified.stored) {
      verified.damage =
          storage::find_damage(*verified.stored, [&](uint64_t bytes) { progress.advance(bytes); });
    }
    report.text += to_text(verified);
    entries.push_back(to_json(verified));
    report.exit_code = verified.damage.empty() ? report.exit_code : kExitFailure;
  }
  progress.finish();
  report.json = {{"valid", report.exit_code == kExitOk}, {"checkpoints", std::move(entries)}};
  return report;
}

}  // namespace lockstep::cli
