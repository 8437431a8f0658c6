// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/fan_out.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/launch/child.h"
#include "lockstep/launch/clock.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/door.h"
#include "lockstep/launch/machine_name.h"
#include "lockstep/launch/node_spec.h"
#include "lockstep/launch/pid_file.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/rank_set.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/watchdog.h"

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

/// A process that runs the launcher of one host, or of all.
struct Station {
  std::string what;  // "the launcher on node7"
  UniqueFd orders;   // Its stdin; closed: it is to end.
};

class FanOut {
 public:
  FanOut(const JobOptions& options, size_t stations)
      : console_(static_cast<int>(stations), options.quiet),
        inbox_(options.signals),
        pid_file_(options.pid_file),
        grace_seconds_(options.grace_seconds) {}

  /// `spec`: its first order; none if it is told otherwise.
  void start(
      const std::string& what,
      const std::vector<std::string>& command,
      const std::vector<std::string>& environment,
      const std::string& spec) {
    // The searched PATH is that of this process.
    const Program program = find_program(command, Environment::process(), ProgramKind::kBinary);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw Error("lockstep launch", fmt::format("socketpair: {}", std::strerror(errno)));
    }
    UniqueFd orders(ends[0]);
    const UniqueFd its(ends[1]);
    processes_.add(start_child(
        {.program = &program,
         .environment = environment,
         .stdin_fd = its.get(),
         .registration_fd = watchdog_.registration_fd()},
        what));
    stations_.push_back({what, std::move(orders)});
    if (!spec.empty()) {
      order(stations_.back(), spec);
    }
  }

  int run() {
    while (!processes_.silent() && !(ended_since_ && killed_)) {
      wait();
    }
    processes_.close();
    watchdog_.dismiss();
    console_.flush_all(inbox_.fd());
    return exit_code();
  }

 private:
  static void order(const Station& station, const std::string& line) {
    const std::string text = line + "\n";
    for (size_t done = 0; done < text.size();) {
      const ssize_t sent =
          ::send(station.orders.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) {
        return;  // It has ended, which is noticed elsewhere.
      }
      done += static_cast<size_t>(sent);
    }
  }

  void wait() {
    std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
    console_.await_room(items);
    for (const RankProcess& process : processes_.all()) {
      if (!process.ending) {
        items.push_back({.fd = process.pidfd.get(), .events = POLLIN, .revents = 0});
      }
      for (const LinePump* stream : {&process.out, &process.err}) {
        if (stream->is_open() && !stream->must_wait()) {
          items.push_back({.fd = stream->fd(), .events = POLLIN, .revents = 0});
        }
      }
    }
    ::poll(items.data(), items.size(), ended_since_ || patience_ ? 50 : -1);
    for (RankProcess& process : processes_.all()) {
      for (LinePump* stream : {&process.out, &process.err}) {
        if (stream->is_open() && !stream->must_wait()) {
          stream->pump();
        }
      }
    }
    notice_endings();
    while (const auto signal = inbox_.next()) {
      on_signal(*signal);
    }
    console_.flush();
    lose_patience();
  }

  /// When one has failed, the others hear of it from each other, and end within the ranks' grace;
  /// one that never joined them would wait for it until its own time is up.
  void notice_endings() {
    for (const int index : processes_.notice_endings(0)) {
      const auto at = static_cast<size_t>(index);
      const Ending& ending = *processes_.all()[at].ending;
      stations_[at].orders.reset();
      if (!ending.is_success() && !first_failed_) {
        first_failed_ = at;
        ended_since_ = Clock::now();
      }
    }
  }

  void on_signal(int signal) {
    const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
    if (ends && patience_) {
      console_.say(signal_name(signal) + " received again; ending all launchers now");
      end_all();
      return;
    }
    console_.say(signal_name(signal) + " received and passed on");
    order(stations_.front(), fmt::format("signal {}", signal));
    if (ends) {
      patience_ = Clock::now();
    }
  }

  void end_all() {
    for (Station& station : stations_) {
      station.orders.reset();
    }
    killed_at_ = killed_at_ ? killed_at_ : Clock::now();
  }

  void lose_patience() {
    const auto now = Clock::now();
    const auto after = [now](const std::optional<Clock::time_point>& since, double seconds) {
      return since && std::chrono::duration<double>(now - *since).count() >= seconds;
    };
    constexpr double kForOthersSeconds = 5;
    constexpr double kForEndingSeconds = 5;
    if (after(ended_since_, kForOthersSeconds) ||
        after(patience_, grace_seconds_ + kForOthersSeconds)) {
      end_all();
    }
    if (after(killed_at_, kForEndingSeconds) && !killed_) {
      killed_ = true;
      processes_.send(SIGKILL);
    }
  }

  int exit_code() {
    int code = 0;
    for (const RankProcess& process : processes_.all()) {
      code = code != 0 ? code : process.ending->exit_code();
    }
    if (!first_failed_) {
      return code;
    }
    const RankProcess& failed = processes_.all()[*first_failed_];
    constexpr int kSshFailed = 255;
    if (failed.ending->by_signal || failed.ending->value == kSshFailed) {
      // What every other ending means, the launcher there has said itself.
      std::string text =
          fmt::format("{} {}", stations_[*first_failed_].what, failed.ending->description());
      for (const std::string& line : failed.err.last_lines()) {
        text += "\n  " + line;
      }
      console_.report("lockstep: " + text + "\n");
      console_.flush_all(inbox_.fd());
    }
    return failed.ending->exit_code();
  }

  Console console_;
  SignalInbox inbox_;
  PidFile pid_file_;
  double grace_seconds_;
  Watchdog watchdog_;
  RankSet processes_{console_.out(), console_.err(), false};
  std::vector<Station> stations_;
  std::optional<size_t> first_failed_;
  std::optional<Clock::time_point> ended_since_;  // The first that failed.
  std::optional<Clock::time_point> patience_;     // A signal to end was passed on.
  std::optional<Clock::time_point> killed_at_;    // All were told to end.
  bool killed_ = false;
};

}  // namespace

std::vector<std::string> ssh_command(
    const std::string& host, const JobOptions& options, const std::string& lockstep) {
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
  // A host's name has passed host_name_fault(); `--` keeps it from ever being an option.
  command.insert(command.end(), {"--", host, "exec " + shell_quoted({lockstep}) + " node"});
  return command;
}

std::vector<std::string> mpirun_command(
    const std::vector<PlannedHost>& hosts,
    const JobOptions& options,
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
    const std::vector<PlannedHost>& hosts, const JobOptions& options, const std::string& lockstep) {
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

int run_fan_out(
    Starter starter,
    const std::vector<std::string>& words,
    ProgramKind kind,
    const JobOptions& options,
    const JobPlan& plan) {
  open_standard_streams();
  NodeSpec spec{
      .token = random_token(),
      .hosts = plan.hosts,
      .options = options,
      .words = words,
      .kind = kind,
      .folder = std::filesystem::current_path().string()};
  spec.options.master_addr = plan.common.master_addr;
  spec.options.master_port = plan.common.master_port;
  spec.options.run_id = plan.common.run_id;
  spec.options.env = plan.common.extra;
  const std::string lockstep = std::filesystem::read_symlink("/proc/self/exe");
  const std::vector<std::string> inherited = own_environment();
  const bool all_at_once = starter != Starter::kSsh;
  FanOut job(options, all_at_once ? 1 : plan.hosts.size());
  if (all_at_once) {
    std::vector<std::string> environment = inherited;
    environment.push_back(std::string(kNodeSpecVariable) + "=" + to_json(spec).dump());
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
        to_json(spec).dump());
  }
  return job.run();
}

}  // namespace lockstep::launcher
