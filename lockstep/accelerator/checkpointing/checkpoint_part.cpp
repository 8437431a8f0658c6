// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/checkpoint_part.h"

#include <fmt/format.h>

#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {

std::string StateToLoad::path(const std::string& file) const {
  return (reader.path() / file).string();
}

std::string StateToLoad::set_path(const std::string& stem) const {
  const std::string file = stem + ".safetensors";
  return path(
      reader.has(file)            ? file
      : is_in_parts(reader, stem) ? stem + "_part_of_rank_*.safetensors"
                                  : stem + "-*.safetensors");
}

NamedTensors StateToLoad::tensor_set(const std::string& stem) const {
  return reader.tensor_set(stem, writers_per_rank, share);
}

std::vector<NamedTensors> StateToLoad::of_all_ranks(
    const std::function<std::string(int rank)>& file_of) const {
  std::vector<NamedTensors> all;
  for (int rank_of_file = 0; rank_of_file < saved_by(); ++rank_of_file) {
    all.push_back(reader.tensors(file_of(rank_of_file)));
  }
  return all;
}

void StateToLoad::expect_same_mesh(const std::string& file) const {
  if (is_resharded() && !(saved.mesh.empty() && mesh.empty())) {
    const auto named = [](const std::string& text) { return text.empty() ? "no mesh" : text; };
    throw CheckpointError(
        path(file),
        fmt::format(
            "holds what each of {} processes of the mesh ({}) had, between two updates or with "
            "local "
            "SGD; this job has {} of ({}); resume it with the same mesh, save it after an update, "
            "and "
            "load that",
            saved_by(),
            named(saved.mesh),
            processes,
            named(mesh)));
  }
}

void StateToLoad::must_match(
    const char* what, size_t saved_count, size_t prepared_count, const std::string& remedy) const {
  if (saved_count != prepared_count) {
    throw CheckpointError(
        reader.path().string(),
        fmt::format(
            "holds {} {}, this program prepared {}{}",
            saved_count,
            what,
            prepared_count,
            remedy.empty() ? "" : "; " + remedy));
  }
}

}  // namespace lockstep::internal
