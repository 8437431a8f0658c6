// SPDX-License-Identifier: Apache-2.0
#include "cli/config/menu.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/common/report.h"
#include "cli/config/terminal_mode.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

constexpr int kEscapeMs = 50;  // A key's further bytes come together with its first.
constexpr size_t kLeastColumns = 24;

struct Window {
  size_t columns = 0;
  size_t rows = 0;
};

Window window_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) {
    return {};
  }
  return {size.ws_col, size.ws_row};
}

[[noreturn]] void fail_at_end(const std::string& question) {
  throw ConfigError(
      "lockstep config",
      fmt::format(
          "the input ended at the question '{}'; nothing was written; answer each question with a "
          "line, an empty one for the value in brackets",
          question));
}

/// Reads the next byte; nothing at the end of the input.
std::optional<char> read_byte(int fd) {
  char byte = 0;
  while (true) {
    const ssize_t size = ::read(fd, &byte, 1);
    if (size == 1) {
      return byte;
    }
    // EIO: the terminal is closed.
    if (size == 0 || errno != EINTR) {
      return std::nullopt;
    }
  }
}

bool has_more(int fd) {
  pollfd item{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&item, 1, kEscapeMs) > 0;
}

enum class Key { kUp, kDown, kFirst, kLast, kEnter, kInterrupt, kSuspend, kEnd, kDigit, kOther };

struct KeyPress {
  Key key = Key::kOther;
  size_t digit = 0;
};

/// Reads the bytes after ESC of a key, for example `[A`, `OA` or `[1~`.
Key read_escape(int fd) {
  std::string rest;
  while (has_more(fd)) {
    const auto byte = read_byte(fd);
    if (!byte) {
      break;
    }
    rest += *byte;
    if (rest.size() > 1 && (std::isalpha(static_cast<unsigned char>(*byte)) != 0 || *byte == '~')) {
      break;
    }
  }
  if (rest == "[A" || rest == "OA") {
    return Key::kUp;
  }
  if (rest == "[B" || rest == "OB") {
    return Key::kDown;
  }
  if (rest == "[H" || rest == "OH" || rest == "[1~") {
    return Key::kFirst;
  }
  return rest == "[F" || rest == "OF" || rest == "[4~" ? Key::kLast : Key::kOther;
}

KeyPress read_key(int fd) {
  const auto byte = read_byte(fd);
  if (!byte) {
    return {Key::kEnd};
  }
  switch (*byte) {
    case TerminalMode::kCtrlC:
      return {Key::kInterrupt};
    case TerminalMode::kCtrlD:
      return {Key::kEnd};
    case TerminalMode::kCtrlZ:
      return {Key::kSuspend};
    case '\r':
    case '\n':
      return {Key::kEnter};
    case 'k':
      return {Key::kUp};
    case 'j':
      return {Key::kDown};
    case '\x1b':
      return {read_escape(fd)};
    default:
      break;
  }
  return *byte >= '1' && *byte <= '9' ? KeyPress{Key::kDigit, static_cast<size_t>(*byte - '0')}
                                      : KeyPress{};
}

std::string line_of(const Choice& choice) {
  return choice.description.empty() ? choice.name
                                    : fmt::format("{}: {}", choice.name, choice.description);
}

}  // namespace

Menu::Menu(int in, int out, const Environment& environment) : in_(in), out_(out) {
  const std::string terminal = environment.text("TERM").value_or("dumb");
  keys_ = ::isatty(in) != 0 && ::isatty(out) != 0 && terminal != "dumb";
  bold_ = !environment.text("NO_COLOR").has_value();
}

size_t Menu::choose(
    const std::string& question, const std::vector<Choice>& choices, size_t preset) {
  return has_room_for(choices.size()) ? choose_by_keys(question, choices, preset)
                                      : choose_by_number(question, choices, preset);
}

std::string Menu::ask(
    const std::string& question,
    const std::string& preset,
    const std::function<std::string(const std::string&)>& check) {
  const std::string prompt =
      question + (preset.empty() ? " " : fmt::format(" [{}]: ", printable(preset)));
  while (true) {
    const std::string line = read_line(question, prompt);
    const std::string answer = line.empty() ? preset : line;
    const std::string fault = check(answer);
    if (fault.empty()) {
      return answer;
    }
    say(fmt::format("  {}\n", printable(fault)));
  }
}

void Menu::say(const std::string& text) const {
  for (size_t at = 0; at < text.size();) {
    const ssize_t size = ::write(out_, text.data() + at, text.size() - at);
    if (size < 0 && errno != EINTR) {
      throw Error(
          "lockstep config",
          fmt::format("the question cannot be written; {}", std::strerror(errno)));
    }
    at += size > 0 ? static_cast<size_t>(size) : 0;
  }
}

bool Menu::has_room_for(size_t choices) const {
  const Window window = window_of(out_);
  return keys_ && window.columns >= kLeastColumns && window.rows >= choices + 2;
}

size_t Menu::choose_by_keys(
    const std::string& question, const std::vector<Choice>& choices, size_t preset) {
  TerminalMode mode(in_, TerminalMode::Input::kKeys);
  size_t chosen = preset;
  const std::string title = shortened(question, window_of(out_).columns - 1);
  say(title + "\n");
  draw(choices, chosen, false);
  while (true) {
    const KeyPress press = read_key(in_);
    switch (press.key) {
      case Key::kUp:
        chosen = chosen == 0 ? choices.size() - 1 : chosen - 1;
        break;
      case Key::kDown:
        chosen = chosen + 1 == choices.size() ? 0 : chosen + 1;
        break;
      case Key::kFirst:
        chosen = 0;
        break;
      case Key::kLast:
        chosen = choices.size() - 1;
        break;
      case Key::kDigit:
        chosen = press.digit <= choices.size() ? press.digit - 1 : chosen;
        break;
      case Key::kEnter:
        // The question and its answer remain, in one line.
        say(fmt::format("\x1b[{}A\r\x1b[J", choices.size() + 1));
        say(fmt::format("{} {}\n", title, choices[chosen].name));
        return chosen;
      case Key::kInterrupt:
        throw Interrupted();
      case Key::kEnd:
        fail_at_end(question);
      case Key::kSuspend:
        mode.suspend();
        say(title + "\n");
        draw(choices, chosen, false);
        continue;
      case Key::kOther:
        continue;
    }
    draw(choices, chosen, true);
  }
}

void Menu::draw(const std::vector<Choice>& choices, size_t chosen, bool again) const {
  const size_t columns = std::max(kLeastColumns, window_of(out_).columns);
  std::string text = again ? fmt::format("\x1b[{}A", choices.size()) : "";
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string line =
        (i == chosen ? "> " : "  ") + shortened(line_of(choices[i]), columns - 3);
    text += "\r\x1b[2K" + (i == chosen && bold_ ? "\x1b[1m" + line + "\x1b[0m" : line) + "\n";
  }
  say(text);
}

size_t Menu::choose_by_number(
    const std::string& question, const std::vector<Choice>& choices, size_t preset) {
  std::string text = question + "\n";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += fmt::format("  {}) {}\n", i + 1, line_of(choices[i]));
  }
  say(text);
  while (true) {
    const std::string line = read_line(question, fmt::format("[{}]: ", preset + 1));
    if (line.empty()) {
      return preset;
    }
    const auto number = parse_integer(line);
    if (number && *number >= 1 && *number <= static_cast<int64_t>(choices.size())) {
      return static_cast<size_t>(*number - 1);
    }
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].name == line) {
        return i;
      }
    }
    say(fmt::format(
        "  invalid answer '{}'; expected a number from 1 to {}\n",
        printable(line),
        choices.size()));
  }
}

std::string Menu::read_line(const std::string& question, const std::string& prompt) const {
  TerminalMode mode(in_, TerminalMode::Input::kLines);
  const bool is_terminal = ::isatty(in_) != 0;
  say(prompt);
  std::string line;
  while (true) {
    const auto byte = read_byte(in_);
    if (!byte && line.empty()) {
      say("\n");
      fail_at_end(question);
    }
    if (!byte || *byte == '\n') {
      break;
    }
    if (is_terminal && *byte == TerminalMode::kCtrlC) {
      throw Interrupted();
    }
    if (is_terminal && *byte == TerminalMode::kCtrlZ) {
      mode.suspend();
      say(prompt);
      line.clear();
      continue;
    }
    line += *byte;
  }
  if (line.ends_with('\r')) {
    line.pop_back();
  }
  if (!is_terminal) {
    // A pipe has no echo: the output gets the answer, too.
    say(printable(line) + "\n");
  }
  return line;
}

}  // namespace lockstep::cli
