// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::tracking {

/// What is logged at one step. NaN and infinities are legal everywhere, and must arrive as what
/// they are.
using Values = std::map<std::string, double>;

/// How a run ended.
enum class RunStatus {
  kFinished,  ///< It did all it was asked to.
  kFailed,    ///< An error ended it.
  kKilled,    ///< Somebody ended it: a signal, a time limit.
};

/// "finished", "failed" or "killed".
const char* name_of(RunStatus status);

/// Keeps the curves of one run somewhere: a file, a server. By default the main process alone uses
/// it. A program's own class derives from this, and AcceleratorOptions::log_with takes an object of
/// it.
///
/// What log() was given is with the operating system at most a second later, so that a killed
/// process loses no more than that. A tracker that cannot write says so by an Error from the call
/// that failed, or from the next one; it never just stops.
///
/// The public functions check what they are given, alike for every tracker; a new tracker writes
/// the four private ones, and a destructor that does not throw. Thread safety: none.
class Tracker {
 public:
  Tracker() = default;
  virtual ~Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  /// What messages call it; of Lockstep's own trackers the name that make_tracker() knows.
  virtual std::string name() const = 0;
  /// Whether an Accelerator uses it on the main process alone; false: on every process that has it.
  virtual bool main_process_only() const { return true; }

  /// The run's settings, best before the first log(). ConfigError unless `config` is an object.
  void store_config(const nlohmann::json& config);
  /// ConfigError if `step` is negative, or a name is empty or no UTF-8. No values: nothing happens.
  void log(const Values& values, int64_t step);
  /// Returns when everything logged is on disk, or with whoever keeps it; slower than log() needs
  /// to be.
  void flush();
  /// Says how the run ended and closes. Later calls do nothing; log() and store_config() after it
  /// are ConfigErrors. A tracker destroyed without it leaves a run that looks interrupted, which it
  /// was.
  void finish(RunStatus status = RunStatus::kFinished);

 private:
  virtual void do_store_config(const nlohmann::json& config) = 0;
  virtual void do_log(const Values& values, int64_t step) = 0;
  virtual void do_flush() = 0;
  virtual void do_finish(RunStatus status) = 0;
  void refuse_if_finished(const char* call) const;

  bool finished_ = false;
};

/// "NaN", "Infinity" or "-Infinity", for formats whose numbers are finite.
const char* name_of_non_finite(double value);

/// `config` as formats without such numbers and bytes can hold it: numbers that are not finite
/// become their names, and what is no UTF-8 becomes U+FFFD.
nlohmann::json portable_config(const nlohmann::json& config);

/// Seconds since 1970.
double wall_time_s();

}  // namespace lockstep::tracking
