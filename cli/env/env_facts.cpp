// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "cli/env/env_command.h"
#include "cli/env/env_programs.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/secrets.h"
#include "lockstep/config/config_file.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::cli {
namespace {

constexpr int kProgramMs = 2000;
constexpr int kPythonMs = 5000;

constexpr std::array<std::string_view, 15> kPrefixes = {
    "LOCKSTEP_",
    "ACCELERATE_",
    "OMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "GLOO_",
    "CUDA_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MV2_",
    "TORCH",
    "DS_"};
constexpr std::array<std::string_view, 14> kNames = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "TERM"};

bool is_relevant(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view prefix) {
           return name.starts_with(prefix);
         });
}

std::string first_line(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
  return text.substr(begin, end - begin);
}

ProgramFound find_program(
    const std::string& name, const std::string& flag, const Environment& environment) {
  ProgramFound found{.name = name, .path = find_in_path(name, environment), .version = ""};
  if (!found.path.empty()) {
    const auto answer = ask_program({found.path, flag}, kProgramMs);
    if (!answer) {
      found.version = fmt::format("did not answer {} within {} s", flag, kProgramMs / 1000);
    } else {
      found.version = (answer->exit_code == 0 ? "" : "fails: ") + first_line(answer->text);
    }
  }
  return found;
}

/// Reads the versions of packages without importing them, which would take seconds.
void ask_python(const Environment& environment, EnvFacts& facts) {
  // The folder of a module is that of the first file that an import would run.
  constexpr const char* kQuestion =
      "import os, platform, sys, importlib.metadata as m, importlib.util as u\n"
      "sys.path[:] = filter(None, sys.path)\n"  // Not the current folder.
      "def version(name):\n"
      "  try: return m.version(name)\n"
      "  except m.PackageNotFoundError: return ''\n"
      "print(platform.python_version())\n"
      "print(version('torch'))\n"
      "for name in ('accelerate', 'deepspeed'):\n"
      "  spec = u.find_spec(name)\n"
      "  print(version(name) if spec else '')\n"
      "  print(os.path.dirname(spec.origin or '') if spec else '')\n";
  facts.python = find_in_path(launcher::python_for(environment), environment);
  if (facts.python.empty()) {
    return;
  }
  const auto answer = ask_program({facts.python, "-c", kQuestion}, kPythonMs);
  if (answer && answer->exit_code == 0) {
    std::istringstream lines(answer->text);
    std::getline(lines, facts.python_version);
    std::getline(lines, facts.torch_version);
    for (PythonModule& module : facts.modules) {
      std::getline(lines, module.version);
      std::getline(lines, module.folder);
    }
  }
}

}  // namespace

std::map<std::string, std::string> relevant_variables(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (equals != std::string::npos && is_relevant(name)) {
      variables[name] = shown_value(name, entry.substr(equals + 1));
    }
  }
  return variables;
}

Configured configured_values(const Environment& environment) {
  Configured configured;
  try {
    const auto file = config::read_config(std::nullopt, environment);
    configured.file = file ? file->path : "";
    const config::Settings settings = config::resolve({}, environment, file);
    for (const config::SettingSpec& spec : config::all_settings()) {
      if (spec.type == config::SettingType::kVariables) {
        continue;
      }
      const config::Setting& setting = settings.at(spec.name);
      if (!setting.text.empty() && setting.origin != "default") {
        configured.values.push_back({spec.name, setting.text, setting.origin});
      }
    }
    for (const auto& [name, setting] : settings.variables()) {
      configured.values.push_back({"env " + name, shown_value(name, setting.text), setting.origin});
    }
  } catch (const ConfigError& error) {
    configured.fault = error.what();
  }
  return configured;
}

EnvFacts gather_env_facts() {
  const Environment environment = Environment::process();
  EnvFacts facts;
  facts.machine = describe_machine();
  facts.programs = {
      find_program("ssh", "-V", environment),
      find_program("mpirun", "--version", environment),
      find_program("srun", "--version", environment)};
  ask_python(environment, facts);
  if (const auto answer = ask_program({"nvidia-smi", "-L"}, kProgramMs);
      answer && answer->exit_code == 0) {
    facts.nvidia_smi = answer->text;
  }
  facts.variables = relevant_variables(launcher::own_environment());
  facts.configured = configured_values(environment);
  return facts;
}

}  // namespace lockstep::cli
