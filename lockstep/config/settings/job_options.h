// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::config {

/// The default rendezvous port of ranks on several hosts: torchrun's, Accelerate's, DeepSpeed's.
inline constexpr int kDefaultMasterPort = 29500;

/// NAME=value of a rank's environment.
struct EnvVariable {
  std::string name;
  std::string value;
};

/// Adds `variable` to `variables`, or replaces one of that name.
void set_variable(std::vector<EnvVariable>& variables, EnvVariable variable);

/// The cores that the ranks of a host are bound to, in the order of the setting's choices.
enum class CpuBind {
  kNone,   ///< No binding.
  kCores,  ///< An even share of the cores each.
  kNuma    ///< All cores of one memory node (or of several, with fewer ranks), shared.
};

/// All options of `lockstep launch` except the program. Plain values with their defaults; each is
/// the member of one row of setting_table.h. launcher::plan_job() checks that they agree.
struct JobOptions {
  // Number of ranks, and hosts.
  int ranks = 1;           ///< On each host. 0, with a hostfile: all its slots.
  bool force = false;      ///< Allow more than kMaxRanksPerCore ranks a core.
  int total_ranks = 0;     ///< On all hosts together, instead of `ranks`; 0: not set.
  int nodes = 1;           ///< Hosts, each with its own launcher, without a hostfile.
  int node_rank = 0;       ///< The index of this host.
  std::string hostfile{};  ///< A file that lists the hosts; empty: none.
  std::string include{};   ///< Part of the hostfile, in DeepSpeed's grammar; see host_filter.h.
  std::string exclude{};   ///< The excluded part.
  int most_hosts = 0;      ///< Only the first hosts of the hostfile; 0: all.
  int ssh_port = 0;        ///< Port of ssh on the other hosts; 0: ssh's default.
  /// Arguments for ssh, mpirun or srun, before the host's name or the program.
  std::vector<std::string> starter_args{};

  // Rendezvous.
  std::string master_addr{};        ///< Rank 0's host; empty: the first host.
  int master_port = 0;              ///< 0: any free one; on several hosts kDefaultMasterPort.
  std::string run_id{};             ///< Letters, digits, `._-`; empty: a random one.
  double join_timeout_seconds = 0;  ///< For all ranks to join; 0: the program's own.

  // Monitoring.
  int max_restarts = 0;
  double restart_backoff_seconds = 1;  ///< Before the first restart; doubled each time, up to 30.
  double timeout_seconds = 0;          ///< For the whole job, including restarts; 0: none.
  double stall_timeout_seconds = -1;   ///< Without progress; 0: none; else default_stall_timeout.
  double grace_seconds = 30;           ///< Between a forwarded signal and SIGKILL.
  std::vector<int> signals{};          ///< The forwarded signals; empty: all possible ones.
  std::string pid_file{};  ///< Holds the launcher's pid while the job runs; empty: none.

  // Output.
  bool rank_prefix = false;          ///< "[rank N] " before each line on the console.
  std::string log_dir{};             ///< See log_files.h; empty: no files, or a temporary folder.
  std::string redirects{};           ///< Streams that only go to files: "3", "0:1,1:3".
  std::string tee{};                 ///< Streams that go to files, too.
  std::string local_ranks_filter{};  ///< Local ranks with console output: "0,2"; empty: all.
  bool quiet = false;                ///< Only the failure report.
  bool json = false;                 ///< The failure report as one line of JSON.

  // Environment of the ranks.
  int threads_per_rank = 0;  ///< OMP_NUM_THREADS; 0: the environment's, else a share of the cores.
  CpuBind cpu_bind = CpuBind::kNone;
  bool resume = false;  ///< Ranks first load their newest checkpoint, if there is one.
  bool debug = false;  ///< LOCKSTEP_DEBUG_MODE=1: the ranks compare their arguments of collectives.
  bool cpu = false;    ///< The ranks see no GPU; also for Accelerate's scripts.
  std::string visible_devices{};        ///< CUDA_VISIBLE_DEVICES; empty: unchanged.
  std::string mixed_precision{};        ///< no, fp16 or bf16; empty: the program's own.
  int gradient_accumulation_steps = 0;  ///< 0: the program's own.
  std::string mesh{};                   ///< As parse_mesh reads; empty: the program's own.
  std::string zero_stage{};             ///< 0 to 3; empty: the program's own.
  std::string role = "default";         ///< ROLE_NAME.
  std::vector<EnvVariable> env{};       ///< Variables of every rank.
};

}  // namespace lockstep::config
