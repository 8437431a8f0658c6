// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <string>
#include <unistd.h>

#include "lockstep/base/program/progress.h"
#include "lockstep/base/program/terminal.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/text/words.h"

namespace lockstep {
namespace {

constexpr int kColumnsIfUnknown = 80;

bool locale_is_utf8(const Environment& environment) {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const auto value = environment.text(name)) {
      locale = *value;
      break;
    }
  }
  locale = lower(locale);
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

void write_all_to_stderr(const std::string& text) {
  // A failed write is ignored: the bar is only decoration.
  ssize_t written = -1;
  do {
    written = ::write(STDERR_FILENO, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
}

}  // namespace

ProgressTerminal ProgressTerminal::standard_error() {
  return from(Environment::process(), ::isatty(STDERR_FILENO) == 1, current_rank().is_main());
}

ProgressTerminal ProgressTerminal::from(
    const Environment& environment, bool stderr_is_terminal, bool is_main) {
  constexpr int64_t kMostColumns = 10000;
  constexpr int64_t kMostLineSeconds = 86400;
  constexpr int64_t kLineSeconds = 30;
  const bool wanted = environment.boolean("LOCKSTEP_PROGRESS").value_or(true);
  const auto forwarded = environment.integer("LOCKSTEP_TERMINAL", 1, kMostColumns);
  const bool dumb = environment.text("TERM").value_or("") == "dumb";
  const bool no_colour = environment.text("NO_COLOR").has_value();
  ProgressTerminal terminal;
  terminal.on = wanted && !dumb && is_main && (stderr_is_terminal || forwarded);
  const int64_t line_s =
      environment.integer("LOCKSTEP_PROGRESS_SECONDS", 0, kMostLineSeconds).value_or(kLineSeconds);
  terminal.line_s = wanted && is_main && !terminal.on ? static_cast<double>(line_s) : 0;
  terminal.colour = !no_colour;
  terminal.utf8 = locale_is_utf8(environment);
  terminal.blocks = terminal.utf8 && !no_colour;
  const int fallback = static_cast<int>(forwarded.value_or(kColumnsIfUnknown));
  terminal.columns = [fallback, stderr_is_terminal]() -> int {
    return stderr_is_terminal ? terminal_columns(STDERR_FILENO).value_or(fallback) : fallback;
  };
  terminal.write = write_all_to_stderr;
  terminal.now_s = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return terminal;
}

}  // namespace lockstep
