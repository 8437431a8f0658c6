// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/attempt.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr auto kDuplicateSignalWindow = std::chrono::seconds(2);

bool ends_job(int signal) {
  return signal != SIGUSR1 && signal != SIGUSR2;
}

/// Ranks that lost a peer end with an error of Lockstep, or abort with an uncaught exception.
bool may_have_lost_peer(const ExitStatus& exit_status) {
  return exit_status.by_signal ? exit_status.value == SIGABRT : exit_status.value == kExitFailure;
}

}  // namespace

Attempt::Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox)
    : spec_(spec),
      console_(console),
      inbox_(inbox),
      ranks_(
          console.out(),
          console.err(),
          spec.options->rank_prefix,
          spec.plan->hosts[spec.plan->here].first_rank),
      state_machine_(
          ranks_,
          spec.options->grace_seconds,
          [this](const std::string& text) { console_.say(text); },
          [this](size_t local_rank) { return flights_.last_operation_failed(local_rank); },
          [this] { return flights_.is_saving(ranks_); }),
      flights_(
          spec.plan->local_size(),
          spec.plan->hosts[spec.plan->here].first_rank,
          stall_timeout_seconds(*spec.options)),
      diagnosis_(spec_, console_, ranks_, flights_) {}

NodeResult Attempt::run() {
  while (!state_machine_.is_over()) {
    wait();
  }
  ranks_.close();
  watchdog_.dismiss();
  watch_output();
  NodeResult result{.exit_code = state_machine_.exit_code()};
  if (const auto cause = state_machine_.cause()) {
    if (diagnosis_.dump_path().empty()) {
      diagnosis_.write_dump(fmt::format("rank {} {}", cause->rank, cause->description()));
    }
    result.failure = diagnosis_.report(state_machine_, result.exit_code);
    result.may_restart = state_machine_.has_failed() && may_restart_after(result.exit_code);
  } else {
    state_machine_.report_end();
  }
  return result;
}

int Attempt::poll_timeout_ms() const {
  constexpr auto kLongestWait = std::chrono::seconds(1'000'000);
  Clock::time_point next = Clock::now() + kLongestWait;
  const auto consider = [&next](const std::optional<Clock::time_point>& due) {
    next = due ? std::min(next, *due) : next;
  };
  if (!paused_since_) {
    consider(state_machine_.deadline());
    consider(spec_.time_limit);
    consider(flights_.deadline());
  }
  if (spec_.control_channel != nullptr) {
    consider(spec_.control_channel->reactor().deadline());
  }
  constexpr double kLongestPoll = 1e9;
  const std::chrono::duration<double, std::milli> left = next - Clock::now();
  return static_cast<int>(std::ceil(std::clamp(left.count(), 0.0, kLongestPoll)));
}

/// Waits for an event or deadline, and handles it.
void Attempt::wait() {
  std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
  if (spec_.control_channel != nullptr) {
    items.push_back({.fd = spec_.control_channel->reactor().fd(), .events = POLLIN, .revents = 0});
  }
  console_.await_room(items);
  ranks_.await(items);
  ::poll(items.data(), items.size(), poll_timeout_ms());
  ranks_.pump(items);
  if (state_machine_.on_exits()) {
    on_rank_exits();
  }
  while (const std::optional<int> signal = inbox_.next()) {
    if (*signal == SIGTSTP) {
      on_terminal_stop();
    } else {
      on_local_signal(*signal);
    }
  }
  check_control_channel();
  if (paused_since_ && !state_machine_.is_running()) {
    continue_ranks();  // Stopped ranks cannot end.
  }
  if (!paused_since_) {
    watch_flights();
  }
  watch_output();
  if (!paused_since_) {
    check_deadlines();
  }
}

void Attempt::check_deadlines() {
  const auto now = Clock::now();
  if (state_machine_.deadline() && now >= *state_machine_.deadline()) {
    state_machine_.on_deadline();
  }
  if (spec_.time_limit && now >= *spec_.time_limit) {
    spec_.time_limit.reset();
    state_machine_.on_timeout(spec_.options->timeout_seconds);
    if (spec_.session() != nullptr) {
      spec_.session()->report_timeout(spec_.options->timeout_seconds);
    }
  }
}

bool Attempt::is_duplicate(int signal) const {
  return received_signal_ && received_signal_->signal == signal &&
         Clock::now() - received_signal_->time < kDuplicateSignalWindow;
}

/// Handles a signal to this launcher from its user, or from the process that started it.
void Attempt::on_local_signal(int signal) {
  if (signal == SIGTSTP || signal == SIGCONT) {  // A command of the starter.
    change_pause(signal);
    if (spec_.session() != nullptr) {
      spec_.session()->report_signal({.signal = signal});
    }
    return;
  }
  // mpirun, srun and the launchers forward each signal to every launcher.
  if (is_duplicate(signal) && !received_signal_->own) {
    received_signal_->own = true;
    return;
  }
  const bool is_repeated = end_requested_ && ends_job(signal);
  received_signal_ = {.signal = signal, .time = Clock::now(), .own = true};
  on_signal(signal);
  if (spec_.session() != nullptr) {
    spec_.session()->report_signal({.signal = signal, .is_repeated = is_repeated});
  }
}

void Attempt::on_peer_signals() {
  while (const std::optional<NodeSignal> received = spec_.session()->next_signal()) {
    if (received->signal == SIGTSTP || received->signal == SIGCONT) {
      change_pause(received->signal);
    } else if (received->is_repeated || !is_duplicate(received->signal)) {
      received_signal_ = {.signal = received->signal, .time = Clock::now(), .own = false};
      on_signal(received->signal);
    }
  }
}

void Attempt::on_signal(int signal) {
  end_requested_ = end_requested_ || ends_job(signal);
  if (ends_job(signal)) {
    continue_ranks();
  }
  state_machine_.on_signal(signal);
}

void Attempt::on_terminal_stop() {
  const auto since = Clock::now();
  pause_ranks();
  if (spec_.session() != nullptr) {
    spec_.session()->report_signal({.signal = SIGTSTP});
  }
  if (paused_since_) {
    console_.say(fmt::format(
        "SIGTSTP received; the ranks are paused{} until this launcher continues (fg, or SIGCONT)",
        spec_.session() != nullptr ? " on all hosts" : ""));
  }
  console_.flush();
  SignalInbox::stop_this_process();
  continue_ranks();
  if (spec_.session() != nullptr) {
    spec_.session()->report_signal({.signal = SIGCONT});
  }
  const std::chrono::duration<double> paused = Clock::now() - since;
  console_.say(fmt::format("the job continues after {:.1f} s", paused.count()));
}

void Attempt::change_pause(int signal) {
  const bool was_paused = paused_since_.has_value();
  signal == SIGTSTP ? pause_ranks() : continue_ranks();
  if (was_paused != paused_since_.has_value() && !spec_.control_channel->has_starter()) {
    // A starter has reported it already.
    console_.say(
        was_paused ? "the job continues"
                   : "SIGTSTP received by another launcher; the job is paused");
  }
}

/// Sends SIGSTOP, since a program may handle SIGTSTP. A job that is ending is not paused.
void Attempt::pause_ranks() {
  if (!paused_since_ && state_machine_.is_running()) {
    ranks_.send(SIGSTOP);
    paused_since_ = Clock::now();
  }
}

void Attempt::continue_ranks() {
  if (!paused_since_) {
    return;
  }
  const Clock::duration pause = Clock::now() - *paused_since_;
  paused_since_.reset();
  paused_ += pause;
  // Otherwise the deadline belongs to the event that ended the pause.
  if (state_machine_.is_running()) {
    state_machine_.postpone_deadline(pause);
  }
  if (spec_.time_limit) {
    *spec_.time_limit += pause;
  }
  flights_.restart_clocks();
  ranks_.send(SIGCONT);
}

void Attempt::check_control_channel() {
  if (spec_.control_channel == nullptr) {
    return;
  }
  ControlChannel& control_channel = *spec_.control_channel;
  control_channel.reactor().dispatch();
  while (const std::optional<int> signal = control_channel.next_command()) {
    on_local_signal(*signal);
  }
  if (spec_.session() != nullptr) {
    on_peer_signals();
  }
  if (const auto why = control_channel.stop_reason(); why && !ended_elsewhere_) {
    ended_elsewhere_ = true;
    if (diagnosis_.dump_path().empty() && !end_requested_) {
      diagnosis_.write_dump(*why);  // Before the ranks are stopped.
    }
    state_machine_.on_end_elsewhere();
  }
  report_failure_to_session();
}

/// Reports the failure at once, not when all ranks here have ended: other hosts wait for them.
void Attempt::report_failure_to_session() {
  if (spec_.session() != nullptr && state_machine_.has_failed() && !failure_reported_) {
    failure_reported_ = true;
    const int code = state_machine_.cause()->exit_code();
    spec_.session()->report_failure(
        {.exit_code = code,
         .failure = diagnosis_.report(state_machine_, code),
         .may_restart = may_restart_after(code)});
  }
}

void Attempt::on_rank_exits() {
  const bool first_failure = state_machine_.has_failed() && !diagnosed_;
  diagnosed_ = diagnosed_ || first_failure;
  if (!first_failure && spec_.session() == nullptr) {
    return;
  }
  // Node 0 must receive these views before failures that follow from this one.
  const std::vector<watch::RankView> views = diagnosis_.all_views();
  if (!first_failure || !may_have_lost_peer(state_machine_.cause()->exit_status)) {
    return;
  }
  const auto absent = watch::find_stopped_before_join(
      views, spec_.plan->world_size(), state_machine_.cause()->rank);
  if (absent) {
    RankFailure stopped = diagnosis_.failure_of(absent->rank, absent->what, views);
    stopped.stalled = true;
    state_machine_.add_stall(std::move(stopped));
  }
}

void Attempt::watch_flights() {
  if (Clock::now() < flights_.deadline()) {
    return;
  }
  const std::vector<watch::RankView> views = diagnosis_.all_views();
  if (!state_machine_.is_running()) {
    return;
  }
  if (spec_.plan->here != 0) {
    // Node 0 sees all ranks and decides, unless its own have ended.
    if (const auto stall = flights_.stopped(views)) {
      end_for_stall(*stall, views);
    }
    return;
  }
  if (end_if_absent(views)) {
    return;
  }
  if (const auto slow = flights_.slow_rank(views)) {
    console_.say(slow->what);
  }
  if (const auto stall = flights_.stall(views)) {
    end_for_stall(*stall, views);
  }
}

void Attempt::end_for_stall(const watch::Stall& stall, const std::vector<watch::RankView>& views) {
  RankFailure failure = diagnosis_.failure_of(stall.ranks.front(), stall.what, views);
  failure.stalled = true;
  diagnosis_.write_dump(stall.what);
  state_machine_.on_stall(std::move(failure));
}

bool Attempt::end_if_absent(const std::vector<watch::RankView>& views) {
  const auto absent = watch::find_ended_before_join(views, spec_.plan->world_size());
  if (absent) {
    state_machine_.on_stall(diagnosis_.failure_of(absent->rank, absent->what, views));
  }
  return absent.has_value();
}

void Attempt::watch_output() {
  if (const int error = console_.flush(); error != 0) {
    state_machine_.on_output_lost(error);
  }
}

}  // namespace lockstep::launcher
