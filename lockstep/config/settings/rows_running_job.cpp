// SPDX-License-Identifier: Apache-2.0
// Settings of a running job: monitoring, output, and the ranks' environment.
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/setting_rows.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

constexpr int kMostThreads = 4096;
constexpr int kMostSteps = 1 << 30;
constexpr int kMostRestarts = 1000;
constexpr const char* kByProgram = "the program decides";

std::string check_threads(const std::string& text) {
  for (const std::string& part : split(text, ',')) {
    if (!is_number_in(part, 1, kMostThreads)) {
      return fmt::format(
          "a whole number from 1 to {}, or one for each level of nested parallelism, like 4,2",
          kMostThreads);
    }
  }
  return "";
}

/// Stores a number as the threads of each rank; several numbers become OMP_NUM_THREADS.
void set_threads(const std::string& text, LaunchFlags& flags) {
  if (const auto number = integer_value(text)) {
    flags.options.threads_per_rank = static_cast<int>(*number);
  } else {
    set_variable(flags.options.env, {"OMP_NUM_THREADS", text});
  }
}

/// Checks torchrun's grammar: 3, or 0:1,1:3.
std::string check_streams(const std::string& text) {
  if (is_number_in(text, 0, 3)) {
    return "";
  }
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || !is_number_in(part.substr(0, colon), 0, kMostRanks) ||
        !is_number_in(part.substr(colon + 1), 0, 3)) {
      return "0 none, 1 stdout, 2 stderr, 3 both, or a value for each local rank, like 0:1,1:3";
    }
  }
  return "";
}

std::string check_mesh(const std::string& text) {
  try {
    parse_mesh(text, "mesh");
    return "";
  } catch (const ConfigError&) {
    return "NAME=SIZE with one of pp, dp_replicate, dp_shard, cp, sp, tp and ep, like tp=2,pp=2; "
           "not "
           "cp together with sp";
  }
}

}  // namespace

std::vector<SettingSpec> monitoring_rows() {
  return {
      {.name = "max_restarts",
       .type = Type::kInteger,
       .description = "Restart a failed job up to N times, from its newest complete checkpoint",
       .flags = "--max-restarts",
       .placeholder = "N",
       .variables = {"LOCKSTEP_MAX_RESTARTS"},
       .min = 0,
       .max = kMostRestarts,
       .flag_max = kMostCount,
       .member = &JobOptions::max_restarts,
       .question = "How many times should a failed job be restarted?"},
      {.name = "restart_backoff_seconds",
       .type = Type::kSeconds,
       .description = "Seconds before the first restart; they double with each restart, up to 30",
       .flags = "--restart-backoff-seconds",
       .placeholder = "S",
       .variables = {"LOCKSTEP_RESTART_BACKOFF_SECONDS"},
       .min = 0,
       .max = kDaySeconds,
       .member = &JobOptions::restart_backoff_seconds},
      {.name = "timeout_seconds",
       .type = Type::kSeconds,
       .description = "End the job after S seconds, with SIGTERM and exit code 124; in a file 0: "
                      "never",
       .flags = "--timeout",
       .placeholder = "S",
       .variables = {"LOCKSTEP_TIMEOUT_SECONDS"},
       .unset = "never",
       .min = 0,
       .max = kYearSeconds,
       .flag_min = kShortestSeconds,
       .member = &JobOptions::timeout_seconds},
      {.name = "join_timeout_seconds",
       .type = Type::kSeconds,
       .description = "Seconds that ranks wait for all other ranks to connect",
       .flags = "--join-timeout",
       .placeholder = "S",
       .variables = {"LOCKSTEP_JOIN_TIMEOUT_SECONDS", "LOCKSTEP_JOIN_TIMEOUT_MS"},
       .unset = "the program decides, else 120",
       .min = 0,
       .max = kDaySeconds,
       .flag_min = kShortestSeconds,
       .member = &JobOptions::join_timeout_seconds,
       .rank_variables = {{"LOCKSTEP_JOIN_TIMEOUT_MS"}}},
      {.name = "stall_timeout_seconds",
       .type = Type::kSeconds,
       .description = "End the job when a rank makes no progress for S seconds; 0: never",
       .flags = "--stall-timeout",
       .placeholder = "S",
       .variables = {"LOCKSTEP_STALL_TIMEOUT_SECONDS"},
       .unset = "540, or nine tenths of LOCKSTEP_TIMEOUT_MS",
       .min = 0,
       .max = kYearSeconds,
       .member = &JobOptions::stall_timeout_seconds},
      {.name = "grace_seconds",
       .type = Type::kSeconds,
       .description = "Seconds between a forwarded signal and SIGKILL; a rank that is saving a "
                      "checkpoint may finish",
       .flags = "--grace-seconds,--shutdown-timeout",
       .placeholder = "S",
       .variables = {"LOCKSTEP_GRACE_SECONDS"},
       .min = 0,
       .max = kDaySeconds,
       .member = &JobOptions::grace_seconds},
      {.description = "Signals that are forwarded to the ranks, of SIGTERM, SIGINT, SIGHUP, "
                      "SIGQUIT, SIGUSR1 and SIGUSR2 (default: all)",
       .flags = "--signals-to-handle",
       .placeholder = "NAMES",
       .member = &JobOptions::signals,
       .text = &LaunchFlags::signals},
      {.type = Type::kPath,
       .description = "Write the pid of this command to FILE while the job runs",
       .flags = "--save-pid",
       .placeholder = "FILE",
       .member = &JobOptions::pid_file,
       .is_sent_to_hosts = false},
  };
}

std::vector<SettingSpec> output_rows() {
  return {
      {.name = "log_dir",
       .type = Type::kPath,
       .description = "Copy the output of each rank to "
                      "DIR/ID/attempt_N/LOCAL_RANK/{stdout,stderr}.log",
       .flags = "--log-dir",
       .placeholder = "DIR",
       .variables = {"LOCKSTEP_LOG_DIR"},
       .unset = "no files",
       .member = &JobOptions::log_dir,
       .question = "In which folder should the output of each process be logged?"},
      {.name = "redirects",
       .description = "Streams that go to these files only: 0 none, 1 stdout, 2 stderr, 3 both, or "
                      "by local rank, 0:1,1:3",
       .flags = "-r,--redirects",
       .placeholder = "WHICH",
       .variables = {"LOCKSTEP_REDIRECTS"},
       .unset = "none",
       .check = check_streams,
       .member = &JobOptions::redirects},
      {.name = "tee",
       .description =
           "Streams that go to these files and to the console, in the format of --redirects",
       .flags = "-t,--tee",
       .placeholder = "WHICH",
       .variables = {"LOCKSTEP_TEE"},
       .unset = "none",
       .check = check_streams,
       .member = &JobOptions::tee},
      {.description = "Show the output of these local ranks only, like 0,1",
       .flags = "--local-ranks-filter",
       .placeholder = "RANKS",
       .member = &JobOptions::local_ranks_filter},
      {.name = "rank_prefix",
       .type = Type::kBoolean,
       .description = "Put [rank N] before each line on the console",
       .flags = "--rank-prefix",
       .variables = {"LOCKSTEP_RANK_PREFIX"},
       .member = &JobOptions::rank_prefix},
      {.type = Type::kBoolean,
       .description = "Print only why a job failed",
       .flags = "-q,--quiet",
       .member = &JobOptions::quiet},
      {.type = Type::kBoolean,
       .description = "Print why a job failed as one line of JSON, on stderr; with --dry-run, "
                      "print JSON on stdout",
       .flags = "--json",
       .member = &JobOptions::json},
  };
}

std::vector<SettingSpec> environment_rows() {
  return {
      {.name = "env",
       .type = Type::kVariables,
       .description = "Variables of each rank; the flag sets NAME=VALUE or passes NAME on, and may "
                      "be repeated",
       .flags = "--env",
       .placeholder = "NAME=VALUE",
       .unset = "none but those of the launch",
       .member = &JobOptions::env,
       .text = &LaunchFlags::env},
      {.name = "num_cpu_threads_per_process",
       .description = "OMP_NUM_THREADS of each rank",
       .flags = "--threads-per-rank,--num-cpu-threads-per-process",
       .placeholder = "T",
       .variables = {"LOCKSTEP_NUM_CPU_THREADS_PER_PROCESS", "OMP_NUM_THREADS"},
       .unset = "an even share of the cores",
       .flag_min = 1,
       .flag_max = kMostThreads,
       .check = check_threads,
       .member = &JobOptions::threads_per_rank,
       .set = set_threads},
      {.name = "cpu_bind",
       .type = Type::kChoice,
       .description = "Bind each rank to an even share of the cores, or to one memory node",
       .flags = "--cpu-bind",
       .placeholder = "HOW",
       .variables = {"LOCKSTEP_CPU_BIND"},
       .choices = {{"none"}, {"cores"}, {"numa"}},
       .member = &JobOptions::cpu_bind,
       .text = &LaunchFlags::cpu_bind,
       .overriding_flags = {"--bind-cores-to-rank", "--numa-binding"}},
      {.type = Type::kBoolean,
       .description = "The same as --cpu-bind cores",
       .flags = "--bind-cores-to-rank",
       .text = &LaunchFlags::bind_cores_to_rank},
      {.description = "node: the same as --cpu-bind numa",
       .flags = "--numa-binding",
       .placeholder = "HOW",
       .text = &LaunchFlags::numa_binding},
      {.type = Type::kBoolean,
       .description = "Hide all GPUs from the ranks",
       .flags = "--cpu,--use-cpu",
       .member = &JobOptions::cpu,
       .rank_variables = {{"ACCELERATE_USE_CPU", "true"}, {"CUDA_VISIBLE_DEVICES", ""}}},
      {.description = "CUDA_VISIBLE_DEVICES of the ranks, like 0,1; all: do not set it",
       .flags = "--gpu-ids,--visible-devices",
       .placeholder = "IDS",
       .member = &JobOptions::visible_devices,
       .rank_variables = {{"CUDA_VISIBLE_DEVICES"}}},
      {.description = "ROLE_NAME of the ranks (default: default)",
       .flags = "--role",
       .placeholder = "NAME",
       .member = &JobOptions::role},
      {.name = "mixed_precision",
       .type = Type::kChoice,
       .description = "Autocast dtype, for a program that sets none",
       .flags = "--mixed-precision",
       .placeholder = "P",
       .variables = {"LOCKSTEP_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION"},
       .unset = kByProgram,
       .choices =
           {{"no", "float32 throughout"},
            {"fp16", "half precision, with loss scaling"},
            {"bf16", "bfloat16, without loss scaling"}},
       .member = &JobOptions::mixed_precision,
       .rank_variables = {{"ACCELERATE_MIXED_PRECISION"}, {"LOCKSTEP_MIXED_PRECISION"}},
       .question = "Which mixed precision should programs use?"},
      {.name = "gradient_accumulation_steps",
       .type = Type::kInteger,
       .description = "Micro-steps in each update; overrides the program",
       .flags = "--gradient-accumulation-steps",
       .placeholder = "N",
       .variables =
           {"LOCKSTEP_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
       .unset = kByProgram,
       .min = 1,
       .max = kMostSteps,
       .flag_max = kMostCount,
       .member = &JobOptions::gradient_accumulation_steps,
       .rank_variables =
           {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}, {"LOCKSTEP_GRADIENT_ACCUMULATION_STEPS"}}},
      {.name = "mesh",
       .description =
           "Arrange the ranks in these dimensions, like tp=2 or tp=2,dp_shard=2; the rest "
           "is data parallel",
       .flags = "--mesh",
       .placeholder = "DIMS",
       .variables = {"LOCKSTEP_MESH"},
       .unset = kByProgram,
       .check = check_mesh,
       .member = &JobOptions::mesh,
       .rank_variables = {{"LOCKSTEP_MESH"}}},
      {.name = "zero_stage",
       .type = Type::kInteger,
       .description = "ZeRO stage, for a program that sets none; 0: data parallel",
       .flags = "--zero-stage",
       .placeholder = "N",
       .variables = {"LOCKSTEP_ZERO_STAGE"},
       .unset = kByProgram,
       .min = 0,
       .max = 3,
       .choices =
           {{"0", "nothing (data parallel)", "stage 0"},
            {"1", "the optimizer's state", "stage 1"},
            {"2", "the optimizer's state and gradients", "stage 2"},
            {"3", "the optimizer's state, gradients and parameters", "stage 3"}},
       .member = &JobOptions::zero_stage,
       .rank_variables = {{"LOCKSTEP_ZERO_STAGE"}},
       .question = "What should ZeRO shard across the processes?"},
      {.name = "deepspeed_config_file",
       .type = Type::kPath,
       .description = "DeepSpeed's JSON, for programs that read it",
       .flags = "--deepspeed-config-file",
       .placeholder = "FILE",
       .variables = {"LOCKSTEP_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
       .unset = kByProgram,
       .text = &LaunchFlags::deepspeed_config_file,
       .rank_variables = {{"LOCKSTEP_DEEPSPEED_CONFIG_FILE"}},
       .question = "Which ds_config.json should programs use?"},
      {.name = "debug",
       .type = Type::kBoolean,
       .description = "Compare the arguments of collectives, and show those of all ranks if they "
                      "differ",
       .flags = "--debug",
       .variables = {"LOCKSTEP_DEBUG_MODE", "ACCELERATE_DEBUG_MODE"},
       .member = &JobOptions::debug,
       .rank_variables = {{"LOCKSTEP_DEBUG_MODE"}},
       .question =
           "Should errors of mismatched collectives show the arguments of every process (slower)?"},
  };
}

}  // namespace lockstep::config
