// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/watch/operation.h"

namespace lockstep::watch {

/// What a rank has done, as somebody else sees it.
struct FlightRecord {
  int64_t pid = 0;  ///< 0: no process has taken the memory for its own yet.
  int64_t rank = 0;
  int64_t world = 1;
  bool left = false;    ///< It has said that it takes part no more.
  bool saving = false;  ///< It writes a checkpoint, or waits for the others that do.
  int64_t step = 0;     ///< Training steps done.
  uint64_t issued = 0;  ///< Operations.
  uint64_t ended = 0;
  int64_t progress_ns = 0;            ///< When anything of this last changed.
  std::vector<Operation> operations;  ///< The last ones, oldest first.

  /// Its last operation failed: likely for want of another rank.
  bool lost_peer() const {
    return !operations.empty() && operations.back().stage == Stage::kFailed;
  }
};

/// The memory in which a rank notes what it does and its launcher reads it: also while the rank is
/// stopped, hangs, or is dead. The rank writes without a system call, and waits for nobody.
///
/// Layout: a header of atomic words, then a ring of kOperations slots, each with a version that is
/// odd while it is written. Held as a sealed memfd: nothing in the file system, gone with the last
/// process that maps it, and nobody can shrink it under a reader.
///
/// Cost: 64 KiB a rank. Thread safety: one writer at a time; any number of readers beside it.
class FlightMemory {
 public:
  static constexpr size_t kOperations = 256;

  /// New and empty. Error if the kernel has none to give.
  static FlightMemory create();
  /// That of another process, by path(). Nothing if there is none, or it is something else.
  static std::optional<FlightMemory> open(const std::string& path);

  FlightMemory(FlightMemory&&) noexcept = default;
  FlightMemory& operator=(FlightMemory&&) noexcept = default;
  FlightMemory(const FlightMemory&) = delete;
  FlightMemory& operator=(const FlightMemory&) = delete;
  ~FlightMemory() = default;

  /// Where open() of another process of this user finds it, while this process lives; empty for
  /// memory that was opened.
  const std::string& path() const { return path_; }

  /// Makes this process (or `pid`) the writer; false if another one is.
  bool claim(int64_t pid, int64_t rank, int64_t world);
  void write(const Operation& operation);
  /// Counts the end of an operation whose slot has been taken by a later one.
  void count_end();
  /// Slot of `number`, if it is still there. For the writer.
  std::optional<Operation> find(uint64_t number) const;
  void set_step(int64_t step);
  void set_left();
  void set_saving(bool saving);

  FlightRecord read() const;

 private:
  struct Layout;
  struct Unmap {
    void operator()(Layout* layout) const;
  };
  FlightMemory(Layout* layout, UniqueFd fd, std::string path);
  void touch();

  std::unique_ptr<Layout, Unmap> layout_;
  UniqueFd fd_;
  std::string path_;
};

/// CLOCK_MONOTONIC.
int64_t now_ns();

}  // namespace lockstep::watch
