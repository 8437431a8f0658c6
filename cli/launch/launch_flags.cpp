// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_flags.h"

#include <limits>
#include <utility>

#include "cli/common/choices.h"
#include "cli/common/numbers.h"

namespace lockstep::cli {
namespace {

constexpr int kMost = std::numeric_limits<int>::max();
constexpr int kMostThreads = 4096;
constexpr int kLastPort = 65535;
constexpr double kDaySeconds = 86400;
constexpr double kYearSeconds = 366 * kDaySeconds;
constexpr double kShortestSeconds = 0.001;

/// Adds options of one group of the help.
class Group {
 public:
  Group(CLI::App& command, std::string name) : command_(command), name_(std::move(name)) {}

  template <typename T>
  CLI::Option* option(
      const std::string& names, T& value, const std::string& type, const std::string& help) {
    return command_.add_option(names, value, help)->type_name(type)->group(name_);
  }
  void flag(const std::string& names, bool& value, const std::string& help) {
    command_.add_flag(names, value, help)->group(name_);
  }
  void count(const std::string& names, int& value, int least, const std::string& help) {
    option(names, value, "N", help)->check(integer_between(least, kMost));
  }
  void seconds(
      const std::string& names, double& value, double least, double most, const std::string& help) {
    option(names, value, "S", help)->check(seconds_between(least, most));
  }

 private:
  CLI::App& command_;
  std::string name_;
};

void add_job_flags(CLI::App& command, LaunchFlags& flags) {
  launcher::JobOptions& options = flags.options;
  Group job(command, "Job");
  job.option(
      "-n,--nproc-per-node,--num-gpus,--num-accelerators",
      flags.nproc_per_node,
      "N",
      "Ranks on each host: a number, cpu or gpu for one a core or GPU, or auto: a GPU if "
      "there is any, else a core");
  job.option(
      "--num-processes", flags.num_processes, "N", "The same; on several hosts, of all together");
  job.flag("-m,--module", flags.module, "PROGRAM is a Python module, as in python -m");
  job.flag("--no-python", flags.no_python, "PROGRAM is run as it is, even if it ends in .py");
  job.flag(
      "--resume",
      options.resume,
      "Continue from the newest complete checkpoint of the program's project_dir, if there is one");
  job.flag(
      "--dry-run",
      flags.dry_run,
      "Print hosts, ranks, slots, cores and what each rank's environment gets; start nothing");
  job.option(
      "--config-file",
      flags.config_file,
      "FILE",
      "Settings for what no option says; without, those of lockstep config");
  job.flag("--force", options.force, "Allow more than 64 ranks a core");
}

void add_host_flags(CLI::App& command, LaunchFlags& flags) {
  launcher::JobOptions& options = flags.options;
  Group hosts(command, "Many hosts");
  hosts.option(
      "-H,--hostfile,--deepspeed-hostfile",
      options.hostfile,
      "FILE",
      "Hosts, a line each: NAME slots=N, as DeepSpeed's and OpenMPI's");
  hosts.option(
      "-i,--include,--deepspeed-inclusion-filter",
      options.include,
      "HOSTS",
      "Only these of the hostfile: NAME[:SLOT[,SLOT]][@NAME...]");
  hosts.option(
      "-e,--exclude,--deepspeed-exclusion-filter", options.exclude, "HOSTS", "All but these");
  hosts.count("--num-nodes", options.most_hosts, 1, "The first N hosts of the hostfile");
  hosts.option(
      "--launcher",
      flags.launcher,
      "WHO",
      "Who starts a launcher on each host: ssh, the default with a hostfile, openmpi or slurm");
  hosts.option("--launcher-args", flags.launcher_args, "WORDS", "Options for ssh, mpirun or srun");
  hosts.option("--ssh-port", options.ssh_port, "P", "Port of ssh on the other hosts")
      ->check(integer_between(1, kLastPort));
  hosts.option(
      "--nnodes,--num-machines",
      flags.nnodes,
      "N",
      "Hosts, each of which this command is called on with its --node-rank");
  hosts.count("--node-rank,--machine-rank", options.node_rank, 0, "Number of this host, from 0");
  hosts.option(
      "--master-addr,--main-process-ip",
      options.master_addr,
      "HOST",
      "Where the ranks meet: the host of rank 0");
  hosts
      .option(
          "--master-port,--main-process-port",
          options.master_port,
          "P",
          "Port where they meet; on one host any free one, which 0 stands for, else 29500")
      ->check(integer_between(0, kLastPort));
  hosts.option("--rdzv-endpoint", flags.rdzv_endpoint, "HOST:P", "Both in one, as torchrun has it");
  hosts.option("--rdzv-backend", flags.rdzv_backend, "NAME", "c10d or static: the same here");
  hosts.option("--rdzv-id", options.run_id, "ID", "Name of the run; a random one without");
  hosts.option(
      "--rdzv-conf", flags.rdzv_conf, "K=V,...", "join_timeout or timeout, as --join-timeout");
  hosts.flag("--standalone", flags.standalone, "One host and any free port: the default");
}

void add_watch_flags(CLI::App& command, LaunchFlags& flags) {
  launcher::JobOptions& options = flags.options;
  Group watching(command, "Watching");
  watching.count(
      "--max-restarts",
      options.max_restarts,
      0,
      "Restart a failed job up to N times, from its newest complete checkpoint");
  watching.seconds(
      "--restart-backoff-seconds",
      options.restart_backoff_seconds,
      0,
      kDaySeconds,
      "Wait before the first restart (1); doubled each time, up to 30");
  watching.seconds(
      "--timeout",
      options.timeout_seconds,
      kShortestSeconds,
      kYearSeconds,
      "End the job after S seconds, with SIGTERM and exit code 124");
  watching.seconds(
      "--join-timeout",
      options.join_timeout_seconds,
      kShortestSeconds,
      kDaySeconds,
      "How long ranks wait for each other to appear (120)");
  watching.seconds(
      "--stall-timeout",
      options.stall_timeout_seconds,
      0,
      kYearSeconds,
      "End the job when a rank makes no progress for S seconds (540); 0: never");
  watching.seconds(
      "--grace-seconds,--shutdown-timeout",
      options.grace_seconds,
      0,
      kDaySeconds,
      "Time between a signal passed on and SIGKILL (30)");
  watching.option(
      "--signals-to-handle",
      flags.signals,
      "NAMES",
      "Signals that are passed on: SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2");
  watching.option(
      "--save-pid", options.pid_file, "FILE", "Holds this command's pid while the job runs");
}

void add_output_flags(CLI::App& command, LaunchFlags& flags) {
  launcher::JobOptions& options = flags.options;
  Group output(command, "Output");
  output.option(
      "--log-dir",
      options.log_dir,
      "DIR",
      "Copy each rank's output to DIR/ID/attempt_N/LOCAL_RANK/{stdout,stderr}.log");
  output.option(
      "-r,--redirects",
      options.redirects,
      "WHICH",
      "To files only: 1 stdout, 2 stderr, 3 both, 0 none, or by local rank, 0:1,1:3");
  output.option("-t,--tee", options.tee, "WHICH", "To files and the console, in the same way");
  output.option(
      "--local-ranks-filter", options.local_ranks_filter, "RANKS", "Show these only, like 0,1");
  output.flag("--rank-prefix", options.rank_prefix, "Put [rank N] before each line of the console");
  output.flag("-q,--quiet", options.quiet, "Say nothing but why a job failed");
  output.flag(
      "--json",
      options.json,
      "Say why a job failed as one line of JSON, on stderr; with --dry-run, all of it, on stdout");
}

void add_environment_flags(CLI::App& command, LaunchFlags& flags) {
  launcher::JobOptions& options = flags.options;
  Group environment(command, "Environment");
  environment
      .option(
          "--env", flags.env, "NAME=VALUE", "Set a variable of every rank, or pass on NAME; repeat")
      ->allow_extra_args(false);
  environment
      .option(
          "--threads-per-rank,--num-cpu-threads-per-process",
          options.threads_per_rank,
          "T",
          "OMP_NUM_THREADS of each rank; without it the environment's, else cores / ranks")
      ->check(integer_between(1, kMostThreads));
  environment.option(
      "--cpu-bind",
      flags.cpu_bind,
      "HOW",
      "Tie each rank to its share of the cores, or to a memory node: none, cores, numa");
  environment.flag(
      "--bind-cores-to-rank", flags.bind_cores_to_rank, "The same as --cpu-bind cores");
  environment.option("--numa-binding", flags.numa_binding, "HOW", "node: as --cpu-bind numa");
  environment.flag("--cpu,--use-cpu", options.cpu, "Hide all GPUs from the ranks");
  environment.option(
      "--gpu-ids,--visible-devices",
      options.visible_devices,
      "IDS",
      "CUDA_VISIBLE_DEVICES of the ranks, like 0,1; all for no such limit");
  environment.option("--role", options.role, "NAME", "ROLE_NAME of the ranks (default)");
  environment
      .option(
          "--mixed-precision",
          options.mixed_precision,
          "P",
          "no, fp16 or bf16, for a program that sets none")
      ->check(one_of({"no", "fp16", "bf16"}));
  environment.count(
      "--gradient-accumulation-steps",
      options.gradient_accumulation_steps,
      1,
      "Micro-steps an update, whatever the program sets");
  environment
      .option(
          "--zero-stage",
          options.zero_stage,
          "N",
          "ZeRO's stage, 0 to 3, for a program that sets none; 0 is data parallel")
      ->check(one_of({"0", "1", "2", "3"}));
  environment.option(
      "--deepspeed-config-file",
      flags.deepspeed_config_file,
      "FILE",
      "LOCKSTEP_DEEPSPEED_CONFIG_FILE of the ranks, for a program that takes DeepSpeed's JSON");
  environment.flag(
      "--debug", options.debug, "Compare what the ranks pass to each other's operations");
}

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  add_job_flags(command, flags);
  add_host_flags(command, flags);
  add_watch_flags(command, flags);
  add_output_flags(command, flags);
  add_environment_flags(command, flags);
}

}  // namespace lockstep::cli
