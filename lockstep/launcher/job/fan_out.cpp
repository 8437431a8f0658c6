// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/fan_out.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/multi_host/node_spec.h"
#include "lockstep/launcher/multi_host/rendezvous_listener.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/child.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/machine_name.h"
#include "lockstep/launcher/process/pid_file.h"
#include "lockstep/launcher/process/signals.h"
#include "lockstep/launcher/process/watchdog.h"

namespace lockstep::launcher {
namespace {

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

std::string names_of(const std::vector<PlannedHost>& hosts) {
  std::string names;
  for (const PlannedHost& host : hosts) {
    names += (names.empty() ? "" : ",") + host.name;
  }
  return names;
}

/// Returns the command that runs `lockstep node` on `host`. It contains no user input except the
/// host's name, the port and --launcher-args; `lockstep` is this program's path there.
std::vector<std::string> ssh_command(
    const std::string& host, const config::JobOptions& options, const std::string& lockstep) {
  std::vector<std::string> command = {
      "ssh",
      "-T",
      "-oBatchMode=yes",
      "-oConnectTimeout=10",
      "-oServerAliveInterval=5",
      "-oServerAliveCountMax=3"};
  if (options.ssh_port > 0) {
    command.insert(command.end(), {"-p", std::to_string(options.ssh_port)});
  }
  append(command, options.starter_args);
  // The host's name was checked by host_name_fault(); `--` keeps it from being an option.
  command.insert(command.end(), {"--", host, "exec " + shell_quoted({lockstep}) + " node"});
  return command;
}

/// Returns the command that runs `lockstep node` on all hosts. The spec is in kNodeSpecVariable.
std::vector<std::string> mpirun_command(
    const std::vector<PlannedHost>& hosts,
    const config::JobOptions& options,
    const std::string& lockstep,
    bool as_root) {
  std::vector<std::string> command = {
      "mpirun",
      "-n",
      std::to_string(hosts.size()),
      "--map-by",
      "ppr:1:node",
      "--bind-to",
      "none",
      "--host",
      names_of(hosts),
      "-x",
      kNodeSpecVariable};
  if (as_root) {
    command.emplace_back("--allow-run-as-root");
  }
  append(command, options.starter_args);
  command.insert(command.end(), {lockstep, "node"});
  return command;
}

std::vector<std::string> srun_command(
    const std::vector<PlannedHost>& hosts,
    const config::JobOptions& options,
    const std::string& lockstep) {
  const std::string count = std::to_string(hosts.size());
  std::vector<std::string> command = {
      "srun", "--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--export=ALL"};
  if (!hosts.front().name.empty()) {
    command.insert(command.end(), {"--nodelist", names_of(hosts)});
  }
  command.emplace_back("--cpu-bind=none");
  append(command, options.starter_args);
  command.insert(command.end(), {lockstep, "node"});
  return command;
}

/// A process that runs the launcher of one host, or the launchers of all.
struct HostLauncher {
  std::string what;     // "the launcher on node7"
  UniqueFd command_fd;  // Its stdin; closing it ends the launcher.
};

/// Starts the launchers of all hosts, forwards signals to them, and waits until they end.
class FanOut {
  /// The time in which launchers end by themselves, and report the reason.
  static constexpr double kPeersGraceSeconds = 5;

 public:
  FanOut(const config::JobOptions& options, size_t launchers)
      : console_(static_cast<int>(launchers), options.quiet),
        inbox_(options.signals),
        pid_file_(options.pid_file),
        answer_seconds_(options.quiet ? 0 : options.grace_seconds + kPeersGraceSeconds) {}

  /// Starts a launcher. `spec` is the first line of its stdin; empty if it gets the spec otherwise.
  void start(
      const std::string& what,
      const std::vector<std::string>& command,
      const std::vector<std::string>& environment,
      const std::string& spec) {
    // `command` is searched in the PATH of this process, not in that of `environment`.
    const Program program = find_program(command, Environment::process(), ProgramKind::kBinary);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw Error("lockstep launch", fmt::format("socketpair: {}", system_error_text(errno)));
    }
    UniqueFd command_fd(ends[0]);
    const UniqueFd child_fd(ends[1]);
    processes_.add(start_child(
        {.program = &program,
         .environment = environment,
         .stdin_fd = child_fd.get(),
         .registration_fd = watchdog_.registration_fd()},
        what));
    launchers_.push_back({what, std::move(command_fd)});
    if (!spec.empty()) {
      send_command(launchers_.back(), spec);
    }
  }

  int run() {
    while (!processes_.outputs_closed() && !(first_failure_at_ && killed_)) {
      wait();
    }
    processes_.close();
    watchdog_.dismiss();
    const int code = exit_code();
    console_.flush_all(inbox_.fd());
    return code;
  }

 private:
  static void send_command(const HostLauncher& launcher, const std::string& line) {
    const std::string text = line + "\n";
    for (size_t done = 0; done < text.size();) {
      const ssize_t sent =
          ::send(launcher.command_fd.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) {
        return;  // The launcher has ended, which collect_exits() detects.
      }
      done += static_cast<size_t>(sent);
    }
  }

  void wait() {
    std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
    console_.await_room(items);
    processes_.await(items);
    ::poll(
        items.data(),
        items.size(),
        first_failure_at_ || ended_all_at_ || end_requested_at_ ? 50 : -1);
    processes_.pump(items);
    collect_exits();
    while (const auto signal = inbox_.next()) {
      on_signal(*signal);
    }
    console_.flush();
    enforce_timeouts();
  }

  /// Launchers report a failure to each other, and end within the grace period. A launcher that
  /// never joined would wait until its timeout.
  void collect_exits() {
    for (const int index : processes_.collect_exits(0)) {
      const auto at = static_cast<size_t>(index);
      const ExitStatus& exit_status = *processes_.all()[at].exit_status;
      launchers_[at].command_fd.reset();
      if (!exit_status.is_success() && !first_failed_) {
        first_failed_ = at;
        first_failure_at_ = Clock::now();
        // A launcher that could not be started, or was killed, reports nothing to the others.
        peers_grace_seconds_ = is_own_failure(exit_status) ? 1 : kPeersGraceSeconds;
      }
    }
  }

  /// Handles Ctrl-Z: the ranks are paused on all hosts until SIGCONT; their launchers are not.
  void pause_job() {
    const bool pauses = !end_requested_at_ && !first_failure_at_;
    if (pauses) {
      console_.say(
          "SIGTSTP received; the job is paused on all hosts until this launcher continues "
          "(fg, or SIGCONT)");
      send_command(launchers_.front(), fmt::format("signal {}", SIGTSTP));
    }
    console_.flush();
    const auto since = Clock::now();
    SignalInbox::stop_this_process();
    if (pauses) {
      send_command(launchers_.front(), fmt::format("signal {}", SIGCONT));
      const std::chrono::duration<double> paused = Clock::now() - since;
      console_.say(fmt::format("the job continues after {:.1f} s", paused.count()));
    }
  }

  void on_signal(int signal) {
    if (signal == SIGTSTP) {
      pause_job();
      return;
    }
    const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
    if (ends && end_requested_at_) {
      console_.say(signal_name(signal) + " received again; ending all launchers now");
      end_all();
      return;
    }
    console_.say(signal_name(signal) + " received and forwarded");
    send_command(launchers_.front(), fmt::format("signal {}", signal));
    if (ends) {
      end_requested_at_ = Clock::now();  // The launcher of node 0 prints how long this may take.
      answered_bytes_ = bytes_of_node_0();
    }
  }

  void end_all() {
    for (HostLauncher& launcher : launchers_) {
      launcher.command_fd.reset();
    }
    ended_all_at_ = ended_all_at_ ? ended_all_at_ : Clock::now();
  }

  uint64_t bytes_of_node_0() const {
    const RankProcess& process = processes_.all().front();
    return process.out.bytes() + process.err.bytes();
  }

  void enforce_timeouts() {
    const auto now = Clock::now();
    const auto after = [now](const std::optional<Clock::time_point>& since, double seconds) {
      return since && std::chrono::duration<double>(now - *since).count() >= seconds;
    };
    constexpr double kEndGraceSeconds = 4;
    constexpr double kTerminateGraceSeconds = 1;
    if (answer_seconds_ > 0 && after(end_requested_at_, answer_seconds_) &&
        bytes_of_node_0() == answered_bytes_ && !ended_all_at_) {
      console_.say(launchers_.front().what + " has not answered; ending all launchers now");
      end_all();
    }
    if (after(first_failure_at_, peers_grace_seconds_)) {
      end_all();
    }
    if (after(ended_all_at_, kEndGraceSeconds) && !terminated_) {
      terminated_ = true;
      processes_.send(SIGTERM);  // mpirun and srun end the processes that they have started.
    }
    if (after(ended_all_at_, kEndGraceSeconds + kTerminateGraceSeconds) && !killed_) {
      killed_ = true;
      processes_.send(SIGKILL);
    }
  }

  /// Returns whether ssh, mpirun or srun itself failed. The launcher reports every other failure.
  static bool is_own_failure(const ExitStatus& exit_status) {
    constexpr int kSshFailed = 255;
    return exit_status.by_signal || exit_status.value == kSshFailed;
  }

  int exit_code() {
    int code = 0;
    for (const RankProcess& process : processes_.all()) {
      code = code != 0 ? code : process.exit_status->exit_code();
    }
    if (!first_failed_) {
      return code;
    }
    const RankProcess& failed = processes_.all()[*first_failed_];
    if (is_own_failure(*failed.exit_status)) {
      std::string text =
          fmt::format("{} {}", launchers_[*first_failed_].what, failed.exit_status->description());
      for (const std::string& line : failed.err.last_lines()) {
        text += "\n  " + line;
      }
      console_.report("lockstep: " + text + "\n");
    }
    return failed.exit_status->exit_code();
  }

  Console console_;
  SignalInbox inbox_;
  PidFile pid_file_;
  Watchdog watchdog_;
  RankSet processes_{console_.out(), console_.err(), false};
  std::vector<HostLauncher> launchers_;
  std::optional<size_t> first_failed_;
  std::optional<Clock::time_point> first_failure_at_;  // Time of the first failure.
  std::optional<Clock::time_point> ended_all_at_;      // Time of end_all().
  double peers_grace_seconds_ = kPeersGraceSeconds;
  double answer_seconds_;  // Node 0's time to report a signal; 0 with --quiet.
  uint64_t answered_bytes_ = 0;
  std::optional<Clock::time_point> end_requested_at_;  // Time of the forwarded signal.
  bool terminated_ = false;
  bool killed_ = false;
};

}  // namespace

int run_fan_out(
    Starter starter,
    const std::vector<std::string>& words,
    ProgramKind kind,
    const config::JobOptions& options,
    const JobPlan& plan) {
  open_standard_streams();
  NodeSpec spec{
      .token = random_token(),
      .hosts = plan.hosts,
      .options = options,
      .command = words,
      .kind = kind,
      .folder = std::filesystem::current_path().string()};
  spec.options.master_addr = plan.common.master_addr;
  spec.options.master_port = plan.common.master_port;
  spec.options.run_id = plan.common.run_id;
  spec.options.env = plan.common.extra;
  const std::string lockstep = own_executable();
  const std::vector<std::string> inherited = own_environment();
  const bool all_at_once = starter != Starter::kSsh;
  FanOut job(options, all_at_once ? 1 : plan.hosts.size());
  if (all_at_once) {
    std::vector<std::string> environment = inherited;
    environment.push_back(std::string(kNodeSpecVariable) + "=" + line_of(spec));
    const bool mpirun = starter == Starter::kMpirun;
    job.start(
        mpirun ? "mpirun" : "srun",
        mpirun ? mpirun_command(plan.hosts, options, lockstep, ::geteuid() == 0)
               : srun_command(plan.hosts, options, lockstep),
        environment,
        "");
    return job.run();
  }
  for (size_t node = 0; node < plan.hosts.size(); ++node) {
    const std::string& host = plan.hosts[node].name;
    spec.node = static_cast<int>(node);
    job.start(
        is_this_host(host) ? "the launcher on this host" : "ssh to " + host,
        is_this_host(host) ? std::vector<std::string>{lockstep, "node"}
                           : ssh_command(host, options, lockstep),
        inherited,
        line_of(spec));
  }
  return job.run();
}

}  // namespace lockstep::launcher
