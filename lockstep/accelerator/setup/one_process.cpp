// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/one_process.h"

#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {

void run_on_process(const WorldSpec& world, int process, const std::function<void()>& body) {
  if (process < 0 || process >= world.size) {
    throw ConfigError(
        "on_process",
        fmt::format("process {} does not exist; expected 0 to {}", process, world.size - 1));
  }
  if (world.rank == process) {
    body();
  }
}

void run_on_local_process(const WorldSpec& world, int process, const std::function<void()>& body) {
  if (process < 0 || process >= world.local_size) {
    throw ConfigError(
        "on_local_process",
        fmt::format(
            "local process {} does not exist; expected 0 to {}", process, world.local_size - 1));
  }
  if (world.local_rank == process) {
    body();
  }
}

void run_in_turn(Group group, bool first, const std::function<void()>& body) {
  std::exception_ptr failure;
  if (first) {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const at::Tensor failed =
      group.all_reduce(at::full({1}, failure ? 1 : 0, at::kInt), ReduceOp::kMax).wait();
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (failed.item<int>() != 0) {
    throw Error("main_process_first", "the main process failed; see its own message");
  }
  if (!first) {
    body();
  }
}

void print_line(const std::string& line) {
  around_status_line([&] {
    const std::string text = line + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
}

}  // namespace lockstep
