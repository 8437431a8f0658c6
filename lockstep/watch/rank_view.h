// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/flight_memory.h"

namespace lockstep::watch {

/// The kernel's state of a process.
struct ProcessState {
  /// The letter in /proc/PID/stat. R: running. S: sleeping. D: waiting for a disk. T: stopped by a
  /// signal. t: stopped by a debugger. Z: ended.
  char state = 'R';
  int64_t cpu_ms = 0;  ///< CPU time of all its threads since its start.
};

/// Returns the state of a process; nothing if it does not exist.
std::optional<ProcessState> process_state(int64_t pid);
/// Returns the bytes it has read and written, including files and sockets; nothing if unknown.
std::optional<int64_t> process_bytes(int64_t pid);

/// The launcher's view of one rank at one moment.
struct RankView {
  int rank = 0;
  std::string host{};
  bool running = true;    ///< Its process has not ended.
  FlightRecord record{};  ///< pid 0: it has not joined, and is not watched.
  int64_t pid = 0;        ///< Process id of the process that joined, else of the started one.
  ProcessState process{};
  int64_t idle_ns = 0;             ///< Time since it last recorded something or used the processor.
  int64_t stopped_ns = 0;          ///< Time for which a signal has kept it stopped (state T).
  std::optional<int> exit_code{};  ///< Exit code of an ended process, as in a shell.
  /// The recent share of time in the job's operations; nothing for too few operations.
  std::optional<double> in_operations{};

  bool watched() const { return running && record.pid != 0 && !record.left; }
  /// Returns whether its process has not called connect(), as far as its launcher can see.
  bool never_joined() const { return record.pid == 0; }
  /// Returns whether a signal or a debugger has stopped it.
  bool is_stopped() const { return running && (process.state == 'T' || process.state == 't'); }
  /// Returns the first requested operation that has not ended.
  const Operation* in_flight() const;
  const Operation* last_done() const;
};

/// Returns a rank that left the job, or ended, without an error while others, which may need it,
/// continue. Returns null if no rank did.
const RankView* find_left_rank(const std::vector<RankView>& ranks);

/// Formats "step 20, in all_reduce(sum) of float32[10] (operation 81) for 30.0 s".
std::string describe(const RankView& view, int64_t now);

}  // namespace lockstep::watch
