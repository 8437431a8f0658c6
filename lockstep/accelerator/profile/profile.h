// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace lockstep {

/// What is recorded, and in which steps: after `skip_first`, cycles of `wait` steps without
/// recording, `warmup` steps whose record is thrown away, and `active` steps that make a trace.
struct ProfileOptions {
  /// Where the traces go. Created if it does not exist.
  std::filesystem::path output_trace_dir = {};
  bool record_shapes = false;
  bool profile_memory = false;
  /// Estimates of floating point operations, for matrix products and convolutions.
  bool with_flops = false;

  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 0;
  int64_t active = 0;  ///< 0: everything from construction to finish() is one trace.
  int64_t repeat = 0;  ///< Cycles; 0: until finish().

  /// Called with every trace as soon as it is written.
  std::function<void(const std::filesystem::path& trace)> on_trace_ready = {};
};

/// Records this process with libtorch's Kineto profiler; every trace is a file to open in
/// chrome://tracing or Perfetto: `profile_<rank>.json`, with cycles `profile_<rank>_<cycle>.json`.
///
/// One at a time in a process, since libtorch has one profiler (ConfigError for a second).
/// Destroying it without finish() throws away what is being recorded. Costs what Kineto costs: a
/// microsecond or so an operation, and memory for every event while active.
///
/// Thread safety: none; belongs to the thread that trains.
class Profile {
 public:
  /// ConfigError for numbers that make no sense, or a folder that cannot be made.
  Profile(ProfileOptions options, int rank);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// A training step is done; needed only with `active`. ConfigError without.
  void step();
  /// Writes what is being recorded. Returns all traces written. Calling it again changes nothing.
  std::vector<std::filesystem::path> finish();

 private:
  enum class Phase { kIdle, kWarmup, kActive };
  Phase phase_at(int64_t step) const;
  void enter(Phase phase);
  void start();
  void discard() noexcept;
  void write();

  ProfileOptions options_;
  int rank_;
  int64_t step_ = 0;
  Phase phase_ = Phase::kIdle;
  bool finished_ = false;
  std::vector<std::filesystem::path> traces_;
};

}  // namespace lockstep
