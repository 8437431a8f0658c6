// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::cli {

/// Ctrl-C at a question. The terminal is as it was before.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

struct Choice {
  std::string name;  ///< What is typed where there are no arrow keys; the number will do, too.
  std::string what;  ///< Explains it, in the same line.
};

/// Asks on a terminal with arrow keys; with numbered lines where input or output is none, where
/// TERM is dumb or not set, and where the window is too small. NO_COLOR is obeyed.
///
/// While a question waits, Ctrl-C throws Interrupted, Ctrl-Z stops the process, and a signal that
/// ends the process restores the terminal first. If the input ends, a ConfigError names the
/// question. Thread safety: none; one at a time in a process.
class Menu {
 public:
  /// Descriptors, which stay the caller's.
  Menu(int in, int out, const Environment& environment);

  /// Returns which of `choices` was taken; `preset` is the one that Enter alone takes.
  size_t choose(const std::string& question, const std::vector<Choice>& choices, size_t preset);

  /// A line of text; `preset` if it is empty. `check` says what is wrong with an answer, "" if
  /// nothing is: then the question is asked again.
  std::string ask(
      const std::string& question,
      const std::string& preset,
      const std::function<std::string(const std::string&)>& check);

  void say(const std::string& text) const;

 private:
  bool has_room_for(size_t choices) const;
  size_t choose_by_keys(
      const std::string& question, const std::vector<Choice>& choices, size_t preset);
  size_t choose_by_number(
      const std::string& question, const std::vector<Choice>& choices, size_t preset);
  void draw(const std::vector<Choice>& choices, size_t chosen, bool again) const;
  std::string read_line(const std::string& question, const std::string& prompt) const;

  int in_;
  int out_;
  bool keys_ = false;
  bool bold_ = false;
};

}  // namespace lockstep::cli
