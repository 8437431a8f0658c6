// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Identifies the group of all ranks of the job.
inline constexpr uint64_t kWorldGroup = 0;

/// Records one operation in this process's flight record (watch/flight_recorder.h), from the
/// transport's start() on, and notifies its observer. Copies refer to the same operation.
class FlightEntry {
 public:
  /// `group`: equal on all its members, 0 for all ranks of the job. `sequence`: as in Fingerprint;
  /// -1 for send and recv.
  FlightEntry(const Collective& collective, uint64_t group, int64_t sequence);

  /// Runs `body`, and records its begin, end and failure.
  template <typename Body>
  void run(const Body& body) const {
    begin();
    try {
      body();
    } catch (...) {
      end(false);
      throw;
    }
    end(true);
  }

  void begin() const;
  void end(bool succeeded, std::optional<double> measured_ms = std::nullopt) const;
  bool is_observed() const { return observer_ != nullptr; }

 private:
  uint64_t number_;
  std::shared_ptr<OperationObserver> observer_;
};

/// RAII scope: operations that this thread starts are not recorded or observed, because they are
/// parts of a recorded one.
class FlightRecordingPause {
 public:
  FlightRecordingPause();
  ~FlightRecordingPause();
  FlightRecordingPause(const FlightRecordingPause&) = delete;
  FlightRecordingPause& operator=(const FlightRecordingPause&) = delete;
};

/// Returns the id of the group from the `split`-th split of `parent`, with that `color`.
uint64_t flight_group(uint64_t parent, int64_t split, int color);

}  // namespace lockstep::comm
