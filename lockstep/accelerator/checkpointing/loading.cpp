// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/loading.h"

#include <fmt/format.h>

#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/base/error.h"

namespace lockstep {

std::string Loading::path(const std::string& file) const {
  return (reader.path() / file).string();
}

std::string Loading::set_path(const std::string& stem) const {
  const std::string file = stem + ".safetensors";
  return path(
      reader.has(file)            ? file
      : is_in_parts(reader, stem) ? stem + "_part_of_rank_*.safetensors"
                                  : stem + "-*.safetensors");
}

NamedTensors Loading::tensor_set(const std::string& stem) const {
  return reader.tensor_set(stem, targets.writers_per_rank, share);
}

std::vector<NamedTensors> Loading::of_all_ranks(
    const std::function<std::string(int rank)>& file_of) const {
  std::vector<NamedTensors> all;
  for (int rank = 0; rank < saved_by; ++rank) {
    all.push_back(reader.tensors(file_of(rank)));
  }
  return all;
}

void Loading::must_match(
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

}  // namespace lockstep
