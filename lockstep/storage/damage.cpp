// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/damage.h"

#include "lockstep/base/error.h"
#include "lockstep/storage/content_check.h"

namespace lockstep::checkpoint {

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
  return found;
}

}  // namespace lockstep::checkpoint
