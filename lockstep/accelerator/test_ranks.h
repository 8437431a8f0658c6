// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {

/// Runs `body` on `size` threads, each with an Accelerator of one world on one host. For tests.
/// `change` changes the group of each.
inline void accelerated_ranks(
    int size,
    const AcceleratorOptions& options,
    const std::function<void(Accelerator&)>& body,
    const std::function<Group(const Group&)>& change = nullptr) {
  ranks(size, [&](Group group) {
    if (change) {
      group = change(group);
    }
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(options, world, std::move(group));
    body(accelerator);
  });
}

/// Returns the message of load_state's CheckpointError; "no error" if it throws none. Collective.
inline std::string load_error(Accelerator& accelerator, const std::filesystem::path& folder) {
  return error_of<CheckpointError>([&] { accelerator.load_state(folder); });
}

}  // namespace lockstep
