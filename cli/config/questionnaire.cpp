// SPDX-License-Identifier: Apache-2.0
#include "cli/config/questionnaire.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::cli {
namespace {

using config::SettingSpec;
using config::SettingType;

/// Settings whose questions come first, in this order, after those about hosts and processes.
constexpr std::array kFirst = {
    "mixed_precision", "zero_stage", "max_restarts", "log_dir", "debug", "deepspeed_config_file"};

const SettingSpec& spec_of(std::string_view name) {
  return *config::find_setting(std::string(name));
}

/// Asks the questions of the table of settings and collects the answers.
class Questionnaire {
 public:
  Questionnaire(Menu& menu, config::ConfigValues present)
      : menu_(menu), values_(std::move(present)) {}

  config::ConfigValues run() {
    ask_text("num_machines");
    if (value("num_machines") == "1") {
      forget({"machine_rank", "main_process_ip", "launcher"});
    } else {
      ask_machines();
    }
    ask_processes();
    for (const char* name : kFirst) {
      ask(spec_of(name));
    }
    for (const SettingSpec& spec : config::all_settings()) {
      const bool is_asked = spec.group == "Job" || spec.group == "Several hosts" ||
                            std::find(kFirst.begin(), kFirst.end(), spec.name) != kFirst.end();
      if (!spec.question.empty() && !is_asked) {
        ask(spec);
      }
    }
    return std::move(values_);
  }

 private:
  /// Asks for a setting in the form of its type.
  void ask(const SettingSpec& spec) {
    if (!spec.choices.empty()) {
      choose(spec);
    } else if (spec.type == SettingType::kBoolean) {
      choose(spec.name, spec.question, {{"no", ""}, {"yes", ""}}, {"false", "true"});
    } else if (spec.unset.empty()) {
      ask_text(spec.name);
    } else {
      ask_optional(spec);
    }
  }

  void ask_machines() {
    const SettingSpec& launchers = spec_of("launcher");
    std::vector<Choice> choices;
    for (const config::SettingChoice& choice : launchers.choices) {
      choices.push_back({choice.value, choice.description});
    }
    choose("launcher", launchers.question, choices, config::choice_values(launchers));
    const std::string launcher = value("launcher");
    if (launcher == "local") {
      ask_text("machine_rank", [&](const auto& answer) {
        const int64_t machines = config::integer_value(value("num_machines")).value_or(1);
        const bool is_valid = config::integer_value(answer).value_or(0) < machines;
        return is_valid ? std::string()
                        : fmt::format(
                              "invalid value '{}' for machine_rank; expected 0 to {}",
                              answer,
                              machines - 1);
      });
      ask_text("main_process_ip");
      if (value("main_process_port").empty()) {
        values_.settings["main_process_port"] = std::to_string(config::kDefaultMasterPort);
      }
      ask_text("main_process_port");
      return;
    }
    forget({"machine_rank"});
    if (launcher != "slurm") {
      ask_text("hostfile");
    }
  }

  void ask_processes() {
    const SettingSpec& spec = spec_of("num_processes");
    std::vector<Choice> choices;
    const std::string present = value(spec.name);
    size_t preset = present.empty() ? 0 : spec.choices.size();
    for (const config::SettingChoice& choice : spec.choices) {
      preset = present == choice.value ? choices.size() : preset;
      choices.push_back({choice.value, choice.description});
    }
    choices.push_back({"a number", "you give the number for all machines together"});
    const size_t chosen = menu_.choose(spec.question, choices, preset);
    if (chosen < spec.choices.size()) {
      values_.settings[spec.name] = spec.choices[chosen].value;
      return;
    }
    if (preset != chosen) {
      values_.settings[spec.name] = "2";
    }
    ask_text(spec.name, {}, "How many processes on all machines together?");
  }

  /// Returns the present value, or the default; empty if it is not set.
  std::string value(const std::string& name) const {
    const auto found = values_.settings.find(name);
    return found != values_.settings.end() ? found->second : spec_of(name).default_value;
  }

  void set(const std::string& name, const std::string& text) {
    // The default is not written, unless the file has it already.
    if (text != value(name)) {
      values_.settings[name] = text;
    }
  }

  void forget(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      values_.settings.erase(name);
    }
  }

  static std::string fault_of(const std::string& name, const std::string& answer) {
    try {
      config::check_value(spec_of(name), answer, "answer", name);
      return "";
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      return what.substr(what.find("] ") + 2);
    }
  }

  using Check = std::function<std::string(const std::string&)>;

  /// Asks for a setting as text. `check` returns the fault of an answer that the table accepts.
  /// `question` replaces that of the table, unless it is empty.
  void ask_text(
      const std::string& name, const Check& check = {}, const std::string& question = {}) {
    const std::string& asked = question.empty() ? spec_of(name).question : question;
    set(name, menu_.ask(asked, value(name), [&](const std::string& answer) {
      const std::string fault = fault_of(name, answer);
      return fault.empty() && check ? check(answer) : fault;
    }));
  }

  /// Asks for a setting that the answer "none" unsets.
  void ask_optional(const SettingSpec& spec) {
    const std::string present = value(spec.name).empty() ? "none" : value(spec.name);
    const std::string answer =
        menu_.ask(spec.question, present, [](const std::string& /*any*/) { return std::string(); });
    set(spec.name, answer == "none" ? "" : answer);
  }

  /// Asks for a setting with choices, or none: the program decides.
  void choose(const SettingSpec& spec) {
    std::vector<Choice> choices = {{spec.unset, ""}};
    std::vector<std::string> texts = {""};
    for (const config::SettingChoice& choice : spec.choices) {
      choices.push_back({choice.label.empty() ? choice.value : choice.label, choice.description});
      texts.push_back(choice.value);
    }
    choose(spec.name, spec.question, choices, texts);
  }

  /// Asks for one of `choices`, whose values are `texts`.
  void choose(
      const std::string& name,
      const std::string& question,
      const std::vector<Choice>& choices,
      const std::vector<std::string>& texts) {
    size_t preset = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      preset = texts[i] == value(name) ? i : preset;
    }
    set(name, texts[menu_.choose(question, choices, preset)]);
  }

  Menu& menu_;
  config::ConfigValues values_;
};

}  // namespace

config::ConfigValues ask_settings(Menu& menu, config::ConfigValues present) {
  return Questionnaire(menu, std::move(present)).run();
}

}  // namespace lockstep::cli
