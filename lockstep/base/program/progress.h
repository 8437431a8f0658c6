// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/log.h"

namespace lockstep {

/// Texts behind a bar with their names: {"loss", "0.312"}.
using ProgressValues = std::vector<std::pair<std::string, std::string>>;

struct ProgressOptions {
  std::string label = {};   ///< Text before the bar: "epoch 1".
  int64_t total = -1;       ///< The total count; negative if unknown.
  int64_t initial = 0;      ///< Done before this bar began (a resumed epoch); not part of the rate.
  std::string unit = "it";  ///< The unit of the count, for "12.3 batches/s".
  /// Returns values to show, such as {"memory", "1.4 GB"}. Called at each drawing, on the thread
  /// that draws.
  std::function<ProgressValues()> live = {};
};

/// Describes the terminal of a bar. Tests create their own; programs use standard_error().
struct ProgressTerminal {
  bool on = false;    ///< False: no bar is drawn.
  double line_s = 0;  ///< Seconds between the log lines of a bar that is not drawn; 0: none.
  bool colour = false;
  bool blocks = false;           ///< Block characters; else ASCII only.
  bool utf8 = false;             ///< Label and note may hold non-ASCII characters.
  std::function<int()> columns;  ///< Called at every drawing, since windows change size.
  std::function<void(const std::string& text)> write;
  std::function<double()> now_s;  ///< Seconds of a monotonic clock.

  /// Returns stderr of this process. It is on only in the main process, and only if stderr is a
  /// terminal, or the launcher forwards it to one (LOCKSTEP_TERMINAL=<columns>). Off with
  /// TERM=dumb. Where it is off, the main process logs a line every LOCKSTEP_PROGRESS_SECONDS
  /// (30; 0: never). LOCKSTEP_PROGRESS=0: neither bar nor lines. NO_COLOR: no colour and no blocks.
  /// A locale (LC_ALL, LC_CTYPE, LANG) that is not UTF-8: ASCII. Throws ConfigError if a LOCKSTEP_
  /// variable is invalid.
  static ProgressTerminal standard_error();
  static ProgressTerminal from(
      const Environment& environment, bool stderr_is_terminal, bool is_main);
};

/// Draws one line with the progress, rate and remaining time of a loop.
///
/// `epochs 1/3 > epoch 2 ████▌      38% 180/469  12.3 batches/s  0:23 left  loss 0.312`
///
/// Redrawn by advance(), set_value() and set_note(), at most ten times a second, cut to the
/// terminal's width. Every drawing ends with a carriage return; a log line clears the bar first and
/// restores it afterwards. The rate is averaged over about the last ten seconds.
///
/// Bars nest: the newest is drawn, after the label and count of those constructed before it. When
/// it ends, the one before is drawn again. One line is enough for that, so that a launcher can
/// forward it, and other ranks' lines do not tear it.
///
/// Without a terminal the bar logs its line every few seconds, see ProgressTerminal. A shorter loop
/// logs nothing.
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
  /// Shows a number with four digits behind the bar: "loss 0.3125". It replaces the previous number
  /// of that name.
  void set_value(const std::string& name, double value);
  /// Sets a few words behind the bar and its values.
  void set_note(std::string note);
  /// Replaces the bar by one final line with total time and average rate, and a newline. Only the
  /// first call has an effect; after it advance(), set_value() and set_note() do nothing.
  void finish();

  int64_t done() const;
  /// Returns whether the bar is ever drawn.
  bool on() const { return terminal_.on; }

 private:
  struct Count;

  void hide() noexcept override;
  void show() noexcept override;
  /// Changes the state by `change`, and draws or logs if that is due.
  void update(const std::function<void()>& change);
  void draw(double now_s);
  void measure(double now_s);
  void write(const std::string& text) noexcept;
  std::string enclosing() const;
  double fraction() const;
  std::string figures() const;
  std::string values() const;
  std::string line(int columns) const;
  std::string plain_line() const;
  std::string final_line(double now_s) const;

  const ProgressOptions options_;
  const ProgressTerminal terminal_;
  const std::shared_ptr<Count> count_;
  const std::vector<std::shared_ptr<const Count>> outer_;  ///< Bars constructed before, and open.
  mutable std::mutex mutex_;  // Taken after the log's lock, never before it.
  ProgressValues values_;
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
  bool logged_ = false;  ///< A plain line was logged.
};

}  // namespace lockstep
