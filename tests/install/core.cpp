// SPDX-License-Identifier: Apache-2.0
// A project that uses lockstep::core without torch: the world, and errors.
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
