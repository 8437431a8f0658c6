// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Who says a line in a job of several ranks.
enum class LogAudience { kMainOnly, kEveryRank };

/// How lines are written. Read once from the environment, or set by the program.
struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  bool json = false;

  /// LOCKSTEP_LOG_LEVEL = debug|info|warning|error and LOCKSTEP_LOG_FORMAT = text|json;
  /// ConfigError for anything else.
  static LogOptions from_environment();
};

/// Writes one line to stderr in a single write, so that lines of several ranks never mix.
///
/// Text: `[rank 1] warning: message`. JSON:
/// `{"time":...,"level":"warning","rank":1,"message":"..."}`. The default audience is the main
/// process alone: what every rank says n times is noise. Errors and debug lines come from every
/// rank. Thread-safe.
void log(LogLevel level, const std::string& message, LogAudience audience = LogAudience::kMainOnly);

void log_debug(const std::string& message);
void log_info(const std::string& message);
void log_warning(const std::string& message, LogAudience audience = LogAudience::kMainOnly);
void log_error(const std::string& message);

/// Replaces the options read from the environment.
void set_log_options(LogOptions options);

/// Where finished lines go, instead of stderr; an empty function restores stderr. For tests. The
/// sink must not log.
void set_log_sink(std::function<void(const std::string& line)> sink);

/// Something drawn on the last line of the terminal, a progress bar, that steps aside while a line
/// is written. Of several only the newest is shown.
class StatusLine {
 public:
  virtual ~StatusLine() = default;
  /// Leaves the line empty, or does nothing where nothing is drawn. Must not log.
  virtual void hide() noexcept = 0;
  /// Draws, and may draw by itself from now on. Must not log.
  virtual void show() noexcept = 0;
};

/// From now until removed, `line` is hidden around every log line. `line` must outlive that. A line
/// added hides the one before it, which is shown again when the newer one goes. Thread-safe.
void add_status_line(StatusLine& line);
void remove_status_line(StatusLine& line);

/// Runs `write`, which writes whole lines to the terminal by other means (stdout), with the status
/// line hidden and no log line in between. `write` must not log. Thread-safe.
void around_status_line(const std::function<void()>& write);

}  // namespace lockstep
