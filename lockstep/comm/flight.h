// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// The group of all ranks of the job.
inline constexpr uint64_t kWorldGroup = 0;

/// An operation in this process's flight record (watch/flight_recorder.h), from start() of a
/// transport on. Copies stand for the same operation.
class FlightNote {
 public:
  /// `group`: equal on all its members, 0 for all ranks of the job. `sequence`: as in Fingerprint;
  /// -1 for send and recv.
  FlightNote(const Collective& collective, uint64_t group, int64_t sequence);

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
  void end(bool well) const;

 private:
  uint64_t number_;
};

/// While it lives, operations that this thread starts are not noted: they are parts of one that is.
class FlightSilence {
 public:
  FlightSilence();
  ~FlightSilence();
  FlightSilence(const FlightSilence&) = delete;
  FlightSilence& operator=(const FlightSilence&) = delete;
};

/// The id of the group that is made of `parent` by its `split`-th split, for those of `color`.
uint64_t flight_group(uint64_t parent, int64_t split, int color);

}  // namespace lockstep::comm
