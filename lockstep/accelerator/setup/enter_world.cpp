// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/enter_world.h"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>

#include "lockstep/base/host/cores.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

/// Limits this rank's threads to its share of the cores, unless the launcher has set them.
/// Otherwise every rank would start a thread for every core.
void share_cores(const WorldSpec& world) {
  if (world.size == 1 || Environment::process().text("OMP_NUM_THREADS")) {
    return;
  }
  // srun and mpirun may have bound this rank to its share already.
  const int cores = available_cores();
  const int share = static_cast<int>(std::thread::hardware_concurrency()) / world.local_size;
  at::set_num_threads(cores > share ? std::max(1, cores / world.local_size) : cores);
}

}  // namespace

WorldSpec enter_world(const Environment& environment) {
  WorldSpec world = world_from_environment(environment);
  set_process_rank({world.rank, world.size});
  share_cores(world);
  return world;
}

}  // namespace lockstep
