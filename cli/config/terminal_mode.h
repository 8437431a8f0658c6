// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

namespace lockstep::cli {

/// Puts a terminal into another input mode during its lifetime, and restores it afterwards, also if
/// a signal ends the process. Ctrl-C and Ctrl-Z are read as bytes, see below. One at a time.
class TerminalMode {
 public:
  enum class Input {
    kKeys,   ///< Each key at once, without echo.
    kLines,  ///< Lines, edited and echoed by the terminal; kCtrlC and kCtrlZ end one, too.
  };
  static constexpr char kCtrlC = 3;
  static constexpr char kCtrlD = 4;
  static constexpr char kCtrlZ = 26;

  /// Does nothing if `fd` is not a terminal.
  TerminalMode(int fd, Input input);
  ~TerminalMode();
  TerminalMode(const TerminalMode&) = delete;
  TerminalMode& operator=(const TerminalMode&) = delete;

  /// Stops the process, as Ctrl-Z usually does; returns when it continues.
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
