// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Selects the ranks that write a line.
enum class LogAudience { kMainOnly, kEveryRank };

/// The format of log lines. Read once from the environment, or set by the program.
struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  bool json = false;

  /// Reads LOCKSTEP_LOG_LEVEL = debug|info|warning|error and LOCKSTEP_LOG_FORMAT = text|json.
  /// Throws ConfigError for another value.
  static LogOptions from_environment();
};

/// Writes one line to stderr in a single write, so that lines of several ranks never mix.
///
/// Text: `[rank 1] warning: message`. JSON:
/// `{"time":...,"level":"warning","rank":1,"message":"..."}`. By default only the main process
/// writes the line. Errors and debug lines come from every rank. Thread-safe.
void log(LogLevel level, const std::string& message, LogAudience audience = LogAudience::kMainOnly);

void log_debug(const std::string& message);
void log_info(const std::string& message);
void log_warning(const std::string& message, LogAudience audience = LogAudience::kMainOnly);
void log_error(const std::string& message);

/// Replaces the options read from the environment.
void set_log_options(LogOptions options);

/// Sends finished lines to `sink` instead of stderr; an empty function restores stderr. For tests.
/// The sink must not log.
void set_log_sink(std::function<void(const std::string& line)> sink);

/// Replaces texts in all later messages: each pair is a text and its replacement. Where several
/// begin at one place, the first pair is used. A binding of another language sets it once, since
/// messages name C++'s options and calls. Thread-safe.
void set_log_spelling(std::vector<std::pair<std::string, std::string>> spelling);

/// Draws a line at the bottom of the terminal, such as a progress bar. It is hidden while a log
/// line is written. Only the newest of several is shown.
class StatusLine {
 public:
  virtual ~StatusLine() = default;
  /// Clears the line. Must not log.
  virtual void hide() noexcept = 0;
  /// Draws the line; from now on it may redraw itself. Must not log.
  virtual void show() noexcept = 0;
};

/// Registers `line` to be hidden around every log line until it is removed. `line` must outlive
/// that. A new line hides the previous one, which is shown again when the new one is removed.
/// Thread-safe.
void add_status_line(StatusLine& line);
void remove_status_line(StatusLine& line);

/// Runs `write` with the status line hidden and no log line in between. `write` writes complete
/// lines to the terminal by other means (stdout), and must not log. Thread-safe.
void around_status_line(const std::function<void()>& write);

}  // namespace lockstep
