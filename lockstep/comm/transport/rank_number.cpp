// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/rank_number.h"

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {

uint64_t await_number(int rank, Milliseconds timeout, const std::function<uint64_t()>& read) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (const uint64_t number = read(); number != 0) {
      return number;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw CommError(
          "number_of",
          fmt::format(
              "rank {} has set no number within {:.1f} s; it must call set_number",
              rank,
              std::chrono::duration<double>(timeout).count()),
          rank);
    }
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

}  // namespace lockstep::comm
