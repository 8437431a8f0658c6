// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/log.h"

namespace lockstep {

struct ProgressOptions {
  std::string label = {};   ///< Text before the bar: "epoch 1".
  int64_t total = -1;       ///< The total count; negative if unknown.
  int64_t initial = 0;      ///< Done before this bar began (a resumed epoch); not part of the rate.
  std::string unit = "it";  ///< The unit of the count, for "12.3 batches/s".
};

/// Describes the terminal of a bar. Tests create their own; programs use standard_error().
struct ProgressTerminal {
  bool on = false;  ///< False: the bar counts and writes nothing.
  bool colour = false;
  bool blocks = false;           ///< Block characters; else ASCII only.
  bool utf8 = false;             ///< Label and note may hold non-ASCII characters.
  std::function<int()> columns;  ///< Called at every drawing, since windows change size.
  std::function<void(const std::string& text)> write;
  std::function<double()> now_s;  ///< Seconds of a monotonic clock.

  /// Returns stderr of this process. It is on only in the main process, and only if stderr is a
  /// terminal, or the launcher forwards it to one (LOCKSTEP_TERMINAL=<columns>). Off with
  /// LOCKSTEP_PROGRESS=0 and with TERM=dumb. NO_COLOR: no colour and no blocks. A locale (LC_ALL,
  /// LC_CTYPE, LANG) that is not UTF-8: ASCII. Throws ConfigError if a LOCKSTEP_ variable is
  /// invalid.
  static ProgressTerminal standard_error();
  static ProgressTerminal from(
      const Environment& environment, bool stderr_is_terminal, bool is_main);
};

/// Draws one line with the progress, rate and remaining time of a loop.
///
/// `epoch 1 ████████▌            38% 180/469  12.3 batches/s  0:23 left  loss 0.312`
///
/// Redrawn by advance() and set_note(), at most ten times a second, cut to the terminal's width.
/// Every drawing ends with a carriage return; a log line clears the bar first and restores it
/// afterwards. The rate is averaged over about the last ten seconds. Of several bars only the
/// newest is drawn.
///
/// Costs a clock reading and a lock per advance(). Thread safety: all members, from any thread.
class ProgressBar final : private StatusLine {
 public:
  explicit ProgressBar(
      ProgressOptions options, ProgressTerminal terminal = ProgressTerminal::standard_error());
  /// Without a previous finish(), the bar stays as it was last drawn, and later output begins a new
  /// line.
  ~ProgressBar() override;
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(int64_t by = 1);
  /// Sets a few words behind the bar: "loss 0.312".
  void set_note(std::string note);
  /// Replaces the bar by one final line with total time and average rate, and a newline. Only the
  /// first call has an effect; after it advance() and set_note() do nothing.
  void finish();

  int64_t done() const;
  /// Returns whether the bar is ever drawn.
  bool on() const { return terminal_.on; }

 private:
  void hide() noexcept override;
  void show() noexcept override;
  void draw_if_due();
  void draw(double now_s);
  void write(const std::string& text) noexcept;
  std::string line(int columns) const;
  std::string final_line(double now_s) const;

  const ProgressOptions options_;
  const ProgressTerminal terminal_;
  mutable std::mutex mutex_;  // Taken after the log's lock, never before it.
  int64_t done_;
  std::string note_;
  double begin_s_ = 0;
  double drawn_s_ = 0;
  int64_t drawn_done_ = 0;
  /// Done in recent_s_ seconds. Both decay, so they cover about the last ten seconds.
  double recent_done_ = 0;
  double recent_s_ = 0;
  bool drawn_ = false;   ///< The terminal's last line is ours.
  bool hidden_ = false;  ///< A log line is being written.
  bool finished_ = false;
};

}  // namespace lockstep
