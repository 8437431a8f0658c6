// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::tracking {

struct Histogram;
struct Images;
struct Table;

/// Maps names to the values of one step. NaN and infinities are valid, and must be preserved.
using Values = std::map<std::string, double>;
/// Maps names to batches of images of one step.
using ImageBatches = std::map<std::string, Images>;
/// Maps names to the histograms of one step.
using Histograms = std::map<std::string, Histogram>;
/// Maps names to the texts of one step, in UTF-8.
using Texts = std::map<std::string, std::string>;

/// Maps names to the tables of one step.
using Tables = std::map<std::string, Table>;

/// Lists what some trackers store besides numbers.
enum class MediaKind { kImages, kHistograms, kText, kTables };

/// Reports how a run ended.
enum class RunStatus {
  kFinished,  ///< The run completed.
  kFailed,    ///< An error ended the run.
  kKilled,    ///< A signal or a time limit ended the run.
};

/// Returns "finished", "failed" or "killed".
const char* name_of(RunStatus status);

/// Stores the curves of one run in a file or on a server. By default only the main process uses it.
/// A program's own class derives from this, and AcceleratorOptions::log_with takes an object of it.
///
/// Values of log() reach the operating system within a second, so that a killed process loses no
/// more. A tracker that cannot write throws Error from the failed call, or from the next one; it
/// never stops silently. One that sends to a server or a program writes a file first, which is sent
/// later; it warns while it cannot send.
///
/// The public functions check their arguments for every tracker; a new tracker implements the four
/// pure private ones, the others if it stores() such values, and a destructor that does not throw.
class Tracker {
 public:
  Tracker() = default;
  virtual ~Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  /// Returns the name in messages; for Lockstep's own trackers the name for make_tracker().
  virtual std::string name() const = 0;
  /// Returns true if an Accelerator uses the tracker only on the main process; false: on every
  /// process that has it.
  virtual bool main_process_only() const { return true; }
  /// Returns whether the tracker stores such values; numbers it always stores.
  virtual bool stores(MediaKind /*kind*/) const { return false; }

  /// Stores the run's settings, preferably before the first log(). Throws ConfigError unless
  /// `config` is an object.
  void store_config(const nlohmann::json& config);
  /// Throws ConfigError if `step` is negative, or a name is empty or not UTF-8. Does nothing
  /// without values.
  void log(const Values& values, int64_t step);
  /// These four throw like log(), and ConfigError if the tracker does not store such values.
  ///
  /// log_images() also throws ConfigError for sizes that do not agree, log_text() for a text that
  /// is not UTF-8, log_tables() as check_table() does.
  void log_images(const ImageBatches& images, int64_t step);
  void log_histograms(const Histograms& histograms, int64_t step);
  void log_text(const Texts& texts, int64_t step);
  void log_tables(const Tables& tables, int64_t step);
  /// Blocks until everything logged is on disk, or on the server; slower than log().
  void flush();
  /// Records how the run ended and closes the tracker. Later calls of finish() and flush() do
  /// nothing; log() and store_config() then throw ConfigError. A tracker destroyed without finish()
  /// leaves a run that looks interrupted.
  void finish(RunStatus status = RunStatus::kFinished);

 private:
  virtual void do_store_config(const nlohmann::json& config) = 0;
  virtual void do_log(const Values& values, int64_t step) = 0;
  virtual void do_log_images(const ImageBatches& images, int64_t step);
  virtual void do_log_histograms(const Histograms& histograms, int64_t step);
  virtual void do_log_text(const Texts& texts, int64_t step);
  virtual void do_log_tables(const Tables& tables, int64_t step);
  virtual void do_flush() = 0;
  virtual void do_finish(RunStatus status) = 0;
  void refuse_if_finished(const char* call) const;
  void refuse_unless_stored(MediaKind kind) const;
  template <class Items>
  void check_media(MediaKind kind, const Items& items, int64_t step) const;

  bool finished_ = false;
};

/// Returns "images", "histograms", "text" or "tables".
const char* name_of(MediaKind kind);

/// Converts `config` for formats without such values: non-finite numbers become their names, and
/// invalid UTF-8 becomes U+FFFD.
nlohmann::json portable_config(const nlohmann::json& config);

/// Returns the seconds since 1970.
double wall_time_s();

}  // namespace lockstep::tracking
