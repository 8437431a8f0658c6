// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

namespace lockstep {

/// Whether `failure` says that memory ran out: the host's (std::bad_alloc, libtorch's CPU
/// allocator), or a device's (c10::OutOfMemoryError).
bool is_out_of_memory(const std::exception& failure);

/// Gives freed memory back: the device allocator's cache and the C library's heap.
void release_cached_memory();

namespace detail {
[[noreturn]] void no_executable_batch_size();
int64_t checked_batch_size(int64_t next, int64_t was);
void report_smaller_batch_size(int64_t was, int64_t next);
}  // namespace detail

/// `body(batch_size, ...)`, called again with a smaller batch size for as long as memory runs out.
/// The size that worked is kept for the next call. See find_executable_batch_size.
template <typename Body>
class ExecutableBatchSize {
 public:
  ExecutableBatchSize(Body body, int64_t batch_size, std::function<int64_t(int64_t)> reduce)
      : body_(std::move(body)),
        batch_size_(detail::checked_batch_size(batch_size, batch_size + 1)),
        reduce_(std::move(reduce)) {}

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    while (true) {
      bool out_of_memory = false;
      try {
        return body_(batch_size_, arguments...);
      } catch (const std::exception& failure) {
        // Not retried here: what the failed attempt holds is freed only when the handler is left.
        out_of_memory = is_out_of_memory(failure);
        if (!out_of_memory) {
          throw;
        }
      }
      release_cached_memory();
      const int64_t next = reduce_(batch_size_);
      if (next == 0) {
        detail::no_executable_batch_size();
      }
      detail::report_smaller_batch_size(batch_size_, next);
      batch_size_ = detail::checked_batch_size(next, batch_size_);
    }
  }

  int64_t batch_size() const { return batch_size_; }

 private:
  Body body_;
  int64_t batch_size_;
  std::function<int64_t(int64_t)> reduce_;
};

/// Tries `body(batch_size, arguments...)` with `starting_batch_size`, then nine tenths of it
/// (`reduce`), until it fits in memory:
///
///   auto train = lockstep::find_executable_batch_size([&](int64_t batch_size) { ... }, 256);
///   train();
///
/// `body` must build everything that depends on the size itself. Any other exception passes. Error
/// when the size reaches 0. With several processes the sizes agree only if all of them run out of
/// memory alike: a process that fails alone leaves the others waiting for it, which ends the job.
template <typename Body>
ExecutableBatchSize<std::decay_t<Body>> find_executable_batch_size(
    Body&& body,
    int64_t starting_batch_size = 128,
    std::function<int64_t(int64_t)> reduce = [](int64_t size) { return size * 9 / 10; }) {
  return {std::forward<Body>(body), starting_batch_size, std::move(reduce)};
}

}  // namespace lockstep
