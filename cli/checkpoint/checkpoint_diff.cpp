// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "cli/checkpoint/tensor_difference.h"
#include "lockstep/storage/manifest.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::FileRecord;
using storage::SetTensor;
using storage::StoredCheckpoint;
using storage::TensorSet;
using Json = nlohmann::json;

std::string type_text(const SetTensor& tensor) {
  return fmt::format("{} [{}]", storage::dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

Json type_json(const SetTensor& tensor) {
  return {{"dtype", storage::dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
}

/// Collects the differences of tensors, as text and as JSON.
class Differences {
 public:
  void in_one_set(const std::string& stem, const char* change, const SetTensor& tensor) {
    add(stem, change, tensor.name, type_text(tensor), {{"type", type_json(tensor)}});
  }

  void in_both_sets(
      const std::string& stem,
      const TensorSet& one_set,
      const SetTensor& one,
      const TensorSet& other_set,
      const SetTensor& other) {
    if (one.dtype != other.dtype || one.shape != other.shape) {
      add(stem,
          one.dtype != other.dtype ? "dtype" : "shape",
          one.name,
          type_text(one) + " to " + type_text(other),
          {{"from", type_json(one)}, {"to", type_json(other)}});
    } else if (const auto difference = compare(one_set, one, other_set, other)) {
      add_content(stem, one, *difference);
    } else {
      ++same_;
    }
  }

  Json tensors = Json::array();
  std::vector<std::vector<std::string>> rows = {};
  int64_t same() const { return same_; }

 private:
  void add_content(
      const std::string& stem, const SetTensor& tensor, const TensorDifference& difference) {
    std::string text = fmt::format(
        "{}, {} of {} elements",
        type_text(tensor),
        with_commas(difference.elements),
        with_commas(tensor.elements()));
    Json json = {{"type", type_json(tensor)}, {"elements", difference.elements}};
    if (difference.largest) {
      text += fmt::format(", by at most {:.6g}", *difference.largest);
      // JSON has neither infinity nor NaN.
      json["largest"] = std::isfinite(*difference.largest) ? Json(*difference.largest) : Json();
    }
    add(stem, "content", tensor.name, text, std::move(json));
  }

  void add(
      const std::string& stem,
      const char* change,
      const std::string& name,
      const std::string& text,
      Json json) {
    json["set"] = stem;
    json["change"] = change;
    json["name"] = name;
    tensors.push_back(std::move(json));
    rows.push_back({change, printable(stem), printable(name), text});
  }

  int64_t same_ = 0;
};

const std::vector<SetTensor>& tensors_of(const std::optional<TensorSet>& set) {
  static const std::vector<SetTensor> none;
  return set ? set->tensors() : none;
}

std::optional<TensorSet> open_set(const StoredCheckpoint& stored, const std::string& stem) {
  return TensorSet::exists(stored, stem) ? std::optional<TensorSet>(std::in_place, stored, stem)
                                         : std::nullopt;
}

void compare_sets(
    const StoredCheckpoint& one, const StoredCheckpoint& other, Differences& differences) {
  std::set<std::string> stems;
  for (const StoredCheckpoint* stored : {&one, &other}) {
    for (const std::string& stem : TensorSet::stems(*stored)) {
      stems.insert(stem);
    }
  }
  for (const std::string& stem : stems) {
    const std::optional<TensorSet> one_set = open_set(one, stem);
    const std::optional<TensorSet> other_set = open_set(other, stem);
    for (const SetTensor& tensor : tensors_of(one_set)) {
      if (other_set && other_set->has(tensor.name)) {
        differences.in_both_sets(
            stem, *one_set, tensor, *other_set, other_set->tensor(tensor.name));
      } else {
        differences.in_one_set(stem, "removed", tensor);
      }
    }
    for (const SetTensor& tensor : tensors_of(other_set)) {
      if (!one_set || !one_set->has(tensor.name)) {
        differences.in_one_set(stem, "added", tensor);
      }
    }
  }
}

/// Returns the checksums of the files without tensors.
std::map<std::string, uint32_t> other_files(const StoredCheckpoint& stored) {
  std::map<std::string, uint32_t> files;
  for (const FileRecord& record : stored.manifest().files) {
    if (!record.name.ends_with(".safetensors")) {
      files[record.name] = record.summary.crc32c;
    }
  }
  return files;
}

/// Returns the kind of change of each file that differs.
std::map<std::string, const char*> compare_files(
    const StoredCheckpoint& one, const StoredCheckpoint& other) {
  const std::map<std::string, uint32_t> one_files = other_files(one);
  const std::map<std::string, uint32_t> files = other_files(other);
  std::map<std::string, const char*> changes;
  for (const auto& [name, crc] : one_files) {
    const auto found = files.find(name);
    if (found == files.end()) {
      changes[name] = "removed";
    } else if (found->second != crc) {
      changes[name] = "content";
    }
  }
  for (const auto& [name, crc] : files) {
    if (!one_files.contains(name)) {
      changes[name] = "added";
    }
  }
  return changes;
}

/// Returns the kind of change of each key of the meta data that differs, except the id of the save.
std::map<std::string, const char*> compare_meta(Json one, Json other) {
  std::map<std::string, const char*> changes;
  one.erase(storage::kSaveIdKey);
  other.erase(storage::kSaveIdKey);
  for (const auto& [key, value] : one.items()) {
    if (!other.contains(key)) {
      changes[key] = "removed";
    } else if (other[key] != value) {
      changes[key] = "content";
    }
  }
  for (const auto& [key, value] : other.items()) {
    if (!one.contains(key)) {
      changes[key] = "added";
    }
  }
  return changes;
}

/// Formats "7 to 8", with long values shortened.
std::string values_text(const Json& one, const Json& other, const std::string& key) {
  constexpr size_t kMostShown = 40;
  const auto shown = [&](const Json& meta) {
    return meta.contains(key) ? shortened(printable(meta[key].dump()), kMostShown) : "none";
  };
  return shown(one) + " to " + shown(other);
}

}  // namespace

Report diff_report(const fs::path& one_path, const fs::path& other_path) {
  const StoredCheckpoint one = open_checkpoint(one_path);
  const StoredCheckpoint other = open_checkpoint(other_path);
  Differences differences;
  compare_sets(one, other, differences);
  Json files = Json::array();
  std::vector<std::vector<std::string>> rows = std::move(differences.rows);
  const size_t tensors = rows.size();
  for (const auto& [name, change] : compare_files(one, other)) {
    files.push_back({{"name", name}, {"change", change}});
    rows.push_back({change, "file", printable(name), ""});
  }
  Json meta = Json::array();
  for (const auto& [key, change] : compare_meta(one.meta(), other.meta())) {
    meta.push_back({{"key", key}, {"change", change}});
    rows.push_back({change, "meta", printable(key), values_text(one.meta(), other.meta(), key)});
  }
  Report report;
  report.exit_code = rows.empty() ? kExitOk : kExitFailure;
  if (rows.empty()) {
    report.text = fmt::format(
        "no difference; {} {} equal\n",
        counted(static_cast<size_t>(differences.same()), "tensor"),
        differences.same() == 1 ? "is" : "are");
  } else {
    std::vector<std::vector<std::string>> table = {{"CHANGE", "SET", "NAME", "DETAILS"}};
    table.insert(table.end(), rows.begin(), rows.end());
    report.text = render_table(table, {false, false, false, false}, terminal_columns());
    report.text += fmt::format(
        "{} {}, {} equal\n",
        counted(tensors, "tensor"),
        tensors == 1 ? "differs" : "differ",
        with_commas(differences.same()));
  }
  report.json = {
      {"from", one_path.native()},
      {"to", other_path.native()},
      {"same", rows.empty()},
      {"tensors", std::move(differences.tensors)},
      {"tensors_same", differences.same()},
      {"files", std::move(files)},
      {"meta_changed", !meta.empty()},
      {"meta", std::move(meta)}};
  return report;
}

}  // namespace lockstep::cli
