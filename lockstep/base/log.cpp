// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

struct LogState {
  std::mutex mutex;
  std::optional<LogOptions> options;
  std::function<void(const std::string&)> sink;
  std::vector<StatusLine*> status_lines;  // The last one, the newest, is shown.
  std::vector<std::pair<std::string, std::string>> spelling;
};

/// RAII scope: hides the status line. Needs the state's lock.
class HiddenStatusLine {
 public:
  explicit HiddenStatusLine(const LogState& shared)
      : line_(shared.status_lines.empty() ? nullptr : shared.status_lines.back()) {
    if (line_ != nullptr) {
      line_->hide();
    }
  }
  ~HiddenStatusLine() {
    if (line_ != nullptr) {
      line_->show();
    }
  }
  HiddenStatusLine(const HiddenStatusLine&) = delete;
  HiddenStatusLine& operator=(const HiddenStatusLine&) = delete;

 private:
  StatusLine* line_;
};

LogState& state() {
  // Never destroyed: a line may still be logged while the process exits.
  static auto* instance = new LogState;
  return *instance;
}

/// Returns `message` with the replacements of set_log_spelling.
std::string respelled(
    const std::string& message, const std::vector<std::pair<std::string, std::string>>& spelling) {
  std::string result;
  for (size_t place = 0; place < message.size();) {
    const auto found = std::find_if(spelling.begin(), spelling.end(), [&](const auto& pair) {
      return message.compare(place, pair.first.size(), pair.first) == 0;
    });
    if (found == spelling.end()) {
      result += message[place++];
    } else {
      result += found->second;
      place += found->first.size();
    }
  }
  return result;
}

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

std::string format_line(LogLevel level, const std::string& message, bool json) {
  const RankLabel label = current_rank();
  if (json) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    nlohmann::ordered_json line = {{"time", now}, {"level", name_of(level)}};
    if (label.rank >= 0) {
      line["rank"] = label.rank;
    }
    line["message"] = message;
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  const std::string prefix = label.size > 1 ? fmt::format("[rank {}] ", label.rank) : "";
  const std::string word = level == LogLevel::kInfo ? "" : fmt::format("{}: ", name_of(level));
  return prefix + word + message + "\n";
}

void write_to_stderr(const std::string& line) {
  // A failed write of a log line cannot be reported anywhere.
  ssize_t written = -1;
  do {
    written = ::write(STDERR_FILENO, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
}

}  // namespace

LogOptions LogOptions::from_environment() {
  const Environment environment = Environment::process();
  LogOptions options;
  if (const auto level = environment.text("LOCKSTEP_LOG_LEVEL")) {
    bool known = false;
    for (LogLevel candidate :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
      if (*level == name_of(candidate)) {
        options.level = candidate;
        known = true;
      }
    }
    if (!known) {
      throw ConfigError(
          "environment",
          fmt::format(
              "invalid value '{}' for LOCKSTEP_LOG_LEVEL; expected debug, info, warning or error",
              *level));
    }
  }
  if (const auto format = environment.text("LOCKSTEP_LOG_FORMAT")) {
    if (*format != "text" && *format != "json") {
      throw ConfigError(
          "environment",
          fmt::format(
              "invalid value '{}' for LOCKSTEP_LOG_FORMAT; expected text or json", *format));
    }
    options.json = *format == "json";
  }
  return options;
}

void log(LogLevel level, const std::string& message, LogAudience audience) {
  if (audience == LogAudience::kMainOnly && !current_rank().is_main()) {
    return;
  }
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (!shared.options) {
    shared.options = LogOptions::from_environment();
  }
  if (level < shared.options->level) {
    return;
  }
  const std::string line =
      format_line(level, respelled(message, shared.spelling), shared.options->json);
  const HiddenStatusLine hidden(shared);
  if (shared.sink) {
    shared.sink(line);
  } else {
    write_to_stderr(line);
  }
}

void log_debug(const std::string& message) {
  log(LogLevel::kDebug, message, LogAudience::kEveryRank);
}

void log_info(const std::string& message) {
  log(LogLevel::kInfo, message);
}

void log_warning(const std::string& message, LogAudience audience) {
  log(LogLevel::kWarning, message, audience);
}

void log_error(const std::string& message) {
  log(LogLevel::kError, message, LogAudience::kEveryRank);
}

void set_log_options(LogOptions options) {
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.options = options;
}

void set_log_sink(std::function<void(const std::string& line)> sink) {
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.sink = std::move(sink);
}

void set_log_spelling(std::vector<std::pair<std::string, std::string>> spelling) {
  std::erase_if(spelling, [](const auto& pair) { return pair.first.empty(); });
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.spelling = std::move(spelling);
}

void add_status_line(StatusLine& line) {
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (!shared.status_lines.empty()) {
    shared.status_lines.back()->hide();
  }
  shared.status_lines.push_back(&line);
}

void remove_status_line(StatusLine& line) {
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  std::vector<StatusLine*>& lines = shared.status_lines;
  const auto found = std::find(lines.begin(), lines.end(), &line);
  if (found == lines.end()) {
    return;
  }
  const bool was_shown = found + 1 == lines.end();
  lines.erase(found);
  if (was_shown && !lines.empty()) {
    lines.back()->show();
  }
}

void around_status_line(const std::function<void()>& write) {
  LogState& shared = state();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  const HiddenStatusLine hidden(shared);
  write();
}

}  // namespace lockstep
