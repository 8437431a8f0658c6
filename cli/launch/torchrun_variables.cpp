// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/torchrun_variables.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <optional>

#include <fmt/format.h>

#include "cli/launch/launch_flags.h"
#include "lockstep/base/host/address.h"

namespace lockstep::cli {
namespace {

/// The options of torchrun with a value: those with an `env` action in torch/distributed/run.py.
constexpr std::array kValueOptions = {
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "signals-to-handle",
    "shutdown-timeout",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "local-addr"};

/// The options without a value: those with a `check_env` action.
constexpr std::array kFlagOptions = {
    "standalone", "module", "no-python", "run-path", "virtual-local-rank"};

/// Lockstep's variable for the same setting as a variable of torchrun.
struct OwnVariable {
  const char* torchrun;
  const char* own;
};

/// The option for the value of a variable.
struct PodVariable {
  const char* variable;
  const char* option;
};

constexpr std::array kOwnVariables = {
    OwnVariable{"PET_NNODES", "LOCKSTEP_NUM_MACHINES"},
    OwnVariable{"PET_NODE_RANK", "LOCKSTEP_MACHINE_RANK"},
    OwnVariable{"PET_MASTER_ADDR", "LOCKSTEP_MAIN_PROCESS_IP"},
    OwnVariable{"PET_MASTER_PORT", "LOCKSTEP_MAIN_PROCESS_PORT"}};

std::string variable_of(std::string option) {
  std::transform(option.begin(), option.end(), option.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  return "PET_" + option;
}

/// Returns the number in "2", or in torchrun's range "2:2".
std::optional<int64_t> number_of(const std::string& value) {
  const size_t colon = value.find(':');
  if (colon != std::string::npos && value.substr(0, colon) == value.substr(colon + 1)) {
    return parse_integer(value.substr(0, colon));
  }
  return parse_integer(value);
}

bool is_same(const std::string& a, const std::string& b) {
  return a == b || (number_of(a) && number_of(a) == number_of(b));
}

/// Returns whether `all` is the product of `each`, the ranks of a host, and `hosts`.
bool is_product(const std::string& all, const std::string& each, const std::string& hosts) {
  const auto total = number_of(all);
  const auto per_host = number_of(each);
  const auto count = number_of(hosts);
  // Larger numbers are refused elsewhere.
  constexpr int64_t kMost = 1 << 20;
  return total && per_host && count && *per_host <= kMost && *count <= kMost &&
         *total == *per_host * *count;
}

void refuse_disagreement(const Environment& environment) {
  for (const auto& [torchrun, own] : kOwnVariables) {
    const auto theirs = environment.text(torchrun);
    const auto ours = environment.text(own);
    if (theirs && ours && !is_same(*theirs, *ours)) {
      refuse_launch(
          fmt::format("{}={} and {}={} differ; unset one of them", torchrun, *theirs, own, *ours));
    }
  }
  const auto each = environment.text("PET_NPROC_PER_NODE");
  const auto all = environment.text("LOCKSTEP_NUM_PROCESSES");
  const std::string hosts = environment.text("PET_NNODES").value_or("1");
  if (each && all && !is_product(*all, *each, hosts)) {
    refuse_launch(fmt::format(
        "PET_NPROC_PER_NODE={} is the number of ranks of each host, LOCKSTEP_NUM_PROCESSES={} that "
        "of all hosts; unset one of them",
        *each,
        *all));
  }
}

/// Throws ConfigError if --standalone, one host and any port, contradicts a variable.
void refuse_standalone(const Environment& environment) {
  const auto refuse_if = [&environment](const char* variable, const char* fine) {
    const auto value = environment.text(variable);
    if (value && !is_same(*value, fine)) {
      refuse_launch(fmt::format(
          "{}={} and --standalone contradict each other; omit the option, or unset {}",
          variable,
          *value,
          variable));
    }
  };
  refuse_if("PET_NNODES", "1");
  refuse_if("PET_NODE_RANK", "0");
  for (const char* variable : {"PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT"}) {
    refuse_if(variable, "");
  }
}

/// Returns the value of `option` among `words` like "--nnodes=2".
std::optional<std::string> given_value(
    const std::vector<std::string>& words, const std::string& option) {
  for (const std::string& word : words) {
    if (word.starts_with(option + "=")) {
      return word.substr(option.size() + 1);
    }
  }
  return std::nullopt;
}

/// Returns whether --num-processes is given and equals PET_NPROC_PER_NODE times the hosts.
bool is_same_in_total(const Environment& environment, const std::vector<std::string>& words) {
  const auto all = given_value(words, "--num-processes");
  const auto hosts = given_value(words, "--nnodes");
  return all && is_product(
                    *all,
                    environment.text("PET_NPROC_PER_NODE").value_or(""),
                    hosts ? *hosts : environment.text("PET_NNODES").value_or("1"));
}

/// Returns whether `text` contains `option` as a complete word.
bool mentions(const std::string& text, const std::string& option) {
  const auto is_part_of_name = [&text](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '-');
  };
  for (size_t at = text.find(option); at != std::string::npos; at = text.find(option, at + 1)) {
    if ((at == 0 || !is_part_of_name(at - 1)) && !is_part_of_name(at + option.size())) {
      return true;
    }
  }
  return false;
}

/// Returns whether an option of these names is among `words`, with or without a value.
bool has_option(const std::vector<std::string>& words, std::initializer_list<const char*> options) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return std::find(options.begin(), options.end(), name) != options.end();
  });
}

/// Adds the options for a pod of Kubeflow's PyTorchJob. It sets the variables of a single rank, but
/// not those that a launcher sets for each rank of a host. Without the options each pod would train
/// alone.
void add_pod_variables(
    const Environment& environment,
    CLI::App& launch,
    std::vector<std::string>& words,
    std::vector<VariableOption>& given) {
  constexpr std::array kPodVariables = {
      PodVariable{"WORLD_SIZE", "nnodes"},
      PodVariable{"RANK", "node-rank"},
      PodVariable{"MASTER_ADDR", "master-addr"},
      PodVariable{"MASTER_PORT", "master-port"}};
  for (const char* other :
       {"LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "LOCKSTEP_LAUNCHER",
        "LOCKSTEP_NUM_MACHINES",
        "PET_NNODES",
        "PET_NODE_RANK"}) {
    if (environment.text(other)) {
      return;
    }
  }
  std::vector<VariableOption> added;
  std::vector<std::string> more;
  for (const auto& [variable, name] : kPodVariables) {
    const auto value = environment.text(variable);
    const std::string option = "--" + launch.get_option(std::string("--") + name)->get_lnames()[0];
    if (!value || has_option(words, {option.c_str(), "--standalone", "--hostfile", "--launcher"})) {
      return;
    }
    more.push_back(option + "=" + *value);
    added.push_back({variable, option});
  }
  if (number_of(*environment.text("WORLD_SIZE")).value_or(0) > 1 &&
      !is_written_as_loopback(*environment.text("MASTER_ADDR"))) {
    words.insert(words.end(), more.begin(), more.end());
    given.insert(given.end(), added.begin(), added.end());
  }
}

}  // namespace

std::vector<VariableOption> add_torchrun_variables(
    const Environment& environment, CLI::App& launch, std::vector<std::string>& words) {
  refuse_disagreement(environment);
  std::vector<VariableOption> given;
  add_pod_variables(environment, launch, words, given);
  for (const std::string name : kValueOptions) {
    const std::string variable = variable_of(name);
    const auto value = environment.text(variable);
    if (!value) {
      continue;
    }
    // Options of other launchers share one field, and split_arguments() writes its first name.
    const std::string option = "--" + launch.get_option("--" + name)->get_lnames().front();
    const auto option_value = given_value(words, option);
    if (option_value && !is_same(*option_value, *value)) {
      refuse_launch(fmt::format(
          "{}={} and {} {} differ; omit the option, or unset the variable",
          variable,
          *value,
          option,
          *option_value));
    }
    if (name == std::string("nproc-per-node") && is_same_in_total(environment, words)) {
      continue;
    }
    if (!option_value) {
      words.push_back(option + "=" + *value);
      given.push_back({variable, option});
    }
  }
  for (const std::string name : kFlagOptions) {
    const std::string option = "--" + name;
    const bool is_given = std::find(words.begin(), words.end(), option) != words.end();
    if (!is_given && environment.boolean(variable_of(name)).value_or(false)) {
      words.push_back(option);
      given.push_back({variable_of(name), option});
    }
  }
  if (std::find(words.begin(), words.end(), "--standalone") != words.end()) {
    refuse_standalone(environment);
  }
  return given;
}

void rethrow_naming_variables(const ConfigError& error, const std::vector<VariableOption>& given) {
  const std::string text = error.what();
  std::string named;
  for (const auto& [variable, option] : given) {
    // Messages about the ranks of a host call that option by its short name.
    if (mentions(text, option) || (option == "--nproc-per-node" && mentions(text, "-n"))) {
      named += fmt::format("{}{} comes from {}", named.empty() ? "; " : ", ", option, variable);
    }
  }
  const size_t end = text.find("] ");
  if (named.empty() || !text.starts_with('[') || end == std::string::npos) {
    throw error;
  }
  throw ConfigError(text.substr(1, end - 1), text.substr(end + 2) + named);
}

}  // namespace lockstep::cli
