// SPDX-License-Identifier: Apache-2.0
#include "cli/ds_config/ds_config_command.h"

#include <fmt/format.h>

#include "cli/common/arguments.h"
#include "cli/common/numbers.h"
#include "cli/common/usage_formatter.h"
#include "cli/ds_config/ds_config_report.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kMostWorldSize = 1'000'000;

constexpr const char* kDsConfigFooter = R"(Examples:
  lockstep ds-config check ds_config.json --world 8
  lockstep ds-config keys

lockstep ds-config COMMAND --help describes one command.

Exit code: 0; 2 for a file with errors, or a usage error.)";

constexpr const char* kCheckFooter = R"(Examples:
  lockstep ds-config check ds_config.json --world 8
  lockstep ds-config check ds_config.json --world 8 --json | jq '.values["gradient_clipping"]'

Reads DeepSpeed's configuration strictly: an unknown key, a value of another type and an
unsupported option are errors. Prints all errors, each with file:line:column; without errors,
every value with its origin: a place in the file, a default, or its derivation; then notes on
old names and on ignored keys. Comments (#, //, /* */) and trailing commas are accepted.

Exit code: 0; 2 for a file with errors, or a usage error.)";

constexpr const char* kKeysFooter = R"(Examples:
  lockstep ds-config keys
  lockstep ds-config keys | grep zero_quantized
  lockstep ds-config keys --markdown           the tables of docs/ds_config.md

Prints the status of each key: it works, it is ignored (with the reason), or it is refused (with
an alternative); then the optimizers and schedules with their parameters.

Exit code: 0.)";

}  // namespace

DsConfigCommand::DsConfigCommand(CLI::App& app)
    : command_(app.add_subcommand("ds-config", "Check DeepSpeed's ds_config.json")) {
  set_help(*command_, "lockstep ds-config check|keys", kDsConfigFooter);
  check_ = command_->add_subcommand("check", "Show all values of a file, or all its errors");
  set_help(*check_, "lockstep ds-config check FILE --world N [--json]", kCheckFooter);
  check_->add_option("--world", world_size_, "Number of ranks that share a batch")
      ->type_name("N")
      ->check(integer_between(1, kMostWorldSize));
  check_->add_flag("--json", json_, "Print one JSON object, also for errors");
  keys_ = command_->add_subcommand("keys", "Show the status of each key");
  set_help(*keys_, "lockstep ds-config keys [--markdown]", kKeysFooter);
  keys_->add_flag("--markdown", markdown_, "Print Markdown, for a page");
}

int DsConfigCommand::run(const std::vector<std::string>& words) const {
  if (keys_->parsed()) {
    expect_no_words("lockstep ds-config keys", words);
    return print_report(
        "lockstep.ds-config.keys", false, [&] { return ds_config_keys_report(markdown_); });
  }
  if (!check_->parsed()) {
    throw ConfigError("lockstep ds-config", "the command is missing; expected check or keys");
  }
  const std::string name = "lockstep ds-config check";
  return print_report("lockstep.ds-config.check", json_, [&] {
    expect_words(name, words, 1, 1, "one file, like ds_config.json");
    if (!world_size_) {
      throw ConfigError(
          name, "--world N is missing; expected the number of ranks, which batch sizes depend on");
    }
    return ds_config_report(words[0], *world_size_, !json_);
  });
}

}  // namespace lockstep::cli
