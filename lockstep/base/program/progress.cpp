// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/progress.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/program/terminal.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/text/words.h"

namespace lockstep {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kRateMemorySeconds = 10;
constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 5;
constexpr int kColumnsIfUnknown = 80;
constexpr const char* kClearToEnd = "\x1b[K";

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

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

int width_of(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

std::string cut_to(const std::string& text, int columns) {
  int used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!continues_character(text[i]) && used++ == columns) {
      return text.substr(0, i);
    }
  }
  return text;
}

/// Replaces characters that one line of this terminal cannot show: control characters, and without
/// UTF-8 all but ASCII.
std::string printable(const std::string& text, bool utf8) {
  std::string result;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += ' ';
    } else if (byte < 0x80 || utf8) {
      result += c;
    } else if (!continues_character(c)) {
      result += '?';
    }
  }
  return result;
}

std::string format_rate(double rate, const std::string& unit) {
  if (rate >= 100) {
    return fmt::format("{:.0f} {}/s", rate, unit);
  }
  return rate >= 1 ? fmt::format("{:.1f} {}/s", rate, unit)
                   : fmt::format("{:.2g} {}/s", rate, unit);
}

std::string format_clock(double seconds) {
  const auto total = static_cast<int64_t>(std::min(seconds, 3.6e9));
  if (total < 3600) {
    return fmt::format("{}:{:02}", total / 60, total % 60);
  }
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string bar_of(double fraction, int width, bool blocks, bool colour) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string filled;
  std::string rest;
  if (blocks) {
    const int eighths = static_cast<int>(fraction * width * 8);
    for (int i = 0; i < eighths / 8; ++i) {
      filled += "█";
    }
    filled += kEighths[static_cast<size_t>(eighths % 8)];
    rest.assign(static_cast<size_t>(width - (eighths + 7) / 8), ' ');
  } else {
    const int inner = width - 2;
    const int done = static_cast<int>(fraction * inner);
    filled = "[" + std::string(static_cast<size_t>(done), '#');
    rest = std::string(static_cast<size_t>(inner - done), '-') + "]";
  }
  return colour ? "\x1b[32m" + filled + "\x1b[0m" + rest : filled + rest;
}

void append_part(std::string& text, const std::string& part) {
  if (!part.empty()) {
    text += (text.empty() ? "" : "  ") + part;
  }
}

}  // namespace

ProgressTerminal ProgressTerminal::standard_error() {
  return from(Environment::process(), ::isatty(STDERR_FILENO) == 1, current_rank().is_main());
}

ProgressTerminal ProgressTerminal::from(
    const Environment& environment, bool stderr_is_terminal, bool is_main) {
  constexpr int64_t kMostColumns = 10000;
  const bool wanted = environment.boolean("LOCKSTEP_PROGRESS").value_or(true);
  const auto forwarded = environment.integer("LOCKSTEP_TERMINAL", 1, kMostColumns);
  const bool dumb = environment.text("TERM").value_or("") == "dumb";
  const bool no_colour = environment.text("NO_COLOR").has_value();
  ProgressTerminal terminal;
  terminal.on = wanted && !dumb && is_main && (stderr_is_terminal || forwarded);
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

ProgressBar::ProgressBar(ProgressOptions options, ProgressTerminal terminal)
    : options_(std::move(options)), terminal_(std::move(terminal)), done_(options_.initial) {
  if (!terminal_.on) {
    return;
  }
  begin_s_ = terminal_.now_s();
  drawn_s_ = begin_s_;
  drawn_done_ = done_;
  add_status_line(*this);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!hidden_) {
    draw(begin_s_);
  }
}

ProgressBar::~ProgressBar() {
  if (!terminal_.on || finished_) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    if (drawn_) {
      write("\n");
    }
  }
  remove_status_line(*this);
}

void ProgressBar::advance(int64_t by) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) {
    return;
  }
  done_ += by;
  draw_if_due();
}

void ProgressBar::set_note(std::string note) {
  const std::lock_guard<std::mutex> lock(mutex_);
  note_ = std::move(note);
  draw_if_due();
}

void ProgressBar::finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) {
      return;
    }
    finished_ = true;
    if (!terminal_.on) {
      return;
    }
  }
  // Another bar may be shown: the final line is written like any other line.
  around_status_line([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    const double now_s = terminal_.now_s();
    write(final_line(now_s) + "\n");
    drawn_ = false;
  });
  remove_status_line(*this);
}

int64_t ProgressBar::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void ProgressBar::hide() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  hidden_ = true;
  if (drawn_) {
    write(std::string(kClearToEnd) + "\r");
    drawn_ = false;
  }
}

void ProgressBar::show() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  hidden_ = false;
  if (finished_) {
    return;
  }
  try {
    draw(terminal_.now_s());
  } catch (...) {
    // Out of memory: the loop continues without the bar.
    drawn_ = false;
  }
}

void ProgressBar::draw_if_due() {
  if (!terminal_.on || hidden_ || finished_) {
    return;
  }
  const double now_s = terminal_.now_s();
  if (now_s - drawn_s_ >= kRedrawSeconds) {
    draw(now_s);
  }
}

void ProgressBar::draw(double now_s) {
  const double passed_s = now_s - drawn_s_;
  if (passed_s > 0) {
    const double keep = std::exp(-passed_s / kRateMemorySeconds);
    recent_done_ = recent_done_ * keep + static_cast<double>(done_ - drawn_done_);
    recent_s_ = recent_s_ * keep + passed_s;
    drawn_s_ = now_s;
    drawn_done_ = done_;
  }
  write(line(terminal_.columns()) + kClearToEnd + "\r");
  drawn_ = true;
}

void ProgressBar::write(const std::string& text) noexcept {
  try {
    terminal_.write(text);
  } catch (...) {
    // The loop continues without the bar.
    drawn_ = false;
  }
}

std::string ProgressBar::line(int columns) const {
  // A full last column would make the terminal wrap.
  const int room = std::max(1, columns - 1);
  const std::string label = printable(options_.label, terminal_.utf8);
  const std::string unit = printable(options_.unit, terminal_.utf8);
  const bool known = options_.total >= 0;
  double fraction = 1;
  if (options_.total > 0) {
    fraction =
        std::clamp(static_cast<double>(done_) / static_cast<double>(options_.total), 0.0, 1.0);
  }
  std::string figures =
      known ? fmt::format("{:3}% {}/{}", static_cast<int>(fraction * 100), done_, options_.total)
            : fmt::format("{} {}", done_, unit);
  if (recent_done_ > 0 && recent_s_ > 0) {
    const double rate = recent_done_ / recent_s_;
    append_part(figures, format_rate(rate, unit));
    if (known) {
      const auto left = static_cast<double>(std::max<int64_t>(0, options_.total - done_));
      append_part(figures, format_clock(left / rate) + " left");
    }
  }
  append_part(figures, printable(note_, terminal_.utf8));
  const std::string front = label.empty() ? "" : label + " ";
  const int bar = std::min(kWidestBar, room - width_of(front) - width_of(figures) - 1);
  if (!known || bar < kNarrowestBar) {
    return cut_to(front + figures, room);
  }
  return front + bar_of(fraction, bar, terminal_.blocks, terminal_.colour) + " " + figures;
}

std::string ProgressBar::final_line(double now_s) const {
  const double took_s = std::max(0.0, now_s - begin_s_);
  const std::string unit = printable(options_.unit, terminal_.utf8);
  const std::string label = printable(options_.label, terminal_.utf8);
  const std::string of = options_.total >= 0 ? fmt::format("/{}", options_.total) : "";
  const std::string took = took_s < 60 ? fmt::format("{:.1f} s", took_s) : format_clock(took_s);
  std::string text =
      fmt::format("{}{}{} {} in {}", label.empty() ? "" : label + ": ", done_, of, unit, took);
  if (took_s > 0) {
    append_part(text, format_rate(static_cast<double>(done_ - options_.initial) / took_s, unit));
  }
  append_part(text, printable(note_, terminal_.utf8));
  return cut_to(text, std::max(1, terminal_.columns() - 1));
}

}  // namespace lockstep
