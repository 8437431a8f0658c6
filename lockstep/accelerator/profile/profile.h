// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace lockstep {

/// Selects the recorded steps: after `skip_first`, cycles of `wait` steps without recording,
/// `warmup` steps with discarded records, and `active` steps that make a trace.
struct ProfileOptions {
  /// The folder of the traces. Created if it does not exist.
  std::filesystem::path output_trace_dir = {};
  bool record_shapes = false;
  bool profile_memory = false;
  /// Estimates floating point operations of matrix products and convolutions.
  bool with_flops = false;

  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 0;
  int64_t active = 0;  ///< 0: everything from construction to finish() is one trace.
  int64_t repeat = 0;  ///< Cycles; 0: until finish().

  /// Called with every trace after it is written.
  std::function<void(const std::filesystem::path& trace)> on_trace_ready = {};
};

/// Records this process with libtorch's Kineto profiler. Every trace is a file for chrome://tracing
/// or Perfetto: `profile_<rank>.json`, with cycles `profile_<rank>_<cycle>.json`.
///
/// One at a time in a process, since libtorch has one profiler (a second one throws ConfigError).
/// Destroying it without finish() discards the current record. Cost: Kineto's, about a microsecond
/// an operation, and memory for every event while active.
///
/// Not thread-safe; belongs to the training thread.
class Profile {
 public:
  /// Throws ConfigError for invalid numbers, or a folder that cannot be created.
  Profile(ProfileOptions options, int rank);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// Ends a training step; needed only with `active`. Throws ConfigError without it.
  void step();
  /// Writes the current record. Returns all written traces. A second call changes nothing.
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
