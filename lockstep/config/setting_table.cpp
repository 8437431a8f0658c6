// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/setting_table.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/text/split.h"
#include "lockstep/config/document/scalars.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostMachines = 1 << 16;
constexpr int64_t kLastPort = 65535;
constexpr int64_t kMostSteps = 1 << 30;
constexpr int64_t kMostThreads = 4096;
constexpr int64_t kMostRestarts = 1000;
constexpr int64_t kDaySeconds = 86400;
constexpr int64_t kYearSeconds = 366 * kDaySeconds;

bool is_number_in(const std::string& text, int64_t min, int64_t max) {
  const auto number = integer_value(text);
  return number && *number >= min && *number <= max;
}

std::string check_threads(const std::string& text) {
  for (const std::string& part : split(text, ',')) {
    if (!is_number_in(part, 1, kMostThreads)) {
      return fmt::format(
          "a whole number from 1 to {}, or one a level of nested parallelism, like 4,2",
          kMostThreads);
    }
  }
  return "";
}

std::string check_host(const std::string& text) {
  const bool fits =
      !text.starts_with('-') && std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("._:%-[]").find(static_cast<char>(c)) != std::string::npos;
      });
  return fits ? "" : "the name or address of a machine";
}

/// torchrun's grammar: 3, or 0:1,1:3.
std::string check_streams(const std::string& text) {
  if (is_number_in(text, 0, 3)) {
    return "";
  }
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || !is_number_in(part.substr(0, colon), 0, kMostRanks) ||
        !is_number_in(part.substr(colon + 1), 0, 3)) {
      return "0 none, 1 stdout, 2 stderr, 3 both, or that by local rank, like 0:1,1:3";
    }
  }
  return "";
}

std::vector<SettingSpec> make_settings() {
  return {
      {.name = "num_processes",
       .type = Type::kInteger,
       .what = "Processes of the job, over all machines",
       .flag = "--num-processes",
       .variables = {"LOCKSTEP_NUM_PROCESSES"},
       .unset = "a launch must say it",
       .min = 1,
       .max = kMostRanks,
       .choices = {"auto", "cpu", "gpu"}},
      {.name = "num_machines",
       .type = Type::kInteger,
       .what = "Machines of the job",
       .flag = "--num-machines",
       .variables = {"LOCKSTEP_NUM_MACHINES"},
       .default_value = "1",
       .min = 1,
       .max = kMostMachines},
      {.name = "machine_rank",
       .type = Type::kInteger,
       .what = "Which of them this one is; the machine of the main process is 0",
       .flag = "--machine-rank",
       .variables = {"LOCKSTEP_MACHINE_RANK"},
       .default_value = "0",
       .min = 0,
       .max = kMostMachines - 1},
      {.name = "main_process_ip",
       .type = Type::kText,
       .what = "Address of the machine of the main process, where the others find it",
       .flag = "--main-process-ip",
       .variables = {"LOCKSTEP_MAIN_PROCESS_IP"},
       .unset = "this machine, or the first of the hostfile",
       .check = check_host},
      {.name = "main_process_port",
       .type = Type::kInteger,
       .what = "Port where the processes meet; 0 for any free one",
       .flag = "--main-process-port",
       .variables = {"LOCKSTEP_MAIN_PROCESS_PORT"},
       .unset = "any free one",
       .min = 0,
       .max = kLastPort},
      {.name = "mixed_precision",
       .type = Type::kChoice,
       .what = "What autocast computes in, for programs that do not set it themselves",
       .flag = "--mixed-precision",
       .variables = {"LOCKSTEP_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION"},
       .unset = "as the program says",
       .choices = {"no", "fp16", "bf16"}},
      {.name = "gradient_accumulation_steps",
       .type = Type::kInteger,
       .what = "Micro-steps an update, whatever the program says",
       .flag = "--gradient-accumulation-steps",
       .variables =
           {"LOCKSTEP_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
       .unset = "as the program says",
       .min = 1,
       .max = kMostSteps},
      {.name = "zero_stage",
       .type = Type::kInteger,
       .what = "ZeRO's stage, for programs that set none themselves; 0: data parallel",
       .flag = "--zero-stage",
       .variables = {"LOCKSTEP_ZERO_STAGE"},
       .unset = "as the program says",
       .min = 0,
       .max = 3},
      {.name = "num_cpu_threads_per_process",
       .type = Type::kText,
       .what = "OMP_NUM_THREADS of each process",
       .flag = "--num-cpu-threads-per-process",
       .variables = {"LOCKSTEP_NUM_CPU_THREADS_PER_PROCESS", "OMP_NUM_THREADS"},
       .unset = "an even share of the cores",
       .check = check_threads},
      {.name = "launcher",
       .type = Type::kChoice,
       .what = "What starts the processes of other machines; local: a launch on each of them",
       .flag = "--launcher",
       .variables = {"LOCKSTEP_LAUNCHER_KIND"},
       .unset = "ssh, if a hostfile names other machines",
       .choices = {"local", "ssh", "openmpi", "slurm"}},
      {.name = "hostfile",
       .type = Type::kPath,
       .what = "Machines and their slots, in DeepSpeed's or OpenMPI's form",
       .flag = "--hostfile",
       .variables = {"LOCKSTEP_HOSTFILE"},
       .unset = "this machine alone"},
      {.name = "include",
       .type = Type::kText,
       .what = "Machines and slots of the hostfile to use, like a@b:0,2",
       .flag = "--include",
       .variables = {"LOCKSTEP_INCLUDE"},
       .unset = "all"},
      {.name = "exclude",
       .type = Type::kText,
       .what = "Machines and slots of the hostfile to leave out, like a@b:0,2",
       .flag = "--exclude",
       .variables = {"LOCKSTEP_EXCLUDE"},
       .unset = "none"},
      {.name = "max_restarts",
       .type = Type::kInteger,
       .what = "How often a job that failed is started again",
       .flag = "--max-restarts",
       .variables = {"LOCKSTEP_MAX_RESTARTS"},
       .default_value = "0",
       .min = 0,
       .max = kMostRestarts},
      {.name = "restart_backoff_seconds",
       .type = Type::kSeconds,
       .what = "Time before the first of these starts; it doubles with each, up to 30",
       .flag = "--restart-backoff-seconds",
       .variables = {"LOCKSTEP_RESTART_BACKOFF_SECONDS"},
       .default_value = "1",
       .min = 0,
       .max = kDaySeconds},
      {.name = "stall_timeout_seconds",
       .type = Type::kSeconds,
       .what = "After so long without progress a process is named and the job ended; 0: never",
       .flag = "--stall-timeout",
       .variables = {"LOCKSTEP_STALL_TIMEOUT_SECONDS"},
       .unset = "540, or nine tenths of LOCKSTEP_TIMEOUT_MS",
       .min = 0,
       .max = kYearSeconds},
      {.name = "grace_seconds",
       .type = Type::kSeconds,
       .what = "Time between a signal passed on and SIGKILL",
       .flag = "--grace-seconds",
       .variables = {"LOCKSTEP_GRACE_SECONDS"},
       .default_value = "30",
       .min = 0,
       .max = kDaySeconds},
      {.name = "join_timeout_seconds",
       .type = Type::kSeconds,
       .what = "How long processes wait for each other to appear",
       .flag = "--join-timeout",
       .variables = {"LOCKSTEP_JOIN_TIMEOUT_SECONDS", "LOCKSTEP_JOIN_TIMEOUT_MS"},
       .unset = "as the program says, which is 120 if it says nothing",
       .min = 0,
       .max = kDaySeconds},
      {.name = "timeout_seconds",
       .type = Type::kSeconds,
       .what = "The job is ended after so long; 0: never",
       .flag = "--timeout",
       .variables = {"LOCKSTEP_TIMEOUT_SECONDS"},
       .unset = "it may take as long as it takes",
       .min = 0,
       .max = kYearSeconds},
      {.name = "log_dir",
       .type = Type::kPath,
       .what = "Folder for what the processes print, a file each",
       .flag = "--log-dir",
       .variables = {"LOCKSTEP_LOG_DIR"},
       .unset = "no files"},
      {.name = "redirects",
       .type = Type::kText,
       .what = "What goes to these files alone: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3",
       .flag = "--redirects",
       .variables = {"LOCKSTEP_REDIRECTS"},
       .unset = "none",
       .check = check_streams},
      {.name = "tee",
       .type = Type::kText,
       .what = "What goes to these files and here: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3",
       .flag = "--tee",
       .variables = {"LOCKSTEP_TEE"},
       .unset = "none",
       .check = check_streams},
      {.name = "rank_prefix",
       .type = Type::kBoolean,
       .what = "Put [rank N] before each line of output",
       .flag = "--rank-prefix",
       .variables = {"LOCKSTEP_RANK_PREFIX"},
       .default_value = "false"},
      {.name = "cpu_bind",
       .type = Type::kChoice,
       .what = "Bind each process to an even share of the cores, or to one memory node",
       .flag = "--cpu-bind",
       .variables = {"LOCKSTEP_CPU_BIND"},
       .default_value = "none",
       .choices = {"none", "cores", "numa"}},
      {.name = "debug",
       .type = Type::kBoolean,
       .what = "Say of mismatched collectives what each process had",
       .flag = "--debug",
       .variables = {"LOCKSTEP_DEBUG_MODE", "ACCELERATE_DEBUG_MODE"},
       .default_value = "false"},
      {.name = "deepspeed_config_file",
       .type = Type::kPath,
       .what = "DeepSpeed's JSON, for programs that take it",
       .flag = "--deepspeed-config-file",
       .variables = {"LOCKSTEP_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
       .unset = "as the program says"},
      {.name = "env",
       .type = Type::kVariables,
       .what = "Variables of each process: a map of names and values; flags add to it",
       .flag = "--env",
       .unset = "none but those of the launch"},
  };
}

}  // namespace

const std::vector<SettingSpec>& all_settings() {
  static const std::vector<SettingSpec> settings = make_settings();
  return settings;
}

const SettingSpec* find_setting(const std::string& name) {
  for (const SettingSpec& spec : all_settings()) {
    if (spec.name == name) {
      return &spec;
    }
  }
  return nullptr;
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const SettingSpec& spec : all_settings()) {
    names.push_back(spec.name);
  }
  return names;
}

}  // namespace lockstep::config
