// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/structure.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/saved_meta.h"
#include "lockstep/storage/state_files.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::storage {
namespace {

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
      if (!meta.models_taken_over.contains(i) &&
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

}  // namespace

std::vector<CheckpointError> find_structural_faults(
    const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged) {
  return StructureCheck(checkpoint, damaged).run();
}

}  // namespace lockstep::storage
