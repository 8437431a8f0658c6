// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {

/// Runs `body` on `size` threads, each with an Accelerator of one world on one host. For tests.
inline void accelerated_ranks(
    int size, const AcceleratorOptions& options, const std::function<void(Accelerator&)>& body) {
  ranks(size, [&](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(options, world, std::move(group));
    body(accelerator);
  });
}

}  // namespace lockstep
