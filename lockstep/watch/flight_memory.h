// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file_map.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/watch/operation.h"

namespace lockstep::watch {

/// A snapshot of a rank's record.
struct FlightRecord {
  int64_t pid = 0;  ///< 0: no process uses the memory yet.
  int64_t rank = 0;
  int64_t world = 1;
  bool left = false;    ///< The rank has left the job.
  bool saving = false;  ///< The rank writes a checkpoint, or waits for ranks that do.
  int64_t step = 0;     ///< Training steps done.
  uint64_t issued = 0;  ///< Requested operations.
  uint64_t ended = 0;
  int64_t progress_ns = 0;            ///< Time of the last change of this record.
  std::vector<Operation> operations;  ///< The last ones, oldest first.

  /// Returns whether the last operation failed, probably because another rank was lost.
  bool last_operation_failed() const {
    return !operations.empty() && operations.back().stage == Stage::kFailed;
  }
};

/// Maps the memory in which a rank records its operations and its launcher reads them. The launcher
/// can read it even if the rank is stopped, hangs, or is dead. The rank writes without system calls
/// and without waiting.
///
/// Layout: a header of atomic words, then a ring of kOperations entries, each with a version that
/// is odd while it is written. A sealed memfd: nothing in the file system, freed with the last
/// process that maps it, and its size cannot change under a reader.
///
/// Cost: 64 KiB per rank. Thread safety: one writer at a time; any number of concurrent readers.
class FlightMemory {
 public:
  static constexpr size_t kOperations = 256;

  /// Creates an empty record. Throws Error if the kernel refuses.
  static FlightMemory create();
  /// Opens the record of another process, by its path(). Returns nothing if `path` has no valid
  /// record.
  static std::optional<FlightMemory> open(const std::string& path);

  FlightMemory(FlightMemory&&) noexcept = default;
  FlightMemory& operator=(FlightMemory&&) noexcept = default;
  FlightMemory(const FlightMemory&) = delete;
  FlightMemory& operator=(const FlightMemory&) = delete;
  ~FlightMemory() = default;

  /// Returns the path for open() in another process of this user, valid while this process lives;
  /// empty for opened memory.
  const std::string& path() const { return path_; }

  /// Makes process `pid` the writer. Returns false if another process is the writer.
  bool claim(int64_t pid, int64_t rank, int64_t world);
  void write(const Operation& operation);
  /// Counts the end of an operation whose entry was overwritten by a later one.
  void count_end();
  /// Returns the entry of operation `number`, if it still exists. For the writer.
  std::optional<Operation> find(uint64_t number) const;
  void set_step(int64_t step);
  void set_left();
  void set_saving(bool saving);

  FlightRecord read() const;

 private:
  struct Layout;
  FlightMemory(FileMap map, Layout* layout, UniqueFd fd, std::string path);
  void record_progress();

  FileMap map_;
  Layout* layout_;
  UniqueFd fd_;
  std::string path_;
};

/// Returns CLOCK_MONOTONIC in nanoseconds.
int64_t now_ns();

}  // namespace lockstep::watch
