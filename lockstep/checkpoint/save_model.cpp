// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/save_model.h"

#include "lockstep/checkpoint/output_tensors.h"
#include "lockstep/checkpoint/tied_tensors.h"
#include "lockstep/storage/byte_size.h"
#include "lockstep/storage/model_shards.h"

namespace lockstep::checkpoint {

std::vector<std::string> save_model(
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const std::string& max_shard_size) {
  const uint64_t max_shard_bytes = parse_bytes("save_model", max_shard_size);
  NamedTensors unique;
  for (const std::vector<size_t>& group : tied_groups(tensors)) {
    unique.push_back(tensors[group.front()]);
  }
  return write_model_files(folder, output_tensors(folder.string(), unique), max_shard_bytes);
}

}  // namespace lockstep::checkpoint
