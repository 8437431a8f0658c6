// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/flight_memory.h"

namespace lockstep::watch {

/// What the kernel says of a process.
struct ProcessState {
  /// As in /proc/PID/stat: R runs, S sleeps, D waits for a disk, T is stopped by a signal, t by a
  /// debugger, Z has ended.
  char state = 'R';
  int64_t cpu_ms = 0;  ///< Used since its start, by all its threads.
};

/// Nothing if there is no such process.
std::optional<ProcessState> process_state(int64_t pid);
/// What it has read and written in all its life, files and sockets and all; nothing if unknown.
std::optional<int64_t> process_bytes(int64_t pid);

/// One rank at one moment, as its launcher sees it.
struct RankView {
  int rank = 0;
  std::string host{};
  bool running = true;    ///< Its process has not ended.
  FlightRecord record{};  ///< pid 0: it has not joined, and is not watched.
  int64_t pid = 0;        ///< Of `process`: the one that has joined, else the one that was started.
  ProcessState process{};
  int64_t idle_ns = 0;     ///< For how long it has neither noted anything nor used the processor.
  int64_t stopped_ns = 0;  ///< For how long a signal has kept it stopped (state T).
  std::optional<int> exit_code{};  ///< Of a process that has ended: as a shell says it.
  /// Part of the time that it has spent in the job's operations lately; nothing if there were few.
  std::optional<double> in_operations{};

  bool watched() const { return running && record.pid != 0 && !record.left; }
  /// Its process has not come to connect(), as far as its launcher can see.
  bool never_joined() const { return record.pid == 0; }
  /// By a signal or a debugger.
  bool is_stopped() const { return running && (process.state == 'T' || process.state == 't'); }
  /// The operation it asked for first of those that are not over.
  const Operation* in_flight() const;
  const Operation* last_done() const;
};

/// A rank that left the job in good order while others went on, whom they may have missed; nothing
/// if there is none.
const RankView* who_left(const std::vector<RankView>& ranks);

/// "step 20, in all_reduce(sum) of float32[10] (operation 81) for 30.0 s", for people.
std::string describe(const RankView& view, int64_t now);

}  // namespace lockstep::watch
