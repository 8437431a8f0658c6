// SPDX-License-Identifier: Apache-2.0
// Settings of the job and of its hosts.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "lockstep/config/settings/setting_rows.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

constexpr int kMostHosts = 1 << 16;

std::string check_host(const std::string& text) {
  const bool is_valid =
      !text.empty() && !text.starts_with('-') &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("._:%-[]").find(static_cast<char>(c)) != std::string::npos;
      });
  return is_valid ? "" : "the name or address of a host";
}

}  // namespace

std::vector<SettingSpec> job_rows() {
  return {
      {.description = "Ranks on each host: a number; cpu or gpu: one for each core or GPU; auto: "
                      "gpu if there is a GPU, else cpu",
       .flags = "-n,--nproc-per-node,--num-gpus,--num-accelerators",
       .placeholder = "N",
       .member = &JobOptions::ranks,
       .text = &LaunchFlags::nproc_per_node,
       .is_sent_to_hosts = false},
      {.name = "num_processes",
       .type = Type::kInteger,
       .description = "Ranks of the job: a number for all hosts together, or cpu, gpu or auto for "
                      "each host",
       .flags = "--num-processes",
       .placeholder = "N",
       .variables = {"LOCKSTEP_NUM_PROCESSES"},
       .unset = "the slots of the hostfile; without one, give -n",
       .min = 1,
       .max = kMostRanks,
       .choices =
           {{"auto", "one for each GPU, or for each core if there is no GPU"},
            {"gpu", "one for each GPU"},
            {"cpu", "one for each core"}},
       .member = &JobOptions::total_ranks,
       .text = &LaunchFlags::num_processes,
       .overriding_flags = {"--nproc-per-node"},
       .is_sent_to_hosts = false,
       .question = "How many processes?"},
      {.type = Type::kBoolean,
       .description = "PROGRAM is a Python module, as in python -m",
       .flags = "-m,--module",
       .text = &LaunchFlags::module},
      {.type = Type::kBoolean,
       .description = "Execute PROGRAM directly, even if its name ends in .py",
       .flags = "--no-python",
       .text = &LaunchFlags::no_python},
      {.type = Type::kBoolean,
       .description =
           "In PROGRAM, a Python script or module, accelerate and deepspeed mean Lockstep",
       .flags = "--alias",
       .text = &LaunchFlags::alias},
      {.type = Type::kBoolean,
       .description = "Continue from the newest complete checkpoint of the program's project_dir, "
                      "if there is one",
       .flags = "--resume",
       .member = &JobOptions::resume},
      {.type = Type::kBoolean,
       .description = "Print hosts, ranks, slots, cores and the variables of each rank; start "
                      "nothing",
       .flags = "--dry-run",
       .text = &LaunchFlags::dry_run},
      {.type = Type::kPath,
       .description = "Read settings from FILE instead of the file that lockstep config writes",
       .flags = "--config-file",
       .placeholder = "FILE",
       .text = &LaunchFlags::config_file},
      {.type = Type::kBoolean,
       .description = "Allow more than 64 ranks for each core",
       .flags = "--force",
       .member = &JobOptions::force},
  };
}

std::vector<SettingSpec> host_rows() {
  return {
      {.name = "hostfile",
       .type = Type::kPath,
       .description = "File with one host per line, NAME slots=N, as for DeepSpeed and OpenMPI",
       .flags = "-H,--hostfile,--deepspeed-hostfile",
       .placeholder = "FILE",
       .variables = {"LOCKSTEP_HOSTFILE"},
       .unset = "this host only",
       .member = &JobOptions::hostfile,
       .overriding_flags = {"--nnodes", "--standalone"},
       .is_sent_to_hosts = false,
       .question = "Which hostfile names the machines?"},
      {.name = "include",
       .description = "Hosts and slots of the hostfile to use: NAME[:SLOT[,SLOT]][@NAME...]",
       .flags = "-i,--include,--deepspeed-inclusion-filter",
       .placeholder = "HOSTS",
       .variables = {"LOCKSTEP_INCLUDE"},
       .unset = "all",
       .member = &JobOptions::include,
       .overriding_flags = {"--exclude"},
       .is_sent_to_hosts = false},
      {.name = "exclude",
       .description = "Hosts and slots of the hostfile to omit: NAME[:SLOT[,SLOT]][@NAME...]",
       .flags = "-e,--exclude,--deepspeed-exclusion-filter",
       .placeholder = "HOSTS",
       .variables = {"LOCKSTEP_EXCLUDE"},
       .unset = "none",
       .member = &JobOptions::exclude,
       .overriding_flags = {"--include"},
       .is_sent_to_hosts = false},
      {.type = Type::kInteger,
       .description = "Use only the first N hosts of the hostfile",
       .flags = "--num-nodes",
       .placeholder = "N",
       .min = 1,
       .max = kMostCount,
       .member = &JobOptions::most_hosts,
       .is_sent_to_hosts = false},
      {.name = "launcher",
       .type = Type::kChoice,
       .description = "Program that starts a launcher on each other host; local: run lockstep "
                      "launch on each host yourself",
       .flags = "--launcher",
       .placeholder = "NAME",
       .variables = {"LOCKSTEP_LAUNCHER_KIND"},
       .unset = "ssh if a hostfile names other hosts",
       .choices =
           {{"local", "you, with lockstep launch on each machine"},
            {"ssh", "this command, with ssh and a hostfile"},
            {"openmpi", "mpirun, with a hostfile"},
            {"slurm", "srun, within an allocation"}},
       .text = &LaunchFlags::launcher,
       .question = "Which program starts the processes of the other machines?"},
      {.description = "Arguments for ssh, mpirun or srun",
       .flags = "--launcher-args",
       .placeholder = "WORDS",
       .member = &JobOptions::starter_args,
       .text = &LaunchFlags::launcher_args,
       .is_sent_to_hosts = false},
      {.type = Type::kInteger,
       .description = "Port of ssh on the other hosts",
       .flags = "--ssh-port",
       .placeholder = "P",
       .min = 1,
       .max = kLastPort,
       .member = &JobOptions::ssh_port,
       .is_sent_to_hosts = false},
      {.name = "num_machines",
       .type = Type::kInteger,
       .description = "Hosts of the job; without a hostfile run this command on each, with its "
                      "--node-rank",
       .flags = "--nnodes,--num-machines",
       .placeholder = "N",
       .variables = {"LOCKSTEP_NUM_MACHINES"},
       .min = 1,
       .max = kMostHosts,
       .member = &JobOptions::nodes,
       .text = &LaunchFlags::nnodes,
       .overriding_flags = {"--standalone", "--hostfile"},
       .is_sent_to_hosts = false,
       .question = "How many machines will the job use?"},
      {.name = "machine_rank",
       .type = Type::kInteger,
       .description = "Index of this host, from 0; host 0 has rank 0",
       .flags = "--node-rank,--machine-rank",
       .placeholder = "N",
       .variables = {"LOCKSTEP_MACHINE_RANK"},
       .min = 0,
       .max = kMostHosts - 1,
       .flag_max = kMostCount,
       .member = &JobOptions::node_rank,
       .overriding_flags = {"--standalone", "--hostfile"},
       .is_sent_to_hosts = false,
       .question = "What is the number of this machine, from 0?"},
      {.name = "main_process_ip",
       .description = "Address of the host of rank 0, where all ranks connect",
       .flags = "--master-addr,--main-process-ip",
       .placeholder = "HOST",
       .variables = {"LOCKSTEP_MAIN_PROCESS_IP"},
       .unset = "this host, or the first of the hostfile",
       .check = check_host,
       .member = &JobOptions::master_addr,
       .overriding_flags = {"--rdzv-endpoint", "--standalone"},
       .question = "What is the host name or IP address of machine 0?"},
      {.name = "main_process_port",
       .type = Type::kInteger,
       .description = "Port of rank 0; 0: any free one",
       .flags = "--master-port,--main-process-port",
       .placeholder = "P",
       .variables = {"LOCKSTEP_MAIN_PROCESS_PORT"},
       .unset = "any free one; 29500 on several hosts",
       .min = 0,
       .max = kLastPort,
       .member = &JobOptions::master_port,
       .overriding_flags = {"--rdzv-endpoint", "--standalone"},
       .question = "Which port of machine 0 should the job use?"},
      {.description = "--master-addr and --master-port together, as for torchrun",
       .flags = "--rdzv-endpoint",
       .placeholder = "HOST:P",
       .text = &LaunchFlags::rdzv_endpoint},
      {.description = "c10d or static, which are equivalent here",
       .flags = "--rdzv-backend",
       .placeholder = "NAME",
       .text = &LaunchFlags::rdzv_backend},
      {.description = "Name of the run (default: a random one)",
       .flags = "--rdzv-id",
       .placeholder = "ID",
       .member = &JobOptions::run_id},
      {.description = "join_timeout or timeout, as --join-timeout",
       .flags = "--rdzv-conf",
       .placeholder = "K=V,...",
       .text = &LaunchFlags::rdzv_conf},
      {.type = Type::kBoolean,
       .description = "One host and any free port, which is the default",
       .flags = "--standalone",
       .text = &LaunchFlags::standalone},
  };
}

}  // namespace lockstep::config
