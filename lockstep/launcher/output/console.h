// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "lockstep/launcher/output/sink.h"

namespace lockstep::launcher {

/// The launcher's stdout and stderr, which its ranks share with it. Not thread-safe.
class Console {
 public:
  /// `launcher` is a source no rank has, see Sink::write. `quiet` drops what say() is given.
  Console(int launcher, bool quiet) : launcher_(launcher), quiet_(quiet) {}

  Sink& out() { return out_; }
  Sink& err() { return err_; }
  /// A remark for the user: a line or more, without the last one's end.
  void say(const std::string& text);
  /// The same, said whatever --quiet wants; whole lines.
  void report(const std::string& lines);
  /// Writes what can be written now. Returns errno of the first write that ever failed, or 0.
  int flush();
  /// Adds to `items` what flush() waits for.
  void await_room(std::vector<pollfd>& items) const;
  /// Writes all that waits. A reader may take its time; who loses patience makes `interrupt`
  /// readable. Returns as flush() does.
  int flush_all(int interrupt);

 private:
  int launcher_;
  bool quiet_;
  bool bar_ = false;  // The terminal's last line is a progress bar.
  Sink out_{STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? &bar_ : nullptr};
  Sink err_{STDERR_FILENO, ::isatty(STDERR_FILENO) == 1 ? &bar_ : nullptr};
};

}  // namespace lockstep::launcher
