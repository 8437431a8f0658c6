// SPDX-License-Identifier: Apache-2.0
// What a project gets of lockstep::core, without torch: the world, and errors that say what to do.
#include <iostream>
#include <lockstep/base/env.h>
#include <lockstep/base/host/world.h>
#include <lockstep/base/program/run_main.h>

int main() {
  return lockstep::run_main([] {
    const lockstep::WorldSpec world =
        lockstep::world_from_environment(lockstep::Environment::process());
    std::cout << "rank " << world.rank << " of " << world.size << '\n';
    return 0;
  });
}
