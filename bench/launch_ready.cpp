// SPDX-License-Identifier: Apache-2.0
// Runs a rank that only joins the others, for bench/launch.py. Prints a JSON line once all ranks
// have joined: the time (CLOCK_MONOTONIC) and the launcher's peak memory. launch_ready.py does the
// same.
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"

namespace {

int64_t peak_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  int64_t peak = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      status >> peak;
    }
  }
  return peak;
}

}  // namespace

int main() {
  return lockstep::run_main([] {
    lockstep::Accelerator accelerator;
    accelerator.wait_for_everyone();
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    const nlohmann::json line = {
        {"ready", now.count()},
        {"ranks", accelerator.num_processes()},
        {"launcher_peak_kib", peak_kib(::getppid())}};
    std::cout << line.dump() + "\n" << std::flush;
    accelerator.end_training();
    return 0;
  });
}
