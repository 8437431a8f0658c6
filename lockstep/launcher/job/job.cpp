// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/attempt.h"
#include "lockstep/launcher/multi_host/control_channel.h"
#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/multi_host/rendezvous_listener.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/child.h"
#include "lockstep/launcher/process/pid_file.h"
#include "lockstep/launcher/process/port.h"
#include "lockstep/launcher/process/signals.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostAttemptsListed = 10;
constexpr double kLongestDelaySeconds = 30;

constexpr auto kLinger = std::chrono::seconds(2);

/// The job's secret in a job whose launchers a user starts by hand.
std::string token_of_environment() {
  const auto token = Environment::process().text(kTokenVariable);
  if (!token || !is_token(*token)) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "{} {}; the launchers of several hosts know each other by it: set it to the same 16 to "
            "128 letters and digits on all of them, like export {}={}",
            kTokenVariable,
            token ? "can be no token" : "is not set",
            kTokenVariable,
            random_token()));
  }
  ::unsetenv(kTokenVariable);  // No business of the ranks'.
  return *token;
}

/// The attempts of a job, one after another.
class Job {
 public:
  Job(const Program& program,
      const JobOptions& options,
      const JobPlan& plan,
      const NodePlace& place,
      FailureSink on_failure)
      : program_(program),
        options_(options),
        plan_(plan),
        console_(plan.local_size(), options.quiet),
        inbox_(options.signals),
        on_failure_(std::move(on_failure)) {
    if (options.timeout_seconds > 0) {
      time_limit_ = in_seconds(options.timeout_seconds);
    }
    meet(place);
    hold_port();
    if (session_ == nullptr) {
      open_logs(plan_.common.run_id);
    }
    pid_file_.emplace(options.pid_file);  // Last: it takes the place of another job's.
  }

  int run() {
    try {
      const int code = session_ == nullptr ? run_attempts() : run_attempts_together();
      write_all_output();
      return code;
    } catch (...) {
      write_all_output();  // What was said of the attempts before.
      throw;
    }
  }

 private:
  /// Makes what connects this launcher with others, if it is not alone.
  void meet(const NodePlace& place) {
    if (plan_.is_local() && place.orders < 0) {
      return;
    }
    control_channel_ = std::make_unique<ControlChannel>(place.orders);
    if (plan_.is_local()) {
      return;
    }
    control_channel_->set_session(NodeSession::make(
        control_channel_->reactor(),
        plan_,
        {.token = place.token.empty() ? token_of_environment() : place.token,
         .join_timeout_seconds = options_.join_timeout_seconds > 0 ? options_.join_timeout_seconds
                                                                   : kDefaultJoinTimeoutSeconds,
         .max_restarts = options_.max_restarts,
         .stall_timeout_seconds = stall_timeout_seconds(options_)},
        [this](const std::string& text) { console_.say(text); }));
    session_ = control_channel_->session();
  }

  void open_logs(const std::string& folder) {
    if (plan_.needs_files()) {
      logs_.emplace(options_.log_dir, folder);
    }
  }

  /// A signal to this process makes it return before its time, unless that is Ctrl-Z.
  void write_all_output() {
    std::optional<int> signal;
    do {
      console_.flush_all(inbox_.fd());
      signal = inbox_.next();
    } while (stop_if_asked(signal));
    if (signal) {
      ::raise(*signal);  // It takes effect when the inbox is gone.
    }
  }

  /// Whether `signal` was SIGTSTP, which stops this process until SIGCONT. There are no ranks here
  /// to be paused with it; other hosts may have some.
  bool stop_if_asked(const std::optional<int>& signal) {
    if (signal != SIGTSTP) {
      return false;
    }
    const Clock::time_point since = Clock::now();
    if (session_ != nullptr) {
      session_->tell_signal({.signal = SIGTSTP});
    }
    SignalInbox::stop_this_process();
    if (session_ != nullptr) {
      session_->tell_signal({.signal = SIGCONT});
    }
    put_off(Clock::now() - since);
    return true;
  }

  /// The job was paused for so long.
  void put_off(Clock::duration pause) {
    if (time_limit_) {
      *time_limit_ += pause;
    }
  }

  /// The next signal to this process, or order to it as if it were one. Stops at Ctrl-Z.
  std::optional<int> next_signal() {
    std::optional<int> signal;
    do {
      signal = inbox_.next();
    } while (stop_if_asked(signal));
    return signal || !control_channel_ ? signal : control_channel_->next_order();
  }

  /// An exit code, if the job ends before all launchers were there.
  std::optional<int> join() {
    std::optional<int> signal;
    const auto called_off = [&] {
      do {
        signal = next_signal();
      } while (signal == SIGTSTP || signal == SIGCONT);  // Orders: nothing runs yet.
      return signal || control_channel_->orders_ended();
    };
    if (session_->join(called_off)) {
      plan_.common.run_id = session_->run_id();
      // A file system that the hosts share must not mix their ranks.
      open_logs(fmt::format("{}/node_{}", plan_.common.run_id, plan_.here));
      return std::nullopt;
    }
    if (!signal) {
      return kExitFailure;  // Nobody is there to be told.
    }
    console_.say(signal_name(*signal) + " received before all launchers were there");
    return kExitSignalBase + *signal;
  }

  /// As run_attempts(), where all hosts do the same.
  int run_attempts_together() {
    if (const std::optional<int> end = join()) {
      return *end;
    }
    for (int number = 0;; ++number) {
      session_->begin_attempt();
      AttemptEnd end_here;
      session_->tell_result(run_attempt(number, &end_here));
      if (const std::optional<int> end = await_verdict()) {
        return *end;
      }
      Verdict verdict = *session_->verdict();
      if (verdict.failure) {
        verdict.failure->flight = end_here.flight;
        const std::vector<watch::RankView> others = session_->other_views();
        end_here.views.insert(end_here.views.end(), others.begin(), others.end());
        name_who_left(verdict.failure->cause, end_here.views);
        remember(number, verdict.failure->cause);
      }
      std::optional<int> end = verdict.exit_code;
      if (verdict.restart) {
        end = await_restart(number + 1, "the job ended because " + verdict.cause);
      }
      if (end) {
        return end_together(verdict, *end, number + 1);
      }
    }
  }

  int end_together(const Verdict& verdict, int exit_code, int attempts) {
    if (verdict.failure) {
      report(*verdict.failure, exit_code, attempts);
    } else if (!verdict.cause.empty()) {
      console_.say(fmt::format("the job ended because {}; exit code {}", verdict.cause, exit_code));
    }
    // What node 0 has said last must reach the others before it closes the connections.
    const Clock::time_point end = Clock::now() + kLinger;
    while (!session_->others_left() && Clock::now() < end) {
      control_channel_->reactor().wait(std::chrono::milliseconds(100));
      control_channel_->reactor().dispatch();
    }
    return exit_code;
  }

  /// Until the ranks of all hosts have ended. An exit code, if the user will not wait.
  std::optional<int> await_verdict() {
    constexpr auto kLongestWait = std::chrono::milliseconds(500);
    int signals = 0;
    while (!session_->verdict()) {
      control_channel_->reactor().wait(kLongestWait, inbox_.fd());
      control_channel_->reactor().dispatch();
      console_.flush();
      while (const std::optional<int> signal = next_signal()) {
        signals += *signal == SIGINT || *signal == SIGTERM ? 1 : 0;
        session_->tell_signal({.signal = *signal, .again = signals == 2});
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
      remember(number, result.failure->cause);
      std::optional<int> end;
      if (!result.may_restart || number == options_.max_restarts) {
        end = result.exit_code;
      } else {
        end = await_restart(number + 1, result.failure->cause.sentence(result.failure->ranks));
      }
      if (end) {
        return report(std::move(*result.failure), *end, number + 1);
      }
    }
  }

  /// What an attempt leaves to whoever judges all hosts.
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
         .time_limit = time_limit_,
         .control_channel = control_channel_.get()},
        console_,
        inbox_);
    attempt.start();
    if (number == 0) {
      console_.say(plan_.threads.summary);
      if (logs_) {
        console_.say("the ranks' output goes to " + logs_->path());
      }
    }
    NodeResult result = attempt.run();
    put_off(attempt.paused());
    if (end != nullptr) {
      *end = {attempt.flight(), attempt.views()};
    }
    return result;
  }

  /// A port of the job's choice is held for its whole life; any other anew for each attempt, so
  /// that no straggler of the last one meets the next.
  void hold_port() {
    // Of several hosts the job's port is the door's, and rank 0's store lies behind it.
    if (plan_.common.master_port == 0 || session_ != nullptr) {
      port_.emplace(PortReservation::any());
    } else if (!port_) {
      port_.emplace(PortReservation::of(plan_.common.master_port));
    }
  }

  void remember(int number, const RankFailure& cause) {
    if (failed_.size() == kMostAttemptsListed) {
      failed_.pop_front();
    }
    failed_.push_back({number, cause});
  }

  /// Waits for its time to come. An exit code, if the job ends instead.
  std::optional<int> await_restart(int restart, const std::string& why) {
    const double delay = restart_delay_seconds(options_.restart_backoff_seconds, restart);
    console_.say(
        fmt::format("{}; restart {} of {} in {:g} s", why, restart, options_.max_restarts, delay));
    const Clock::time_point restart_time = in_seconds(delay);
    for (;;) {
      const Clock::time_point now = Clock::now();
      if (time_limit_ && now >= *time_limit_) {
        console_.say(fmt::format(
            "the job has run for {:g} s, its time limit; it is not restarted",
            options_.timeout_seconds));
        return kExitTimedOut;
      }
      if (now >= restart_time) {
        return std::nullopt;
      }
      if (const std::optional<int> end =
              wait_until(time_limit_ ? std::min(*time_limit_, restart_time) : restart_time)) {
        return end;
      }
    }
  }

  /// Until then, or a signal, or room for our output.
  std::optional<int> wait_until(Clock::time_point then) {
    std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
    console_.await_room(items);
    if (control_channel_) {
      items.push_back({.fd = control_channel_->reactor().fd(), .events = POLLIN, .revents = 0});
    }
    const std::chrono::duration<double, std::milli> left = then - Clock::now();
    ::poll(items.data(), items.size(), static_cast<int>(std::ceil(std::max(left.count(), 0.0))));
    if (control_channel_) {
      control_channel_->reactor().dispatch();
      if (control_channel_->orders_ended()) {
        return kExitFailure;  // Nobody is there to be told.
      }
    }
    if (const int error = console_.flush(); error != 0) {
      return error == EPIPE ? kExitSignalBase + SIGPIPE : kExitFailure;
    }
    while (const std::optional<int> signal = next_signal()) {
      if (session_ != nullptr) {
        session_->tell_signal({.signal = *signal});
      }
      if (const std::optional<int> end = end_by(*signal)) {
        return end;
      }
    }
    while (session_ != nullptr) {
      const std::optional<NodeSignal> told = session_->next_signal();
      if (!told) {
        break;
      }
      if (const std::optional<int> end = end_by(told->signal)) {
        return end;
      }
    }
    return std::nullopt;
  }

  /// A signal between two attempts. An exit code, if the job ends of it.
  std::optional<int> end_by(int signal) {
    if (signal == SIGTSTP || signal == SIGCONT) {
      return std::nullopt;  // To another launcher; there is no rank here to pause.
    }
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      console_.say(signal_name(signal) + " received; there is no rank to pass it on to");
      return std::nullopt;
    }
    console_.say(signal_name(signal) + " received; the job is not restarted");
    return kExitSignalBase + signal;
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
  const JobOptions& options_;
  JobPlan plan_;
  Console console_;
  SignalInbox inbox_;
  FailureSink on_failure_;                           // Empty: stderr.
  std::unique_ptr<ControlChannel> control_channel_;  // Null: this host is all there is.
  NodeSession* session_ = nullptr;                   // Its.
  std::optional<PidFile> pid_file_;
  std::optional<PortReservation> port_;
  std::optional<LogFolder> logs_;
  std::optional<Clock::time_point> time_limit_;
  std::deque<FailedAttempt> failed_;
};

}  // namespace

double restart_delay_seconds(double backoff_seconds, int number) {
  const double doubled = std::ldexp(backoff_seconds, std::min(number - 1, 30));
  return std::min(doubled, std::max(backoff_seconds, kLongestDelaySeconds));
}

int run_planned_job(
    const Program& program,
    const JobOptions& options,
    const JobPlan& plan,
    const NodePlace& place,
    FailureSink on_failure) {
  open_standard_streams();
  return Job(program, options, plan, place, std::move(on_failure)).run();
}

int run_job(const Program& program, const JobOptions& options, const FailureSink& on_failure) {
  return run_planned_job(program, options, plan_job(options, own_environment()), {}, on_failure);
}

}  // namespace lockstep::launcher
