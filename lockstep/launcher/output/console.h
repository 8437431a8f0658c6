// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "lockstep/launcher/output/sink.h"

namespace lockstep::launcher {

/// The launcher's stdout and stderr, which it shares with its ranks.
class Console {
 public:
  /// `launcher` is the launcher's source number (see Sink::write), which no rank has. `quiet` drops
  /// the output of say().
  Console(int launcher, bool quiet) : launcher_(launcher), quiet_(quiet) {}

  Sink& out() { return out_; }
  Sink& err() { return err_; }
  /// Writes a message for the user: one or more lines, without the last newline.
  void say(const std::string& text);
  /// Writes complete lines, with --quiet too.
  void report(const std::string& lines);
  /// Writes without blocking. Returns errno of the first write that ever failed, or 0.
  int flush();
  /// Adds the descriptors that flush() waits for to `items`.
  void await_room(std::vector<pollfd>& items) const;
  /// Writes everything that waits. A reader may be slow; make `interrupt` readable to stop waiting.
  /// Returns as flush() does.
  int flush_all(int interrupt);

 private:
  int launcher_;
  bool quiet_;
  bool bar_ = false;  // The terminal's last line is a progress bar.
  Sink out_{STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? &bar_ : nullptr};
  Sink err_{STDERR_FILENO, ::isatty(STDERR_FILENO) == 1 ? &bar_ : nullptr};
};

}  // namespace lockstep::launcher
