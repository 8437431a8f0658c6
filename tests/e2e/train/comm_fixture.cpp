// SPDX-License-Identifier: Apache-2.0
//
// Ranks that join and run what the first argument names:
//   join: nothing more; profile: a profile
//   vectors, tensors: a gather in which rank 1 passes more tensors, or a longer tensor
//   rows: padding of a tensor that rank 1 refuses
//   leave RANK: all-reduces, during which that rank ends, without a word
//   train SECONDS PREFIX: all-reduces for that time; the file PREFIX<rank> exists once all have
//   joined
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

int run(const std::string& mode, double number, const std::string& prefix) {
  lockstep::Accelerator accelerator;
  const bool is_other = accelerator.process_index() == 1;
  if (mode == "vectors") {
    std::ignore =
        accelerator.gather(std::vector<torch::Tensor>(is_other ? 3 : 2, torch::ones({4})));
  } else if (mode == "tensors") {
    std::ignore = accelerator.gather(torch::ones({is_other ? 3 : 2}));
  } else if (mode == "rows") {
    std::ignore = accelerator.pad_across_processes(is_other ? torch::ones({}) : torch::ones({2}));
  } else if (mode == "profile") {
    const char* const folder = std::getenv("TRACES");
    const auto profile = accelerator.profile({.output_trace_dir = folder == nullptr ? "" : folder});
    torch::ones({2}).sum();
    profile->finish();
  } else if (mode == "leave") {
    for (int step = 0; step < 100; ++step) {
      if (step == 3 && accelerator.process_index() == static_cast<int64_t>(number)) {
        std::_Exit(0);
      }
      std::ignore = accelerator.reduce(torch::ones({2}));
    }
  } else if (mode == "train") {
    accelerator.wait_for_everyone();
    std::ofstream(prefix + std::to_string(accelerator.process_index())) << "joined";
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(number);
    bool goes_on = true;
    while (goes_on) {
      const bool mine = std::chrono::steady_clock::now() < end;
      goes_on = accelerator.reduce(torch::full({1}, mine ? 1.0 : 0.0)).item<double>() > 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::printf("rank %d is done\n", static_cast<int>(accelerator.process_index()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? std::stod(argv[2]) : 0, argc > 3 ? argv[3] : "");
  });
}
