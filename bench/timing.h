// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>

// Defines timers of the benches' C++ programs. It is without torch, since MPI's program includes
// it.
namespace bench {

using Operation = std::function<void()>;

inline double seconds_of(const Operation& operation, int64_t times) {
  const auto began = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) {
    operation();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Returns the mean time of `steps` steps, after a few to warm up. `finish` waits for the device.
inline double step_microseconds(
    const Operation& step, int64_t steps, const Operation& finish = [] {}) {
  seconds_of(step, std::clamp<int64_t>(steps / 5, 3, 50));
  finish();
  const double seconds = seconds_of([&] { seconds_of(step, steps), finish(); }, 1);
  return seconds * 1e6 / static_cast<double>(steps);
}

/// Returns the mean time of an operation, repeated for `seconds`. `slowest` returns the largest
/// value of all ranks.
inline double microseconds(
    const Operation& operation,
    double seconds,
    const std::function<double(double)>& slowest,
    const Operation& barrier) {
  seconds_of(operation, 2);
  const double once = slowest(seconds_of(operation, 3) / 3);
  const auto times = static_cast<int64_t>(seconds / once) + 2;
  barrier();
  return slowest(seconds_of(operation, times) / static_cast<double>(times)) * 1e6;
}

/// Prints a line for collectives.py.
inline void print_collective(const char* operation, int64_t bytes, double us) {
  std::printf(
      "{\"operation\": \"%s\", \"bytes\": %lld, \"us\": %.4f}\n",
      operation,
      static_cast<long long>(bytes),
      us);
  std::fflush(stdout);
}

}  // namespace bench
