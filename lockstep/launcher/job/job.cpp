// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/launcher/job/attempt.h"
#include "lockstep/launcher/job/job_control.h"
#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/child.h"
#include "lockstep/launcher/process/pid_file.h"
#include "lockstep/launcher/process/port.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostAttemptsListed = 10;
constexpr double kLongestDelaySeconds = 30;

constexpr auto kLastMessagesTimeout = std::chrono::seconds(2);

/// Runs the attempts of a job, one after another.
class Job {
 public:
  Job(const Program& program,
      const config::JobOptions& options,
      const JobPlan& plan,
      const NodeContext& context,
      FailureSink on_failure)
      : program_(program),
        options_(options),
        plan_(plan),
        console_(plan.local_size(), options.quiet),
        control_(options, console_),
        on_failure_(std::move(on_failure)) {
    control_.connect(plan_, context);
    session_ = control_.session();
    hold_port();
    if (session_ == nullptr) {
      open_logs(plan_.common.run_id);
    }
    pid_file_.emplace(options.pid_file);  // Last, since it replaces the file of another job.
  }

  int run() {
    try {
      const int code = session_ == nullptr ? run_attempts() : run_attempts_together();
      control_.write_all_output();
      return code;
    } catch (...) {
      control_.write_all_output();  // The messages of earlier attempts.
      throw;
    }
  }

 private:
  void open_logs(const std::string& folder) {
    if (plan_.needs_files()) {
      logs_.emplace(options_.log_dir, folder);
    }
  }

  /// Waits for the launchers of all hosts. Returns an exit code if the job ends before.
  std::optional<int> join() {
    std::optional<int> signal;
    const auto is_cancelled = [&] {
      do {
        signal = control_.next_signal();
      } while (signal == SIGTSTP || signal == SIGCONT);  // Nothing runs yet that could be paused.
      return signal || control_.channel()->commands_ended();
    };
    if (session_->join(is_cancelled)) {
      plan_.common.run_id = session_->run_id();
      // A file system that the hosts share must not mix their ranks.
      open_logs(fmt::format("{}/node_{}", plan_.common.run_id, plan_.here));
      return std::nullopt;
    }
    if (!signal) {
      return kExitFailure;  // No message: its reader has gone.
    }
    console_.say(signal_name(*signal) + " received before the launchers of all hosts joined");
    return kExitSignalBase + *signal;
  }

  /// Runs the attempts in step with the launchers of the other hosts.
  int run_attempts_together() {
    if (const std::optional<int> end = join()) {
      return *end;
    }
    for (int number = 0;; ++number) {
      session_->begin_attempt();
      AttemptEnd end_here;
      session_->report_result(run_attempt(number, &end_here));
      if (const std::optional<int> end = await_job_result()) {
        return *end;
      }
      JobResult job_result = *session_->job_result();
      if (job_result.failure) {
        job_result.failure->flight = end_here.flight;
        const std::vector<watch::RankView> others = session_->other_views();
        end_here.views.insert(end_here.views.end(), others.begin(), others.end());
        explain_by_departed_rank(*job_result.failure, end_here.views);
        add_failed(number, job_result.failure->cause);
      }
      std::optional<int> end = job_result.exit_code;
      if (job_result.restart) {
        end = control_.await_restart(number + 1, "the job ended because " + job_result.cause);
      }
      if (end) {
        return end_together(job_result, *end, number + 1);
      }
    }
  }

  int end_together(const JobResult& job_result, int exit_code, int attempts) {
    if (job_result.failure) {
      report(*job_result.failure, exit_code, attempts);
    } else if (!job_result.cause.empty()) {
      console_.say(
          fmt::format("the job ended because {}; exit code {}", job_result.cause, exit_code));
    }
    // The last messages of node 0 must arrive before it closes the connections.
    const Clock::time_point end = Clock::now() + kLastMessagesTimeout;
    while (!session_->others_left() && Clock::now() < end) {
      control_.channel()->reactor().wait(std::chrono::milliseconds(100));
      control_.channel()->reactor().dispatch();
    }
    return exit_code;
  }

  /// Waits until the ranks of all hosts have ended. Returns an exit code if the user does not wait.
  std::optional<int> await_job_result() {
    constexpr auto kLongestWait = std::chrono::milliseconds(500);
    int signals = 0;
    while (!session_->job_result()) {
      control_.channel()->reactor().wait(kLongestWait, control_.inbox().fd());
      control_.channel()->reactor().dispatch();
      console_.flush();
      while (const std::optional<int> signal = control_.next_signal()) {
        signals += *signal == SIGINT || *signal == SIGTERM ? 1 : 0;
        session_->report_signal({.signal = *signal, .is_repeated = signals == 2});
        if (signals == 2) {
          console_.say(signal_name(*signal) + " received; not waiting for the other hosts");
          return kExitSignalBase + *signal;
        }
      }
    }
    return std::nullopt;
  }

  int run_attempts() {
    for (int number = 0;; ++number) {
      NodeResult result = run_attempt(number, nullptr);
      if (!result.failure) {
        return result.exit_code;
      }
      add_failed(number, result.failure->cause);
      std::optional<int> end;
      if (!result.may_restart || number == options_.max_restarts) {
        end = result.exit_code;
      } else {
        end = control_.await_restart(
            number + 1, result.failure->cause.sentence(result.failure->ranks));
      }
      if (end) {
        return report(std::move(*result.failure), *end, number + 1);
      }
    }
  }

  /// The state that the result on all hosts needs after an attempt.
  struct AttemptEnd {
    std::string flight;
    std::vector<watch::RankView> views;
  };

  /// `end` may be null.
  NodeResult run_attempt(int number, AttemptEnd* end) {
    if (number > 0) {
      hold_port();
    }
    Attempt attempt(
        {.program = &program_,
         .options = &options_,
         .plan = &plan_,
         .logs = logs_ ? &*logs_ : nullptr,
         .number = number,
         .master_port = port_->port(),
         .time_limit = control_.time_limit(),
         .control_channel = control_.channel()},
        console_,
        control_.inbox());
    attempt.start();
    if (number == 0) {
      console_.say(plan_.threads.summary);
      if (logs_) {
        console_.say("the ranks' output goes to " + logs_->path());
      }
    }
    NodeResult result = attempt.run();
    control_.extend_time_limit(attempt.paused());
    if (end != nullptr) {
      *end = {attempt.flight_dump_path(), attempt.views()};
    }
    return result;
  }

  /// Reserves a port: the job's port once; any free port for each attempt, so that a late process
  /// of the last attempt cannot connect to the next one.
  void hold_port() {
    // With several hosts the listener uses the job's port, and the store another one.
    if (plan_.common.master_port == 0 || session_ != nullptr) {
      port_.emplace(PortReservation::any());
    } else if (!port_) {
      port_.emplace(PortReservation::of(plan_.common.master_port));
    }
  }

  void add_failed(int number, const RankFailure& cause) {
    if (failed_.size() == kMostAttemptsListed) {
      failed_.pop_front();
    }
    failed_.push_back({number, cause});
  }

  int report(FailureReport failure, int exit_code, int attempts) {
    failure.exit_code = exit_code;
    failure.attempts = attempts;
    failure.failed_attempts = {failed_.begin(), failed_.end()};
    if (on_failure_) {
      on_failure_(failure);
    } else {
      console_.report(options_.json ? json_report(failure) : text_report(failure));
    }
    return exit_code;
  }

  const Program& program_;
  const config::JobOptions& options_;
  JobPlan plan_;
  Console console_;
  JobControl control_;
  FailureSink on_failure_;          // Empty: stderr.
  NodeSession* session_ = nullptr;  // Null in a job of one host.
  std::optional<PidFile> pid_file_;
  std::optional<PortReservation> port_;
  std::optional<LogFolder> logs_;
  std::deque<FailedAttempt> failed_;
};

}  // namespace

double restart_delay_seconds(double backoff_seconds, int number) {
  const double doubled = std::ldexp(backoff_seconds, std::min(number - 1, 30));
  return std::min(doubled, std::max(backoff_seconds, kLongestDelaySeconds));
}

int run_planned_job(
    const Program& program,
    const config::JobOptions& options,
    const JobPlan& plan,
    const NodeContext& context,
    FailureSink on_failure) {
  open_standard_streams();
  return Job(program, options, plan, context, std::move(on_failure)).run();
}

int run_job(
    const Program& program, const config::JobOptions& options, const FailureSink& on_failure) {
  return run_planned_job(program, options, plan_job(options, own_environment()), {}, on_failure);
}

}  // namespace lockstep::launcher
