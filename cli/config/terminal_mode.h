// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

namespace lockstep::cli {

/// A terminal that gives its keys to us while this lives, and is put back then: also by a signal
/// that ends the process meanwhile. Ctrl-C and Ctrl-Z come as bytes, see below. One at a time.
class TerminalMode {
 public:
  enum class Input {
    kKeys,   ///< Each key at once, not shown.
    kLines,  ///< Whole lines, edited and shown by the terminal; kCtrlC and kCtrlZ end one, too.
  };
  static constexpr char kCtrlC = 3;
  static constexpr char kCtrlD = 4;
  static constexpr char kCtrlZ = 26;

  /// Does nothing where `fd` is no terminal.
  TerminalMode(int fd, Input input);
  ~TerminalMode();
  TerminalMode(const TerminalMode&) = delete;
  TerminalMode& operator=(const TerminalMode&) = delete;

  /// What Ctrl-Z does elsewhere; returns when the process goes on.
  void suspend();

 private:
  void enter();
  void leave();

  int fd_;
  Input input_;
  termios before_{};  // Before is_terminal_, which fills it.
  bool is_terminal_;
};

}  // namespace lockstep::cli
