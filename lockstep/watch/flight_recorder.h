// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

#include "lockstep/base/env.h"
#include "lockstep/watch/flight_memory.h"

namespace lockstep::watch {

/// Notes what this process does: each operation when it is issued, begins and ends, and the
/// training step. The last 256 operations are kept, in memory that `lockstep launch` reads
/// (LOCKSTEP_FLIGHT says where), else in memory of its own.
///
/// Cost: about 100 ns a note, no system call, no allocation. Thread safety: any thread may note.
class FlightRecorder {
 public:
  /// That of this process, made by the first call. Whoever comes first among the processes that
  /// were given the same LOCKSTEP_FLIGHT (a rank and what it starts) is the one who is watched.
  static FlightRecorder& process();

  /// Of `environment`'s LOCKSTEP_FLIGHT.
  explicit FlightRecorder(const Environment& environment);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Notes who this process is: until then, and after leave(), the launcher does not watch it.
  void join(int rank, int world);
  /// Notes an operation that was asked for; number, step and time are filled in here. Returns its
  /// number.
  uint64_t issue(Operation operation);
  void start(uint64_t number);
  void end(uint64_t number, bool well);
  /// Training steps done: of several optimizers the one that has done most counts.
  void set_step(int64_t step);
  /// A checkpoint is being saved, which the others wait for as long as it goes on; see Saving.
  void begin_saving();
  void end_saving();
  /// From now on this process need not make progress.
  void leave();

  FlightRecord read() const { return memory_.read(); }

 private:
  std::mutex mutex_;
  FlightMemory memory_;
  uint64_t issued_ = 0;
  int64_t step_ = 0;
  int savings_ = 0;  // Under way.
};

/// While one of these lives, this process saves a checkpoint.
class Saving {
 public:
  Saving() { FlightRecorder::process().begin_saving(); }
  ~Saving() { FlightRecorder::process().end_saving(); }
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;
};

}  // namespace lockstep::watch
