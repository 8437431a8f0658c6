// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// The group of all ranks of the job.
inline constexpr uint64_t kWorldGroup = 0;

/// Whoever wants to know how long one operation takes, see TimedScope. Called by the thread that
/// carries it out, whichever that is; begin once at most, end once.
class OperationTimer {
 public:
  OperationTimer() = default;
  virtual ~OperationTimer() = default;
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;
  virtual void begin() = 0;
  /// `measured_ms`: where the device itself has said how long it took.
  virtual void end(bool well, std::optional<double> measured_ms) = 0;
};

/// While it lives, the next operation that this thread starts, and that is no part of another,
/// tells `timer` when it begins and ends.
class TimedScope {
 public:
  explicit TimedScope(std::shared_ptr<OperationTimer> timer);
  ~TimedScope();
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;
  /// Whether one has come that will tell it: transports of threads keep no notes.
  bool is_taken() const;

 private:
  std::shared_ptr<OperationTimer> outer_;
};

/// An operation in this process's flight record (watch/flight_recorder.h), from start() of a
/// transport on. Copies stand for the same operation.
class FlightEntry {
 public:
  /// `group`: equal on all its members, 0 for all ranks of the job. `sequence`: as in Fingerprint;
  /// -1 for send and recv.
  FlightEntry(const Collective& collective, uint64_t group, int64_t sequence);

  /// Runs `body`, and notes when it begins and how it ends.
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
  void end(bool well, std::optional<double> measured_ms = std::nullopt) const;
  /// Whether somebody wants to know how long it takes.
  bool is_timed() const { return timer_ != nullptr; }

 private:
  uint64_t number_;
  std::shared_ptr<OperationTimer> timer_;
};

/// While it lives, operations that this thread starts are not noted: they are parts of one that is.
class FlightRecordingPause {
 public:
  FlightRecordingPause();
  ~FlightRecordingPause();
  FlightRecordingPause(const FlightRecordingPause&) = delete;
  FlightRecordingPause& operator=(const FlightRecordingPause&) = delete;
};

/// The id of the group that is made of `parent` by its `split`-th split, for those of `color`.
uint64_t flight_group(uint64_t parent, int64_t split, int color);

}  // namespace lockstep::comm
