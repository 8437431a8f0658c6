// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job_control.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <poll.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/multi_host/rendezvous_listener.h"

namespace lockstep::launcher {
namespace {

/// Returns the secret of a job whose launchers the user starts by hand.
std::string token_of_environment() {
  const auto token = Environment::process().text(kTokenVariable);
  if (!token || !is_token(*token)) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "{} {}; it identifies the launchers of a job on several hosts (--nnodes): set the "
            "same 16 to 128 letters and digits on all of them, like export {}={}",
            kTokenVariable,
            token ? "is not a valid token" : "is not set",
            kTokenVariable,
            random_token()));
  }
  ::unsetenv(kTokenVariable);  // The ranks must not see it.
  return *token;
}

}  // namespace

JobControl::JobControl(const config::JobOptions& options, Console& console)
    : options_(options), console_(console), inbox_(options.signals) {
  if (options.timeout_seconds > 0) {
    time_limit_ = in_seconds(options.timeout_seconds);
  }
}

void JobControl::connect(const JobPlan& plan, const NodeContext& context) {
  if (plan.is_local() && context.command_fd < 0) {
    return;
  }
  channel_ = std::make_unique<ControlChannel>(context.command_fd);
  if (plan.is_local()) {
    return;
  }
  channel_->set_session(NodeSession::make(
      channel_->reactor(),
      plan,
      {.token = context.token.empty() ? token_of_environment() : context.token,
       .join_timeout_seconds = options_.join_timeout_seconds > 0 ? options_.join_timeout_seconds
                                                                 : kDefaultJoinTimeoutSeconds,
       .max_restarts = options_.max_restarts,
       .stall_timeout_seconds = stall_timeout_seconds(options_)},
      [this](const std::string& text) { console_.say(text); }));
}

void JobControl::extend_time_limit(Clock::duration pause) {
  if (time_limit_) {
    *time_limit_ += pause;
  }
}

void JobControl::write_all_output() {
  std::optional<int> signal;
  do {
    console_.flush_all(inbox_.fd());
    signal = inbox_.next();
  } while (stop_if_requested(signal));
  if (signal) {
    ::raise(*signal);  // It takes effect when the inbox is destroyed.
  }
}

/// Stops this process until SIGCONT if `signal` is SIGTSTP, and returns whether it was. No rank of
/// this host runs now; other hosts may have some, which are paused.
bool JobControl::stop_if_requested(const std::optional<int>& signal) {
  if (signal != SIGTSTP) {
    return false;
  }
  const Clock::time_point since = Clock::now();
  if (session() != nullptr) {
    session()->report_signal({.signal = SIGTSTP});
  }
  SignalInbox::stop_this_process();
  if (session() != nullptr) {
    session()->report_signal({.signal = SIGCONT});
  }
  extend_time_limit(Clock::now() - since);
  return true;
}

std::optional<int> JobControl::next_signal() {
  std::optional<int> signal;
  do {
    signal = inbox_.next();
  } while (stop_if_requested(signal));
  return signal || !channel_ ? signal : channel_->next_command();
}

std::optional<int> JobControl::await_restart(int restart, const std::string& why) {
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

/// Waits until `then`, a signal, or room for output. Returns an exit code if the job ends.
std::optional<int> JobControl::wait_until(Clock::time_point then) {
  std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
  console_.await_room(items);
  if (channel_) {
    items.push_back({.fd = channel_->reactor().fd(), .events = POLLIN, .revents = 0});
  }
  const std::chrono::duration<double, std::milli> left = then - Clock::now();
  ::poll(items.data(), items.size(), static_cast<int>(std::ceil(std::max(left.count(), 0.0))));
  if (channel_) {
    channel_->reactor().dispatch();
    if (channel_->commands_ended()) {
      return kExitFailure;  // No message: its reader has gone.
    }
  }
  if (const int error = console_.flush(); error != 0) {
    return error == EPIPE ? kExitSignalBase + SIGPIPE : kExitFailure;
  }
  while (const std::optional<int> signal = next_signal()) {
    if (session() != nullptr) {
      session()->report_signal({.signal = *signal});
    }
    if (const std::optional<int> end = exit_code_of(*signal)) {
      return end;
    }
  }
  while (session() != nullptr) {
    const std::optional<NodeSignal> received = session()->next_signal();
    if (!received) {
      break;
    }
    if (const std::optional<int> end = exit_code_of(received->signal)) {
      return end;
    }
  }
  return std::nullopt;
}

/// Handles a signal between two attempts. Returns an exit code if it ends the job.
std::optional<int> JobControl::exit_code_of(int signal) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    return std::nullopt;  // For another launcher; there is no rank here to pause.
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    console_.say(signal_name(signal) + " received and not forwarded: no rank is running");
    return std::nullopt;
  }
  console_.say(signal_name(signal) + " received; the job is not restarted");
  return kExitSignalBase + signal;
}

}  // namespace lockstep::launcher
