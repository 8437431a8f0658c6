// SPDX-License-Identifier: Apache-2.0
#include "cli/launch_command.h"

#include "cli/usage_formatter.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/cores.h"

namespace lockstep::cli {
namespace {

constexpr int kMostThreads = 4096;
constexpr int kLastPort = 65535;
constexpr double kLongestGraceSeconds = 86400;

constexpr const char* kFooter = R"(Examples:
  lockstep launch -n 2 ./train --epochs 3      two ranks of a program
  lockstep launch -n auto train.py             one rank a core of a Python script
  lockstep launch -n 2 --resume ./train        goes on where a stopped job has saved
  lockstep launch -n 4 --rank-prefix -- ./train -n 5
                                               what follows the program is its own

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the rest
of torchrun's variables. A name without a slash is looked up in PATH; a .py file is
run by $LOCKSTEP_PYTHON, else python3. Rank 0 reads this command's stdin, unless that
is a terminal. Options may be written with _ for -.

Exit code: 0 if every rank ended with 0; else the code of the rank that failed first,
128 + N if signal N ended it; 75 if the ranks saved and left; 2 for a wrong call.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks; a
second SIGINT or SIGTERM kills them at once. A program whose Accelerator has a project_dir
answers SIGTERM and SIGUSR1 by saving its state and leaving with 75; --resume goes on.)";

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app)
    : command_(app.add_subcommand("launch", "Run a program as several ranks on this machine")) {
  command_->prefix_command();
  set_help(*command_, "lockstep launch -n N [OPTIONS] [--] PROGRAM [ARGS...]", kFooter);
  command_
      ->add_option(
          "-n,--nproc-per-node,--num-processes", ranks_, "Number of ranks, or auto: one a core")
      ->type_name("N");
  command_
      ->add_option(
          "--threads-per-rank,--num-cpu-threads-per-process",
          options_.threads_per_rank,
          "OMP_NUM_THREADS of each rank; without it the environment's, else cores / ranks")
      ->type_name("T")
      ->check(CLI::Range(1, kMostThreads));
  command_
      ->add_option(
          "--master-port",
          options_.master_port,
          "Port where the ranks meet; 0, the default, for a free one")
      ->type_name("P")
      ->check(CLI::Range(0, kLastPort));
  command_
      ->add_option(
          "--grace-seconds",
          options_.grace_seconds,
          "Time between a signal passed on and SIGKILL (30)")
      ->type_name("S")
      ->check(CLI::Range(0.0, kLongestGraceSeconds));
  command_->add_flag(
      "--rank-prefix", options_.rank_prefix, "Put [rank N] before each line of output");
  command_->add_flag(
      "--resume",
      options_.resume,
      "Go on from the newest whole checkpoint of the program's project_dir, if there is one");
  command_->add_flag("--force", force_, "Allow more than 64 ranks a core");
  command_->add_flag("-q,--quiet", options_.quiet, "Say nothing but why a job failed");
  command_->add_flag(
      "--json", options_.json, "Say why a job failed as one line of JSON, on stderr");
}

int LaunchCommand::run(const std::vector<std::string>& program) const {
  if (ranks_.empty()) {
    throw ConfigError(
        "lockstep launch", "how many ranks? expected -n N; try -n 2, or -n auto for one a core");
  }
  launcher::JobOptions options = options_;
  options.ranks = launcher::parse_ranks(ranks_, available_cores(), force_);
  if (program.empty()) {
    throw ConfigError(
        "lockstep launch", "no program to run; expected one after the options, like -n 2 ./train");
  }
  return launcher::run_job(launcher::find_program(program, Environment::process()), options);
}

}  // namespace lockstep::cli
