// SPDX-License-Identifier: Apache-2.0
#include "cli/config/config_command.h"

#include <csignal>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/arguments.h"
#include "cli/common/usage_formatter.h"
#include "cli/config/menu.h"
#include "cli/config/questionnaire.h"
#include "cli/config/settings_report.h"
#include "lockstep/base/error.h"
#include "lockstep/config/import/import_accelerate.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {
namespace {

using config::ConfigLocation;
using config::ConfigValues;
using Json = nlohmann::json;

constexpr const char* kConfigFooter = R"(Examples:
  lockstep config                              asks questions and writes the file
  lockstep config default --mixed-precision bf16
  lockstep config show                         the settings of a launch here, and their origins
  lockstep config validate cluster.yaml
  lockstep config import                       imports Accelerate's file

Without COMMAND, asks for the most common settings; Enter keeps the value in the file. A
terminal shows menus for arrow keys; otherwise choices are numbered lines, and answers may
come through a pipe.

The file is --config-file, else $LOCKSTEP_CONFIG_FILE, else lockstep/config.yaml in
$XDG_CONFIG_HOME or ~/.config. It is written atomically, for this user only, with a comment
for every setting; your own comments are not kept. A flag of lockstep launch overrides the
environment, which overrides the file, which overrides the default.

Exit code: 0; 1 if the file cannot be written; 2 for a usage error or an invalid file;
130 for Ctrl-C.)";

constexpr const char* kDefaultFooter = R"(Examples:
  lockstep config default
  lockstep config default --mixed-precision bf16 --config-file cluster.yaml

One process for each GPU, or for each core if there is no GPU. A program can call
lockstep::config::write_basic_config instead.

Exit code: 0; 1 if the file cannot be written; 2 for a usage error, or if the file exists.)";

constexpr const char* kConfigShowFooter = R"(Examples:
  lockstep config show
  LOCKSTEP_MAX_RESTARTS=3 lockstep config show
  lockstep config show --json | jq -r '.settings[] | select(.value != null) | .name'

Prints every setting, its value, and the variable, or the file and line, that sets it.

Exit code: 0; 2 for a usage error, or an invalid value or file.)";

constexpr const char* kValidateFooter = R"(Examples:
  lockstep config validate
  lockstep config validate cluster.yaml job.json

Lists all errors: unknown keys, keys given twice, values of another type or out of range,
each with file:line:column.

Exit code: 0 if all files are valid; 2 if not, or for a usage error.)";

constexpr const char* kImportFooter = R"(Examples:
  lockstep config import                       Accelerate's own default_config.yaml
  lockstep config import accelerate.yaml --config-file cluster.yaml

Reads the file of accelerate config, YAML or JSON, and the DeepSpeed JSON that it names.
Lists ignored keys, and those that the program must set itself. A feature that Lockstep does
not have is an error with the reason.

Exit code: 0; 1 if the file cannot be written; 2 for a usage error, for a file that cannot be
imported, or if the target exists.)";

/// Writes the file. Throws ConfigError if it exists and `force` is not set.
void write(const ConfigLocation& location, const ConfigValues& values, bool force) {
  if (!config::write_config(location.path, config::render_config(values), force)) {
    throw ConfigError(
        location.path.native(),
        "the configuration exists and is not changed; add --force to replace it, or --config-file "
        "for another file");
  }
}

/// Returns the command that reads the file.
std::string hint_of(const ConfigLocation& location) {
  return location.chosen_by == "--config-file"
             ? "lockstep launch --config-file " + printable(location.path.native()) + " reads it"
             : "lockstep launch reads it";
}

}  // namespace

ConfigCommand::ConfigCommand(CLI::App& app)
    : command_(app.add_subcommand("config", "Write, show and check the settings of a launch")) {
  set_help(*command_, "lockstep config [COMMAND] [OPTIONS]", kConfigFooter);
  add_file_option(*command_);
  default_ =
      add("default",
          "Write a configuration that suits most machines",
          "default [--mixed-precision no|fp16|bf16] [--force] [--json]");
  default_->footer(kDefaultFooter);
  default_->add_option("--mixed-precision", mixed_precision_, "Autocast dtype (default: no)")
      ->type_name("P");
  show_ = add("show", "Show every setting and its origin", "show [--json]");
  show_->footer(kConfigShowFooter);
  validate_ = add("validate", "List all errors in files", "validate [FILE...] [--json]");
  validate_->footer(kValidateFooter);
  import_ = add("import", "Import Accelerate's file", "import [FILE] [--force] [--json]");
  import_->footer(kImportFooter);
  for (CLI::App* const command : {default_, import_}) {
    command->add_flag("--force", force_, "Replace an existing configuration");
  }
}

CLI::App* ConfigCommand::add(
    const std::string& name, const std::string& what, const std::string& usage) {
  CLI::App* command = command_->add_subcommand(name, what);
  set_help(*command, "lockstep config " + usage, "");
  add_file_option(*command);
  command->add_flag("--json", json_, "Print one JSON object, also for errors");
  return command;
}

void ConfigCommand::add_file_option(CLI::App& command) {
  command
      .add_option(
          "--config-file", config_file_, "The configuration file, instead of the default one")
      ->type_name("PATH");
}

std::optional<std::string> ConfigCommand::chosen_file() const {
  return config_file_.empty() ? std::nullopt : std::optional(config_file_);
}

ConfigLocation ConfigCommand::location() const {
  auto found = config::find_config(chosen_file(), Environment::process());
  if (!found) {
    throw ConfigError(
        "lockstep config",
        "HOME is not set, so there is no default path; set it, or add --config-file PATH");
  }
  return std::move(*found);
}

int ConfigCommand::ask() const {
  const ConfigLocation target = location();
  const bool exists = std::filesystem::exists(target.path);
  Menu menu(STDIN_FILENO, STDOUT_FILENO, Environment::process());
  try {
    ConfigValues present;
    if (exists) {
      present = config::values_of(config::read_document(target.path));
    }
    const ConfigValues values = ask_settings(menu, std::move(present));
    write(target, values, true);
  } catch (const Interrupted&) {
    menu.say("\n");
    return kExitSignalBase + SIGINT;
  }
  menu.say(fmt::format(
      "{} {}; {}\n",
      exists ? "replaced" : "wrote",
      printable(target.path.native()),
      hint_of(target)));
  return kExitOk;
}

Report ConfigCommand::write_default() const {
  const ConfigLocation target = location();
  config::check_value(
      *config::find_setting("mixed_precision"),
      mixed_precision_,
      "lockstep config default",
      "--mixed-precision");
  write(
      target,
      {.settings = {{"num_processes", "auto"}, {"mixed_precision", mixed_precision_}},
       .variables = {}},
      force_);
  Report report;
  report.text = fmt::format("wrote {}; {}\n", printable(target.path.native()), hint_of(target));
  report.json = {{"config_file", target.path.native()}};
  return report;
}

Report ConfigCommand::validate(const std::vector<std::string>& words) const {
  std::vector<std::string> paths = words;
  if (paths.empty()) {
    paths.push_back(location().path.native());
  }
  Report report;
  report.json["files"] = Json::array();
  for (const std::string& path : paths) {
    std::vector<std::string> faults;
    size_t settings = 0;
    try {
      const config::Document document = config::read_document(path);
      faults = config::faults_of(document);
      settings = document.root.entries.size();
    } catch (const ConfigError& error) {
      faults.emplace_back(error.what());
    }
    report.json["files"].push_back({{"path", path}, {"faults", faults}});
    report.text +=
        faults.empty()
            ? fmt::format("{}: valid, {}\n", printable(path), counted(settings, "setting"))
            : fmt::format("{}: {}\n", printable(path), counted(faults.size(), "error"));
    for (const std::string& fault : faults) {
      report.text += "  " + printable(fault) + "\n";
    }
    report.exit_code = faults.empty() ? report.exit_code : kExitUsage;
  }
  return report;
}

Report ConfigCommand::import_file(const std::vector<std::string>& words) const {
  expect_words("lockstep config import", words, 0, 1, "at most one file of Accelerate");
  const Environment environment = Environment::process();
  const std::filesystem::path source =
      words.empty() ? config::accelerate_config_path(environment) : std::filesystem::path(words[0]);
  if (words.empty() && !std::filesystem::exists(source)) {
    throw ConfigError(
        "lockstep config import",
        fmt::format(
            "Accelerate's file does not exist; expected {}; give its path, or create it with "
            "accelerate config",
            source.native()));
  }
  const config::Import import =
      config::import_accelerate(config::read_document(source), environment);
  const ConfigLocation target = location();
  write(target, import.values, force_);
  Report report;
  report.text = fmt::format(
      "imported {} from {}\nwrote {}; {}\n",
      counted(import.values.settings.size() + import.values.variables.size(), "setting"),
      printable(source.native()),
      printable(target.path.native()),
      hint_of(target));
  for (const std::string& note : import.notes) {
    report.text += "note: " + printable(note) + "\n";
  }
  if (!import.without_meaning.empty()) {
    report.text += fmt::format("note: ignored: {}\n", fmt::join(import.without_meaning, ", "));
  }
  report.json = {
      {"source", source.native()},
      {"config_file", target.path.native()},
      {"settings", import.values.settings},
      {"env", import.values.variables},
      {"notes", import.notes},
      {"without_meaning", import.without_meaning}};
  return report;
}

Report ConfigCommand::make_report(const std::vector<std::string>& words) const {
  if (validate_->parsed()) {
    return validate(words);
  }
  if (import_->parsed()) {
    return import_file(words);
  }
  expect_no_words(default_->parsed() ? "lockstep config default" : "lockstep config show", words);
  return default_->parsed() ? write_default() : own_settings_report(chosen_file());
}

int ConfigCommand::run(const std::vector<std::string>& words) const {
  const std::vector<CLI::App*> given = command_->get_subcommands();
  if (given.empty()) {
    return ask();
  }
  return print_report(
      "lockstep.config." + given.front()->get_name(), json_, [&] { return make_report(words); });
}

}  // namespace lockstep::cli
