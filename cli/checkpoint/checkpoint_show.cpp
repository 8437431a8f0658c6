// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/byte_size.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::SetTensor;
using storage::StoredCheckpoint;
using storage::TensorSet;
using Json = nlohmann::json;

uint64_t bytes_of(const SetTensor& tensor) {
  return static_cast<uint64_t>(tensor.elements()) * storage::dtype_bytes(tensor.dtype);
}

Json to_json(const SetTensor& tensor, const std::vector<std::string>& files) {
  Json own = Json::array();
  for (const storage::TensorSlice& slice : tensor.slices) {
    own.push_back(files[slice.file]);
  }
  return {
      {"name", tensor.name},
      {"dtype", storage::dtype_name(tensor.dtype)},
      {"shape", tensor.shape},
      {"elements", tensor.elements()},
      {"bytes", bytes_of(tensor)},
      {"files", std::move(own)}};
}

/// Returns the unit of a set: a model has values (parameters and buffers), another set elements.
std::string noun_of(const std::string& stem) {
  return stem == "model" || stem.starts_with("model_") ? "value" : "element";
}

/// Adds one set to the text and to the JSON.
void add_set(const TensorSet& set, const std::string& stem, Json& sets, std::string& text) {
  const std::vector<std::string> files = set.files();
  const std::string noun = noun_of(stem);
  Json tensors = Json::array();
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "DTYPE", "SHAPE", noun == "value" ? "VALUES" : "ELEMENTS", "SIZE", "SLICES"}};
  int64_t elements = 0;
  uint64_t bytes = 0;
  for (const SetTensor& tensor : set.tensors()) {
    tensors.push_back(to_json(tensor, files));
    elements += tensor.elements();
    bytes += bytes_of(tensor);
    rows.push_back(
        {printable(tensor.name),
         storage::dtype_name(tensor.dtype),
         fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
         with_commas(tensor.elements()),
         storage::format_bytes(bytes_of(tensor)),
         std::to_string(std::max<size_t>(tensor.slices.size(), 1))});
  }
  text += fmt::format(
      "\n{}: {}, {} {}{}, {}, in {}\n",
      printable(stem),
      counted(set.tensors().size(), "tensor"),
      with_commas(elements),
      noun,
      elements == 1 ? "" : "s",
      storage::format_bytes(bytes),
      counted(files.size(), "file"));
  if (!set.tensors().empty()) {
    text += render_table(rows, {false, false, false, true, true, true}, terminal_columns());
  }
  sets.push_back(
      {{"stem", stem},
       {"files", files},
       {"elements", elements},
       {"bytes", bytes},
       {"tensors", std::move(tensors)}});
}

void add_files(const StoredCheckpoint& stored, Json& files, std::string& text) {
  std::vector<std::vector<std::string>> rows = {{"FILE", "SIZE", "TENSORS", "CRC32C"}};
  for (const storage::FileRecord& record : stored.manifest().files) {
    const storage::FileSummary& summary = record.summary;
    const std::string crc = fmt::format("{:08x}", summary.crc32c);
    files.push_back(
        {{"name", record.name},
         {"bytes", summary.bytes},
         {"crc32c", crc},
         {"tensors", summary.tensors.size()}});
    rows.push_back(
        {printable(record.name),
         storage::format_bytes(summary.bytes),
         summary.tensors.empty() ? "-" : std::to_string(summary.tensors.size()),
         crc});
  }
  text += "\n" + render_table(rows, {false, true, true, false}, terminal_columns());
}

}  // namespace

Report show_report(const fs::path& path) {
  const StoredCheckpoint stored = open_checkpoint(path);
  uint64_t bytes = 0;
  for (const storage::FileRecord& record : stored.manifest().files) {
    bytes += record.summary.bytes;
  }
  Report report;
  Json files = Json::array();
  Json sets = Json::array();
  report.text = fmt::format(
      "{}\n  sequence {}, saved by {}, {}, {}\n  meta {}\n",
      printable(path),
      stored.sequence(),
      counted(static_cast<size_t>(stored.world_size()), "rank"),
      counted(stored.manifest().files.size(), "file"),
      storage::format_bytes(bytes),
      printable(stored.meta().dump()));
  add_files(stored, files, report.text);
  for (const std::string& stem : TensorSet::stems(stored)) {
    try {
      add_set(TensorSet(stored, stem), stem, sets, report.text);
    } catch (const CheckpointError& error) {
      report.exit_code = kExitFailure;
      report.text += fmt::format(
          "\n{}: cannot be read; {}\n",
          printable(stem),
          printable(without_folder(error.what(), path)));
      sets.push_back({{"stem", stem}, {"error", error.what()}});
    }
  }
  report.json = {
      {"path", path.native()},
      {"sequence", stored.sequence()},
      {"world_size", stored.world_size()},
      {"meta", stored.meta()},
      {"bytes", bytes},
      {"files", std::move(files)},
      {"sets", std::move(sets)}};
  return report;
}

}  // namespace lockstep::cli
