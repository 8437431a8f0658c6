// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::cli {

/// Thrown for Ctrl-C at a question, after the terminal is restored.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

struct Choice {
  std::string name;         ///< The answer without arrow keys, as is the choice's number.
  std::string description;  ///< Printed in the same line.
};

/// Asks questions with arrow keys on a terminal, else with numbered lines.
///
/// Lines are used if input or output is not a terminal, TERM is dumb or not set, or the window is
/// too small. Obeys NO_COLOR. While a question waits, Ctrl-C throws Interrupted, Ctrl-Z stops the
/// process, and a signal that ends the process restores the terminal first. Throws ConfigError that
/// names the question if the input ends. Not thread-safe; one at a time in a process.
class Menu {
 public:
  /// `in`, `out`: descriptors, which the caller closes.
  Menu(int in, int out, const Environment& environment);

  /// Returns the index of the chosen one of `choices`; Enter alone chooses `preset`.
  size_t choose(const std::string& question, const std::vector<Choice>& choices, size_t preset);

  /// Returns a line of text; `preset` if the line is empty. `check` returns the error of an answer,
  /// after which the question is asked again; "" for a valid answer.
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
