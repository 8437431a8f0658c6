// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_command.h"

#include <algorithm>

#include "cli/common/report.h"
#include "cli/common/usage_formatter.h"
#include "cli/launch/launch_starter.h"
#include "cli/launch/parallelism_words.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/fan_out.h"
#include "lockstep/launcher/job/job.h"
#include "lockstep/launcher/plan/dry_run.h"
#include "lockstep/launcher/plan/plan.h"

namespace lockstep::cli {
namespace {

constexpr const char* kLaunchFooter = R"(Examples:
  lockstep launch -n 2 ./train --epochs 3      two ranks of a program
  lockstep launch -n auto train.py             one rank for each GPU, or core, of a Python script
  lockstep launch -n 2 -m package.train        a Python module
  lockstep launch -n 2 --alias run_glue.py     a script for Accelerate or DeepSpeed, unchanged
  lockstep launch -n 2 --resume ./train        continues from the checkpoint of a stopped job
  lockstep launch -n 2 --max-restarts 3 ./train
                                               restarts after a failure
  lockstep launch -n 4 --log-dir logs -r 0:0,1:3,2:3,3:3 ./train
                                               shows only rank 0; other output goes to files
  lockstep launch --hostfile hosts --exclude node2:0 --dry-run ./train
                                               shows the ranks of each host
  lockstep launch -n 4 --rank-prefix -- ./train -n 5
                                               later arguments belong to the program

Each rank has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the rest
of torchrun's variables. A name without a slash is looked up in PATH. A .py file is
run by $LOCKSTEP_PYTHON, else by the Python of the environment that this command is
installed in, else by python3 in PATH; --dry-run shows which. Rank 0 reads this
command's stdin, unless that is a terminal. Options may be written with _ for -. With a
hostfile, variables are also read from .lockstep_env in the home folder and in the current
one; --env overrides them.

torchrun's PET_* variables, which Kubeflow sets, count as options: PET_NNODES=2 is
--nnodes 2. A variable that contradicts an option is an error.

Exit code: 0 if every rank ended with 0; else the code of the rank that failed first,
128 + N if signal N ended it; 75 if the ranks saved their state and exited; 124 at the
--timeout; 2 for a usage error. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
forwarded to the ranks; a second SIGINT or SIGTERM kills them at once. A program whose
Accelerator has a project_dir handles SIGTERM and SIGUSR1: it saves its state and exits
with 75; --resume continues. A job is not restarted after a signal, a usage error (2), or
at its --timeout.)";

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app)
    : command_(app.add_subcommand("launch", "Run a program as several ranks")) {
  command_->prefix_command();
  set_help(*command_, "lockstep launch -n N [OPTIONS] [--] PROGRAM [ARGS...]", kLaunchFooter);
  add_launch_flags(*command_, flags_);
  add_refused_flags(*command_);
}

std::vector<VariableOption> LaunchCommand::add_variables(std::vector<std::string>& words) const {
  const auto has = [&words](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  // Values of options are in one word with them.
  if (!has("launch") || has("--help") || has("-h")) {
    return {};
  }
  replace_parallelism_options(words);
  return add_torchrun_variables(Environment::process(), *command_, words);
}

int LaunchCommand::run(const std::vector<std::string>& program) const {
  if (flags_.dry_run) {
    return print_plan(program);
  }
  const LaunchFlags flags = with_settings(*command_, flags_, Environment::process());
  const config::JobOptions options = job_options(flags, machine(), launcher::own_environment());
  const std::vector<std::string> command = command_of(flags, program);
  launcher::JobPlan plan = launcher::plan_job(options, launcher::own_environment());
  name_allocated_hosts(flags, Environment::process(), plan);
  if (const auto starter = starter_of(flags, plan)) {
    return launcher::run_fan_out(*starter, command, program_kind(flags_), options, plan);
  }
  return launcher::run_planned_job(
      launcher::find_program(command, Environment::process(), program_kind(flags_)),
      options,
      plan,
      {});
}

launcher::Machine LaunchCommand::machine() const {
  launcher::Machine machine = launcher::this_machine();
  if (flags_.options.cpu) {
    machine.gpus = 0;
  }
  return machine;
}

int LaunchCommand::print_plan(const std::vector<std::string>& program) const {
  return print_report("lockstep.launch", flags_.options.json, [&] {
    const std::vector<std::string> inherited = launcher::own_environment();
    const LaunchFlags flags = with_settings(*command_, flags_, Environment::process());
    const config::JobOptions options = job_options(flags, machine(), inherited);
    launcher::JobPlan plan = launcher::plan_job(options, inherited);
    name_allocated_hosts(flags, Environment::process(), plan);
    const launcher::Program found = launcher::find_program(
        command_of(flags, program), Environment::process(), program_kind(flags_));
    return Report{
        .text = launcher::dry_run_text(plan, found), .json = launcher::dry_run_json(plan, found)};
  });
}

}  // namespace lockstep::cli
