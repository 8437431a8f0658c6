// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/verify.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/file/crc_combine.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/saved_meta.h"
#include "lockstep/storage/state_files.h"
#include "lockstep/storage/stored_checkpoint.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::storage {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

/// Reports on the verification of one file.
struct ContentWatch {
  /// Called for a damaged or unreadable tensor. If it returns, the next tensor is checked.
  std::function<void(const std::string& tensor, const CheckpointError& error)> damaged;
  /// Called regularly with the bytes read; their sum is at most the file's expected size.
  std::function<void(uint64_t bytes)> advance;
};

/// Reads an open file in blocks.
class BlockReader {
 public:
  BlockReader(const std::filesystem::path& path, const UniqueFd& file, const ContentWatch& watch)
      : path_(path), file_(file), watch_(watch), block_(kBlockBytes, '\0') {}

  std::string read(uint64_t offset, size_t size) {
    std::string bytes(size, '\0');
    read_at(path_, file_, offset, bytes.data(), size);
    watch_.advance(size);
    return bytes;
  }

  uint32_t crc_of(uint64_t begin, uint64_t end, const std::string& tensor = "") {
    uint32_t crc = 0;
    while (begin < end) {
      const size_t size = std::min<uint64_t>(end - begin, kBlockBytes);
      read_at(path_, file_, begin, block_.data(), size, tensor);
      crc = crc32c(crc, block_.data(), size);
      begin += size;
      watch_.advance(size);
    }
    return crc;
  }

 private:
  const std::filesystem::path& path_;
  const UniqueFd& file_;
  const ContentWatch& watch_;
  std::string block_;
};

void check_tensors(
    const std::filesystem::path& path,
    BlockReader& reader,
    const FileRecord& record,
    const ContentWatch& watch) {
  const uint64_t bytes = record.summary.bytes;
  std::string head = reader.read(0, std::min<uint64_t>(bytes, kLengthBytes));
  const uint64_t header_bytes = safetensors_header_bytes(path, head, bytes);
  head += reader.read(head.size(), header_bytes - head.size());
  const SafetensorsHeader header = parse_safetensors_header(path, head, bytes);
  check_header(path, head, header.tensors, record);
  for (const TensorEntry& entry : header.tensors) {
    try {
      const uint64_t begin = header.data_begin + entry.begin;
      const uint64_t end = header.data_begin + entry.end;
      const uint32_t crc = reader.crc_of(begin, end, in_quotes(entry.name));
      check_crc(path, crc, record.summary.tensors.at(entry.name), entry.name);
    } catch (const CheckpointError& error) {
      watch.damaged(entry.name, error);
    }
  }
}

/// Reads a file once from start to end and compares everything. Throws CheckpointError for faults
/// of the complete file.
void check_content(
    const std::filesystem::path& path, const FileRecord& record, const ContentWatch& watch) {
  const auto [file, bytes] = open_regular(path);
  check_size(path, bytes, record);
  BlockReader reader(path, file, watch);
  if (record.summary.tensors.empty()) {
    check_crc(path, reader.crc_of(0, bytes), record.summary.crc32c);
  } else {
    check_tensors(path, reader, record, watch);
  }
}

/// Collects the faults of one checkpoint.
class StructureCheck {
 public:
  StructureCheck(const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged)
      : checkpoint_(checkpoint), damaged_(damaged) {}

  std::vector<CheckpointError> run() {
    if (is_saved_state(checkpoint_.meta())) {
      attempt([&] { check_files(read_saved_meta(checkpoint_)); });
    }
    for (const std::string& stem : TensorSet::stems(checkpoint_)) {
      if (!is_damaged(stem)) {
        attempt([&] { const TensorSet set(checkpoint_, stem); });
      }
    }
    for (const std::string& file : checkpoint_.files()) {
      if (state_files::is_part_of_rank(file) && !damaged_.contains(file)) {
        attempt([&] { check_part_of_rank(file); });
      }
    }
    return std::move(faults_);
  }

 private:
  template <typename Step>
  void attempt(const Step& step) {
    try {
      step();
    } catch (const CheckpointError& error) {
      faults_.push_back(error);
    }
  }

  /// Returns whether any file of the set is damaged.
  bool is_damaged(const std::string& stem) const {
    return std::any_of(damaged_.begin(), damaged_.end(), [&](const std::string& file) {
      return file == stem + ".safetensors" || file.starts_with(stem + "-");
    });
  }

  /// Reports only the first missing file of each kind: with a wrong count millions could be
  /// missing.
  void check_files(const SavedMeta& meta) {
    for (size_t i = 0; i < meta.models; ++i) {
      if (!meta.excluded_models.contains(i) &&
          !expect_set(state_files::numbered("model", i), "meta.models")) {
        break;
      }
    }
    for (size_t i = 0; i < meta.optimizer_steps.size(); ++i) {
      const bool complete =
          meta.local_sgd_steps
              ? expect_of_ranks(
                    meta, state_files::optimizer(i) + "_of_rank", {".safetensors", ".json"})
              : expect_optimizer(i);
      if (!complete) {
        break;
      }
    }
    expect_of_ranks(meta, "random_states", {".safetensors"});
    expect_of_ranks(meta, "loaders", {".json"});
    expect_of_ranks(meta, "accumulation", {".json"});
  }

  bool expect_optimizer(size_t index) {
    const std::string stem = state_files::optimizer(index);
    return expect_set(stem, "meta.optimizer_steps") &&
           expect_file(stem + ".json", "meta.optimizer_steps");
  }

  bool expect_set(const std::string& stem, const char* because) {
    const std::vector<std::string> files = checkpoint_.files();
    const bool in_parts = std::any_of(files.begin(), files.end(), [&](const std::string& file) {
      return state_files::is_part_of_rank(file) && file.starts_with(stem + "_part_of_rank_");
    });
    return in_parts || TensorSet::exists(checkpoint_, stem) ||
           expect_file(stem + ".safetensors", because);
  }

  bool expect_file(const std::string& file, const char* because) {
    if (checkpoint_.has(file)) {
      return true;
    }
    faults_.emplace_back(
        (checkpoint_.path() / file).string(),
        fmt::format(
            "is not listed in {}, although {} in the manifest requires it; try an earlier "
            "checkpoint",
            kManifestName,
            because));
    return false;
  }

  /// Checks that there is one file for each rank that saved. If each host saved its own ranks'
  /// parts, the manifest does not list those ranks, and only the number of files is checked.
  bool expect_of_ranks(
      const SavedMeta& meta, const std::string& stem, const std::vector<const char*>& endings) {
    const int ranks = checkpoint_.world_size();
    bool complete = true;
    for (const char* ending : endings) {
      if (ranks == meta.processes) {
        for (int rank = 0; complete && rank < ranks; ++rank) {
          complete = expect_file(state_files::of_rank(stem, rank, ending), "world_size");
        }
        continue;
      }
      const std::vector<std::string> files = checkpoint_.files();
      const auto listed = std::count_if(files.begin(), files.end(), [&](const std::string& file) {
        return file.starts_with(stem + "_") && file.ends_with(ending);
      });
      if (listed < ranks) {
        faults_.emplace_back(
            (checkpoint_.path() / kManifestName).string(),
            fmt::format(
                "lists {} files {}_<rank>{}; expected {} (its world_size); try an earlier "
                "checkpoint",
                listed,
                stem,
                ending,
                ranks));
        complete = false;
      }
    }
    return complete;
  }

  void check_part_of_rank(const std::string& file) const {
    const SafetensorsMap map = checkpoint_.open_tensors(file);
    const auto text = map.metadata().find(kPartKey);
    if (text == map.metadata().end()) {
      throw CheckpointError(
          map.path(), fmt::format("lacks the metadata {}, which describes its content", kPartKey));
    }
    const Slices slices = parse_slices(map.path(), text->second);
    for (const TensorEntry& entry : map.entries()) {
      const auto slice = slices.find(entry.name);
      if (slice != slices.end()) {
        check_slice_fits(map.path(), entry.name, entry.shape, slice->second);
      }
    }
  }

  const StoredCheckpoint& checkpoint_;
  const std::set<std::string>& damaged_;
  std::vector<CheckpointError> faults_;
};

/// Returns the name without the quotes of an error message.
std::string unquoted(const std::string& name) {
  return name.size() >= 2 && name.front() == '"' && name.back() == '"'
             ? name.substr(1, name.size() - 2)
             : name;
}

}  // namespace

void check_size(const std::string& path, uint64_t got, const FileRecord& record) {
  if (got != record.summary.bytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "has the wrong size; got {} bytes, expected {}; try an earlier checkpoint",
            got,
            record.summary.bytes));
  }
}

void check_crc(
    const std::string& path, uint32_t got, uint32_t expected, const std::string& tensor) {
  if (got != expected) {
    throw CheckpointError(
        path,
        fmt::format(
            "is damaged; its content has crc32c {:08x}, expected {:08x}; try an earlier checkpoint",
            got,
            expected),
        tensor.empty() ? tensor : in_quotes(tensor));
  }
}

void check_header(
    const std::string& path,
    std::string_view header,
    const std::vector<TensorEntry>& entries,
    const FileRecord& record) {
  const auto& expected = record.summary.tensors;
  uint32_t file_crc = crc32c(header);
  std::set<std::string_view> found;
  for (const TensorEntry& entry : entries) {
    const auto known = expected.find(entry.name);
    if (known == expected.end()) {
      throw CheckpointError(
          path, "has a tensor that the manifest does not list", in_quotes(entry.name));
    }
    found.insert(entry.name);
    file_crc = crc32c_combine(file_crc, known->second, entry.end - entry.begin);
  }
  for (const auto& [name, crc] : expected) {
    if (!found.contains(name)) {
      throw CheckpointError(path, "lacks a tensor that the manifest lists", in_quotes(name));
    }
  }
  check_crc(path, file_crc, record.summary.crc32c);
}

void verify_content(const std::filesystem::path& path, const FileRecord& record) {
  check_content(
      path,
      record,
      {.damaged = [](const std::string& /*tensor*/,
                     const CheckpointError& error) { throw CheckpointError(error); },
       .advance = [](uint64_t /*bytes*/) {}});
}

std::vector<CheckpointError> find_structural_faults(
    const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged) {
  return StructureCheck(checkpoint, damaged).run();
}

std::vector<Damage> find_damage(
    const StoredCheckpoint& checkpoint, const std::function<void(uint64_t bytes)>& advance) {
  std::vector<Damage> found;
  for (const FileRecord& record : checkpoint.manifest().files) {
    uint64_t left = record.summary.bytes;
    const ContentWatch watch{
        .damaged =
            [&](const std::string& tensor, const CheckpointError& error) {
              found.push_back({record.name, tensor, error.what()});
            },
        .advance =
            [&](uint64_t bytes) {
              left -= bytes;
              advance(bytes);
            }};
    try {
      check_content(checkpoint.path() / record.name, record, watch);
    } catch (const CheckpointError& error) {
      found.push_back({record.name, "", error.what()});
    }
    advance(left);
  }
  std::set<std::string> damaged;
  for (const Damage& each : found) {
    damaged.insert(each.file);
  }
  for (const CheckpointError& fault : find_structural_faults(checkpoint, damaged)) {
    const std::string file = std::filesystem::path(fault.path()).filename();
    found.push_back({file, unquoted(fault.tensor()), fault.what()});
  }
  return found;
}

}  // namespace lockstep::storage
