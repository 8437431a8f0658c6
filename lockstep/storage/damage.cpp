// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/damage.h"

#include <filesystem>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/storage/content_check.h"
#include "lockstep/storage/structure.h"

namespace lockstep::storage {
namespace {

/// Returns the name without the quotes of an error message.
std::string unquoted(const std::string& name) {
  return name.size() >= 2 && name.front() == '"' && name.back() == '"'
             ? name.substr(1, name.size() - 2)
             : name;
}

}  // namespace

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
