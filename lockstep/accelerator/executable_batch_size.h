// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace lockstep {

class Accelerator;

/// Returns whether `failure` is an out-of-memory error: of the host (std::bad_alloc, libtorch's CPU
/// allocator) or of a device (c10::OutOfMemoryError).
bool is_out_of_memory(const std::exception& failure);

/// Releases freed memory: the device allocator's cache and the C library's heap.
void release_cached_memory();

/// Coordinates one attempt with one batch size between the processes.
///
/// Cost: with several processes a new connection before the attempt, and a reduction of one number
/// after it; none during the attempt.
class BatchSizeAttempt {
 public:
  /// The result of an attempt, on one process or on all: the greatest value counts.
  enum class End {
    kDone,
    kLostOthers,  ///< Operations with other processes failed, because one of them gave up.
    kOutOfMemory
  };

  /// Reconnects the processes of `accelerator`; null: there is only one process. Collective.
  explicit BatchSizeAttempt(Accelerator* accelerator);

  /// Classifies the `failure` of this process; nothing if it is not an out-of-memory error.
  std::optional<End> end_of(const std::exception& failure) const;
  /// Returns the result over all processes. After a failure it forgets the prepared objects; after
  /// a failure of this process it closes the connection, so that operations of other processes that
  /// wait for this one fail. Collective.
  End agree(End here);

 private:
  void clean_up();
  bool has_peers() const;

  Accelerator* accelerator_;
};

namespace detail {
[[noreturn]] void no_executable_batch_size();
[[noreturn]] void attempt_lost_elsewhere();
int64_t checked_batch_size(int64_t next, int64_t was);
void report_smaller_batch_size(int64_t was, int64_t next, bool agreed);
}  // namespace detail

/// Calls `body(batch_size, ...)` with smaller and smaller batch sizes while memory runs out. The
/// size that worked is kept for the next call. See find_executable_batch_size.
template <typename Body>
class ExecutableBatchSize {
 public:
  ExecutableBatchSize(
      Body body,
      int64_t batch_size,
      std::function<int64_t(int64_t)> reduce,
      Accelerator* accelerator = nullptr)
      : body_(std::move(body)),
        batch_size_(detail::checked_batch_size(batch_size, batch_size + 1)),
        reduce_(std::move(reduce)),
        accelerator_(accelerator) {}

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    using Result = std::decay_t<std::invoke_result_t<Body&, int64_t, Arguments&...>>;
    struct Nothing {};
    std::unique_ptr<std::conditional_t<std::is_void_v<Result>, Nothing, Result>> result;
    const auto run = [&] {
      if constexpr (std::is_void_v<Result>) {
        body_(batch_size_, arguments...);
      } else {
        result = std::make_unique<Result>(body_(batch_size_, arguments...));
      }
    };
    while (!attempt(run)) {
      result.reset();
      shrink();
    }
    if constexpr (!std::is_void_v<Result>) {
      return std::move(*result);
    }
  }

  int64_t batch_size() const { return batch_size_; }

 private:
  /// Returns false if memory ran out, on any process.
  template <typename Run>
  bool attempt(const Run& run) {
    using End = BatchSizeAttempt::End;
    BatchSizeAttempt attempt(accelerator_);
    End here = End::kDone;
    std::exception_ptr lost;
    try {
      run();
    } catch (const std::exception& failure) {
      // Not retried here: the memory of the failed attempt is freed only after the handler returns.
      const auto end = attempt.end_of(failure);
      if (!end) {
        throw;
      }
      here = *end;
      lost = here == End::kLostOthers ? std::current_exception() : nullptr;
    }
    const End end = attempt.agree(here);
    if (end == End::kLostOthers && lost) {
      std::rethrow_exception(lost);
    }
    if (end == End::kLostOthers) {
      detail::attempt_lost_elsewhere();
    }
    return end == End::kDone;
  }

  void shrink() {
    const int64_t next = reduce_(batch_size_);
    if (next == 0) {
      detail::no_executable_batch_size();
    }
    detail::report_smaller_batch_size(batch_size_, next, accelerator_ != nullptr);
    batch_size_ = detail::checked_batch_size(next, batch_size_);
  }

  Body body_;
  int64_t batch_size_;
  std::function<int64_t(int64_t)> reduce_;
  Accelerator* accelerator_;
};

/// Returns nine tenths of a batch size, as Accelerate tries next.
inline int64_t nine_tenths(int64_t batch_size) {
  return batch_size * 9 / 10;
}

/// Tries `body(batch_size, arguments...)` with `starting_batch_size`, then nine tenths of it
/// (`reduce`), until it fits in memory:
///
///   auto train = lockstep::find_executable_batch_size([&](int64_t batch_size) { ... }, 256);
///   train();
///
/// `body` must build everything that depends on the size. Any other exception propagates. Throws
/// Error when the size reaches 0. For one process, or several that run out of memory at the same
/// point: a process that fails while the others do not leaves them waiting, which ends the job. Use
/// the overload with an accelerator for that.
template <typename Body>
ExecutableBatchSize<std::decay_t<Body>> find_executable_batch_size(
    Body&& body,
    int64_t starting_batch_size = 128,
    std::function<int64_t(int64_t)> reduce = nine_tenths) {
  return {std::forward<Body>(body), starting_batch_size, std::move(reduce)};
}

/// Does the same for the processes of `accelerator`, which agree on the size: if memory runs out on
/// one, all try the next smaller one.
///
///   auto train = lockstep::find_executable_batch_size(accelerator, [&](int64_t size) { ... },
///   256);
///
/// Collective. Before each attempt the processes reconnect, and after it they exchange the result.
/// A process that runs out of memory closes its connection, so that operations of the others fail
/// there and are tried again with the smaller size. Then the accelerator forgets the prepared
/// objects (free_memory). `reduce` must be the same on all processes. Nothing created in an attempt
/// may outlive it, since it would hold the connection. Throws ConfigError if the accelerator was
/// constructed with a group of several processes.
template <typename Body>
ExecutableBatchSize<std::decay_t<Body>> find_executable_batch_size(
    Accelerator& accelerator,
    Body&& body,
    int64_t starting_batch_size = 128,
    std::function<int64_t(int64_t)> reduce = nine_tenths) {
  return {std::forward<Body>(body), starting_batch_size, std::move(reduce), &accelerator};
}

}  // namespace lockstep
