// SPDX-License-Identifier: Apache-2.0
#include "cli/common/arguments.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/report.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep::cli {
namespace {

std::string title(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : title(*app.get_parent()) + " " + app.get_name();
}

/// Returns the long names only, since all names of one letter are similar.
std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) {
      continue;  // Hidden options, which exist to be refused with a message.
    }
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

/// The name that another launcher has for an option of `lockstep launch`.
struct OtherName {
  const char* name;
  const char* ours;
};

constexpr std::array kOtherNames = {
    OtherName{"-np", "-n"},
    OtherName{"--np", "-n"},
    OtherName{"--ntasks", "--num-processes"},
    OtherName{"--world-size", "--num-processes"},
    OtherName{"-N", "--nnodes"},
    OtherName{"--nodes", "--nnodes"},
    OtherName{"--machinefile", "--hostfile"},
    OtherName{"--host", "--include"},
    OtherName{"-x", "--env"},
    OtherName{"--rank", "--node-rank"}};

/// Formats "; did you mean '--nnodes'?", or returns "".
std::string option_hint(const CLI::App& app, const std::string& name) {
  for (const OtherName& other : kOtherNames) {
    if (name == other.name && app.get_option_no_throw(other.ours) != nullptr) {
      return fmt::format("; did you mean '{}'?", other.ours);
    }
  }
  return did_you_mean(name, long_names(app));
}

[[noreturn]] void refuse_option(const CLI::App& app, const std::string& name) {
  throw ConfigError(
      title(app),
      fmt::format(
          "unknown option {}; {} --help lists the options{}",
          name,
          title(app),
          option_hint(app, name)));
}

const CLI::Option& known_option(const CLI::App& app, const std::string& name) {
  if (const CLI::Option* option = app.get_option_no_throw(name)) {
    return *option;
  }
  refuse_option(app, name);
}

const CLI::App& known_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) {
      return *command;
    }
    names.push_back(command->get_name());
  }
  const std::string expected = app.get_parent() == nullptr
                                   ? title(app) + " --help lists the commands"
                                   : fmt::format("expected one of {}", fmt::join(names, ", "));
  throw ConfigError(
      title(app),
      fmt::format("unknown command '{}'; {}{}", name, expected, did_you_mean(name, names)));
}

/// Reads one option and its value, and appends them in a form that is unambiguous for CLI11.
class OptionReader {
 public:
  OptionReader(
      const CLI::App& app, const std::vector<std::string>& words, std::vector<std::string>& own)
      : app_(app), words_(words), own_(own) {}

  size_t read(size_t next) {
    const std::string& word = words_[next];
    return word.starts_with("--") ? read_long(word, next + 1) : read_short(word, next + 1);
  }

 private:
  size_t read_long(const std::string& word, size_t next) {
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    std::replace(name.begin() + 2, name.end(), '_', '-');
    const CLI::Option& option = known_option(app_, name);
    const bool has_value = equals != std::string::npos;
    if (option.get_expected_min() == 0) {
      if (has_value) {
        throw ConfigError(title(app_), fmt::format("{} takes no value; got {}", name, word));
      }
      own_.push_back(name);
      return next;
    }
    if (has_value) {
      append(option, name, word.substr(equals + 1));
      return next;
    }
    append(option, name, value_at(name, next));
    return next + 1;
  }

  /// Refuses a long name after one dash, like -np, -nnodes or -hostfile=FILE, which would be read
  /// as several short options.
  void refuse_long_name(const std::string& word) const {
    const std::string name = word.substr(0, word.find('='));
    const bool is_long = name.size() > 2 && app_.get_option_no_throw("-" + name) != nullptr;
    const bool is_np =
        word.starts_with("-np") && word.find_first_not_of("0123456789", 3) == std::string::npos;
    if (is_long) {
      throw ConfigError(
          title(app_), fmt::format("unknown option {}; did you mean '-{}'?", name, name));
    }
    if (is_np && app_.get_option_no_throw("-n") != nullptr) {
      refuse_option(app_, "-np");
    }
  }

  size_t read_short(const std::string& word, size_t next) {
    refuse_long_name(word);
    for (size_t i = 1; i < word.size(); ++i) {
      const std::string name = {'-', word[i]};
      const CLI::Option& option = known_option(app_, name);
      if (option.get_expected_min() == 0) {
        own_.push_back(name);
        continue;
      }
      if (i + 1 < word.size()) {
        append(option, name, word.substr(i + 1 + (word[i + 1] == '=' ? 1 : 0)));
        return next;
      }
      append(option, name, value_at(name, next));
      return next + 1;
    }
    return next;
  }

  std::string value_at(const std::string& name, size_t next) const {
    if (next >= words_.size()) {
      throw ConfigError(
          title(app_),
          fmt::format("the value of {} is missing; expected it after the option", name));
    }
    return words_[next];
  }

  void append(const CLI::Option& option, const std::string& name, const std::string& value) {
    if (value.empty()) {
      throw ConfigError(
          title(app_), fmt::format("the value of {} is empty; expected a value", name));
    }
    own_.push_back("--" + option.get_lnames().front() + "=" + value);
  }

  const CLI::App& app_;
  const std::vector<std::string>& words_;
  std::vector<std::string>& own_;
};

}  // namespace

Arguments split_arguments(const CLI::App& app, const std::vector<std::string>& words) {
  Arguments arguments;
  const CLI::App* command = &app;
  size_t next = 0;
  while (next < words.size()) {
    const std::string& word = words[next];
    const bool takes_program = command->get_prefix_command();
    const bool takes_words = !takes_program && command->get_subcommands({}).empty();
    if (word == "--" && takes_program) {
      ++next;
      break;
    }
    if (word == "--" && takes_words) {
      arguments.words.insert(
          arguments.words.end(),
          words.begin() + static_cast<std::ptrdiff_t>(next) + 1,
          words.end());
      return arguments;
    }
    if (word.size() > 1 && word[0] == '-') {
      next = OptionReader(*command, words, arguments.own).read(next);
    } else if (takes_program) {
      break;
    } else if (takes_words) {
      arguments.words.push_back(word);
      ++next;
    } else {
      command = &known_command(*command, word);
      arguments.own.push_back(word);
      ++next;
    }
  }
  arguments.program.assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
  return arguments;
}

void expect_words(
    const std::string& command,
    const std::vector<std::string>& words,
    size_t least,
    size_t most,
    const std::string& expected) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(
        command, fmt::format("{}; expected {}; try {} --help", what, expected, command));
  };
  if (words.size() > most) {
    refuse(fmt::format("unexpected argument '{}'", printable(words[most])));
  }
  if (words.size() < least) {
    refuse("an argument is missing");
  }
  if (std::find(words.begin(), words.end(), "") != words.end()) {
    refuse("an argument is empty");
  }
}

void expect_no_words(const std::string& command, const std::vector<std::string>& words) {
  expect_words(command, words, 0, 0, "no arguments");
}

}  // namespace lockstep::cli
