// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/progress.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kRateMemorySeconds = 10;
constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 5;
constexpr const char* kClearToEnd = "\x1b[K";

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

/// The count of a bar, which bars inside of it show.
struct ProgressBar::Count {
  Count(std::string text, int64_t total_count, int64_t initial)
      : label(std::move(text)), total(total_count), done(initial) {}
  std::string label;
  int64_t total;
  std::atomic<int64_t> done;
  std::atomic<bool> is_open = true;

  /// Adds a count to those of the process's open bars; returns the others.
  static std::vector<std::shared_ptr<const Count>> enter(const std::shared_ptr<Count>& count) {
    static std::mutex mutex;
    static std::vector<std::weak_ptr<const Count>> all;
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<std::shared_ptr<const Count>> others;
    for (const std::weak_ptr<const Count>& each : all) {
      if (auto other = each.lock(); other && other->is_open) {
        others.push_back(std::move(other));
      }
    }
    all.assign(others.begin(), others.end());
    all.emplace_back(count);
    return others;
  }
};

ProgressBar::ProgressBar(ProgressOptions options, ProgressTerminal terminal)
    : options_(std::move(options)),
      terminal_(std::move(terminal)),
      count_(std::make_shared<Count>(options_.label, options_.total, options_.initial)),
      outer_(Count::enter(count_)) {
  if (!terminal_.on && terminal_.line_s <= 0) {
    return;
  }
  begin_s_ = terminal_.now_s();
  drawn_s_ = begin_s_;
  drawn_done_ = options_.initial;
  if (!terminal_.on) {
    return;
  }
  add_status_line(*this);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!hidden_) {
    draw(begin_s_);
  }
}

ProgressBar::~ProgressBar() {
  count_->is_open = false;
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
  update([&] { count_->done += by; });
}

void ProgressBar::set_value(const std::string& name, double value) {
  update([&] {
    const std::string text = fmt::format("{:.4g}", value);
    const auto found = std::find_if(
        values_.begin(), values_.end(), [&](const auto& each) { return each.first == name; });
    if (found == values_.end()) {
      values_.emplace_back(name, text);
    } else {
      found->second = text;
    }
  });
}

void ProgressBar::set_note(std::string note) {
  update([&] { note_ = std::move(note); });
}

void ProgressBar::finish() {
  std::string plain;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) {
      return;
    }
    finished_ = true;
    count_->is_open = false;
    if (!terminal_.on && logged_) {
      plain = final_line(terminal_.now_s());
    }
  }
  if (!terminal_.on) {
    if (!plain.empty()) {
      log_info(plain);
    }
    return;
  }
  // Another bar may be shown: the final line is written like any other line.
  around_status_line([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    const double now_s = terminal_.now_s();
    write(cut_to(final_line(now_s), std::max(1, terminal_.columns() - 1)) + "\n");
    drawn_ = false;
  });
  remove_status_line(*this);
}

int64_t ProgressBar::done() const {
  return count_->done;
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
    drawn_ = false;  // Out of memory: the loop continues without the bar.
  }
}

void ProgressBar::update(const std::function<void()>& change) {
  std::string plain;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) {
      return;
    }
    change();
    const double interval_s = terminal_.on ? kRedrawSeconds : terminal_.line_s;
    if (hidden_ || interval_s <= 0) {
      return;
    }
    const double now_s = terminal_.now_s();
    if (now_s - drawn_s_ < interval_s) {
      return;
    }
    if (terminal_.on) {
      draw(now_s);
      return;
    }
    measure(now_s);
    plain = plain_line();
    logged_ = true;
  }
  // The log's lock is taken before the bar's.
  log_info(plain);
}

void ProgressBar::draw(double now_s) {
  measure(now_s);
  write(line(terminal_.columns()) + kClearToEnd + "\r");
  drawn_ = true;
}

/// Counts the progress since the last drawing towards the rate.
void ProgressBar::measure(double now_s) {
  const double passed_s = now_s - drawn_s_;
  if (passed_s > 0) {
    const int64_t done = count_->done;
    const double keep = std::exp(-passed_s / kRateMemorySeconds);
    recent_done_ = recent_done_ * keep + static_cast<double>(done - drawn_done_);
    recent_s_ = recent_s_ * keep + passed_s;
    drawn_s_ = now_s;
    drawn_done_ = done;
  }
}

void ProgressBar::write(const std::string& text) noexcept {
  try {
    terminal_.write(text);
  } catch (...) {
    // The loop continues without the bar.
    drawn_ = false;
  }
}

/// Formats the bars around this one: "epochs 1/3 > ".
std::string ProgressBar::enclosing() const {
  std::string text;
  for (const auto& outer : outer_) {
    if (outer->is_open) {
      const std::string label = printable(outer->label, terminal_.utf8);
      const std::string of = outer->total >= 0 ? fmt::format("/{}", outer->total) : "";
      text += fmt::format("{}{}{}{} > ", label, label.empty() ? "" : " ", outer->done.load(), of);
    }
  }
  return text;
}

/// Formats the values of the program and of `live`, and the note.
std::string ProgressBar::values() const {
  ProgressValues all = options_.live ? options_.live() : ProgressValues();
  for (const auto& value : values_) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const auto& each) { return each.first == value.first; });
    if (found == all.end()) {
      all.push_back(value);
    } else {
      found->second = value.second;
    }
  }
  std::string text;
  for (const auto& [name, value] : all) {
    append_part(text, fmt::format("{} {}", name, value));
  }
  append_part(text, note_);
  return printable(text, terminal_.utf8);
}

double ProgressBar::fraction() const {
  return options_.total > 0
             ? std::clamp(
                   static_cast<double>(count_->done.load()) / static_cast<double>(options_.total),
                   0.0,
                   1.0)
             : 1;
}

/// Formats count, rate, remaining time and values.
std::string ProgressBar::figures() const {
  const std::string unit = printable(options_.unit, terminal_.utf8);
  const int64_t done = count_->done;
  const bool known = options_.total >= 0;
  std::string text =
      known ? fmt::format("{:3}% {}/{}", static_cast<int>(fraction() * 100), done, options_.total)
            : fmt::format("{} {}", done, unit);
  if (recent_done_ > 0 && recent_s_ > 0) {
    const double rate = recent_done_ / recent_s_;
    append_part(text, format_rate(rate, unit));
    if (known) {
      const auto left = static_cast<double>(std::max<int64_t>(0, options_.total - done));
      append_part(text, format_clock(left / rate) + " left");
    }
  }
  append_part(text, values());
  return text;
}

std::string ProgressBar::line(int columns) const {
  // A full last column would make the terminal wrap.
  const int room = std::max(1, columns - 1);
  const std::string label = printable(options_.label, terminal_.utf8);
  const std::string text = figures();
  const auto bar_columns = [&](const std::string& front) {
    return std::min(kWidestBar, room - width_of(front) - width_of(text) - 1);
  };
  const std::string short_front = label.empty() ? "" : label + " ";
  std::string front = enclosing() + short_front;
  if (bar_columns(front) < kNarrowestBar) {
    front = short_front;  // The bars around this one are the least important.
  }
  const int bar = bar_columns(front);
  if (options_.total < 0 || bar < kNarrowestBar) {
    return cut_to(front + text, room);
  }
  return front + bar_of(fraction(), bar, terminal_.blocks, terminal_.colour) + " " + text;
}

std::string ProgressBar::plain_line() const {
  const std::string label = printable(options_.label, terminal_.utf8);
  const std::string text = figures();
  return enclosing() + (label.empty() ? "" : label + ": ") +
         text.substr(text.find_first_not_of(' '));
}

std::string ProgressBar::final_line(double now_s) const {
  const double took_s = std::max(0.0, now_s - begin_s_);
  const std::string unit = printable(options_.unit, terminal_.utf8);
  const std::string label = printable(options_.label, terminal_.utf8);
  const std::string of = options_.total >= 0 ? fmt::format("/{}", options_.total) : "";
  const std::string took = took_s < 60 ? fmt::format("{:.1f} s", took_s) : format_clock(took_s);
  const int64_t done = count_->done;
  std::string text =
      fmt::format("{}{}{} {} in {}", label.empty() ? "" : label + ": ", done, of, unit, took);
  if (took_s > 0) {
    append_part(text, format_rate(static_cast<double>(done - options_.initial) / took_s, unit));
  }
  append_part(text, values());
  return text;
}

}  // namespace lockstep
