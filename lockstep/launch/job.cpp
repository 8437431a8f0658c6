// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/cores.h"
#include "lockstep/launch/course.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/rank_set.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/watchdog.h"

namespace lockstep::launcher {
namespace {

constexpr int kDefaultColumns = 80;

int terminal_columns() {
  if (::isatty(STDERR_FILENO) == 0) {
    return 0;
  }
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kDefaultColumns;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

PortReservation hold_port(int port) {
  return port == 0 ? PortReservation::any() : PortReservation::of(port);
}

int milliseconds_until(const std::optional<Course::Clock::time_point>& deadline) {
  if (!deadline) {
    return -1;
  }
  constexpr double kLongestPoll = 1e9;
  const std::chrono::duration<double, std::milli> left = *deadline - Course::Clock::now();
  return static_cast<int>(std::ceil(std::clamp(left.count(), 0.0, kLongestPoll)));
}

class Job {
 public:
  Job(const Program& program, const JobOptions& options)
      : program_(program),
        options_(options),
        port_(hold_port(options.master_port)),
        ranks_(out_, err_, options.rank_prefix),
        course_(ranks_, options.grace_seconds, [this](const std::string& text) { say(text); }) {}

  int run() {
    start();
    while (!course_.is_over()) {
      wait();
    }
    ranks_.close();
    watchdog_.dismiss();
    flush_all();
    const int code = course_.exit_code();
    if (course_.cause()) {
      report(code);
    } else {
      course_.say_how_it_ended();
    }
    flush_all();
    return code;
  }

 private:
  void start() {
    const ThreadPlan threads = plan_threads(
        options_.threads_per_rank,
        Environment::process().text("OMP_NUM_THREADS"),
        available_cores(),
        options_.ranks);
    const JobLayout layout = {
        .ranks = options_.ranks,
        .omp_num_threads = threads.omp_num_threads,
        .master_port = port_.port(),
        .run_id = random_run_id(),
        .terminal_columns = terminal_columns(),
        .is_python = program_.is_python,
        .resume = options_.resume};
    const std::vector<std::string> inherited = own_environment();
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const bool shares_stdin = ::isatty(STDIN_FILENO) == 0;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      ranks_.add(start_child(
          {.program = &program_,
           .environment = rank_environment(inherited, layout, rank),
           .stdin_fd = rank == 0 && shares_stdin ? STDIN_FILENO : nothing.get(),
           .registration_fd = watchdog_.registration_fd()},
          fmt::format("rank {} of {}", rank, options_.ranks)));
    }
    say(threads.summary);
  }

  /// Waits for anything to happen and deals with it.
  void wait() {
    std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
    for (const Sink* sink : {&out_, &err_}) {
      if (!sink->empty()) {
        items.push_back({.fd = sink->fd(), .events = POLLOUT, .revents = 0});
      }
    }
    for (const RankProcess& process : ranks_.all()) {
      if (!process.ending) {
        items.push_back({.fd = process.pidfd.get(), .events = POLLIN, .revents = 0});
      }
    }
    const size_t first_stream = items.size();
    std::vector<LinePump*> streams;
    for (RankProcess& process : ranks_.all()) {
      for (LinePump* stream : {&process.out, &process.err}) {
        if (stream->is_open() && !stream->must_wait()) {
          items.push_back({.fd = stream->fd(), .events = POLLIN, .revents = 0});
          streams.push_back(stream);
        }
      }
    }
    ::poll(items.data(), items.size(), milliseconds_until(course_.deadline()));
    for (size_t i = 0; i < streams.size(); ++i) {
      if (items[first_stream + i].revents != 0) {
        streams[i]->pump();
      }
    }
    course_.on_endings();
    while (const std::optional<int> signal = inbox_.next()) {
      course_.on_signal(*signal);
    }
    flush(out_);
    flush(err_);
    if (course_.deadline() && Course::Clock::now() >= *course_.deadline()) {
      course_.on_deadline();
    }
  }

  void report(int code) {
    const RankFailure cause = *course_.cause();
    const auto& lines = ranks_.all()[static_cast<size_t>(cause.rank)].err.last_lines();
    const FailureReport report = {
        .ranks = options_.ranks,
        .cause = cause,
        .also_failed = course_.also_failed(),
        .stopped = course_.stopped(),
        .exit_code = code,
        .host = host_name(),
        .command = program_.argv,
        .last_lines = {lines.begin(), lines.end()}};
    err_.write(options_.ranks, "", options_.json ? json_report(report) : text_report(report));
  }

  void say(const std::string& text) {
    if (!options_.quiet) {
      err_.write(options_.ranks, "", "lockstep: " + text + "\n");
    }
  }

  void flush(Sink& sink) {
    sink.flush();
    if (sink.error() != 0) {
      course_.on_output_lost(sink.error());
    }
  }

  /// Writes all that waits. A reader may take its time; whoever loses patience sends a signal.
  void flush_all() {
    for (Sink* sink : {&out_, &err_}) {
      for (flush(*sink); !sink->empty(); flush(*sink)) {
        pollfd items[] = {
            {.fd = sink->fd(), .events = POLLOUT, .revents = 0},
            {.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
        ::poll(items, 2, -1);
        if (items[1].revents != 0) {
          break;
        }
      }
    }
  }

  const Program& program_;
  const JobOptions& options_;
  SignalInbox inbox_;
  PortReservation port_;
  Watchdog watchdog_;
  bool bar_ = false;  ///< The terminal's last line is a progress bar.
  Sink out_{STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? &bar_ : nullptr};
  Sink err_{STDERR_FILENO, ::isatty(STDERR_FILENO) == 1 ? &bar_ : nullptr};
  RankSet ranks_;
  Course course_;
};

}  // namespace

int run_job(const Program& program, const JobOptions& options) {
  open_standard_streams();
  return Job(program, options).run();
}

}  // namespace lockstep::launcher
