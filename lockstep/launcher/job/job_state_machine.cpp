// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job_state_machine.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/config/settings/job_options.h"

namespace lockstep::launcher {
namespace {

constexpr double kGraceSeconds = 0.1;
/// A rank that leaves after an error may need this long to end, on a busy machine.
constexpr double kLostPeerGraceSeconds = 2;
/// After a failure nothing needs to be saved; handlers may remove temporary files.
constexpr double kFailureGraceSeconds = 2;
constexpr double kSavePollSeconds = 0.2;

bool ended_well(const ExitStatus& exit_status) {
  return exit_status.is_success() ||
         (!exit_status.by_signal && exit_status.value == kExitPreempted);
}

/// Returns whether the signal killed it, or it ended with a shell's code for that signal.
bool died_of(const ExitStatus& exit_status, int signal) {
  return exit_status.exit_code() == kExitSignalBase + signal;
}

}  // namespace

JobStateMachine::JobStateMachine(
    RankSet& ranks,
    double grace_seconds,
    ShowMessage show_message,
    LostPeer lost_peer,
    IsSaving is_saving)
    : ranks_(ranks),
      grace_seconds_(grace_seconds),
      show_message_(std::move(show_message)),
      lost_peer_(std::move(lost_peer)),
      is_saving_(std::move(is_saving)) {}

void JobStateMachine::on_signal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    if (phase_ == Phase::kRunning) {
      show_message_(fmt::format("{} received and forwarded", signal_name(signal)));
      forwarded_.insert(signal);
      ranks_.send(signal);
    }
    return;
  }
  // A signal to a whole process group may reach the ranks before this launcher.
  const bool ranks_were_first =
      phase_ == Phase::kGracePeriod && reason_ == Reason::kFailure &&
      std::all_of(failures_.begin(), failures_.end(), [signal](const RankFailure& failure) {
        return died_of(failure.exit_status, signal);
      });
  if (phase_ == Phase::kRunning || ranks_were_first) {
    failures_.clear();
    reason_ = Reason::kSignal;
    signal_ = signal;
    show_message_(fmt::format(
        "{} received and forwarded; the ranks have {:g} s to finish",
        signal_name(signal),
        grace_seconds_));
    stop(signal, grace_seconds_);
  } else if (phase_ != Phase::kKilling && (signal == SIGINT || signal == SIGTERM)) {
    show_message_(fmt::format("{} received; killing the ranks now", signal_name(signal)));
    kill();
  } else if (phase_ == Phase::kStopping) {
    ranks_.send(signal);
  }
}

bool JobStateMachine::on_exits() {
  ++exit_order_;
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const std::vector<int> ended = ranks_.collect_exits(seconds);
  for (const int rank : ended) {
    const RankProcess& process = ranks_.all()[static_cast<size_t>(rank)];
    if (!process.stop_sent && !process.exit_status->is_success()) {
      on_failure(
          {.rank = ranks_.first_rank() + rank,
           .pid = process.pid,
           .exit_status = *process.exit_status,
           .seconds = seconds,
           .order = exit_order_,
           .lost_peer = lost_peer_ && lost_peer_(static_cast<size_t>(rank))});
    }
  }
  return !ended.empty();
}

void JobStateMachine::on_failure(const RankFailure& failure) {
  if (ended_well(failure.exit_status)) {
    if (reason_ == Reason::kNone) {
      reason_ = Reason::kPreempted;
      deadline_ = in_seconds(grace_seconds_);
    }
  } else if (
      is_undecided() && failure.exit_status.by_signal &&
      forwarded_.count(failure.exit_status.value) != 0) {
    reason_ = Reason::kSignal;
    signal_ = failure.exit_status.value;
    begin_grace_period();
  } else if (is_undecided()) {
    reason_ = Reason::kFailure;
    failures_.push_back(failure);
    begin_grace_period();
  } else if (reason_ == Reason::kFailure) {
    const bool was_lost_peer = only_lost_peers();
    failures_.push_back(failure);
    if (phase_ == Phase::kGracePeriod && was_lost_peer && !failure.lost_peer) {
      begin_grace_period();  // The cause is known now.
    }
  }
}

void JobStateMachine::on_timeout(double seconds) {
  if (!is_running()) {
    return;  // The job is ending already.
  }
  reason_ = Reason::kTimeout;
  signal_ = SIGTERM;
  show_message_(fmt::format(
      "the job has run for {:g} s, its time limit; SIGTERM sent, the ranks have {:g} s to finish",
      seconds,
      grace_seconds_));
  stop(SIGTERM, grace_seconds_);
}

void JobStateMachine::on_stall(RankFailure stall) {
  if (!is_running()) {
    return;
  }
  reason_ = Reason::kFailure;
  add_stall(std::move(stall));
  stop(SIGTERM, kFailureGraceSeconds);
}

void JobStateMachine::add_stall(RankFailure stall) {
  stall.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  stall.order = exit_order_;
  failures_.push_back(std::move(stall));
}

void JobStateMachine::postpone_deadline(Clock::duration pause) {
  if (deadline_) {
    *deadline_ += pause;
  }
}

void JobStateMachine::on_end_elsewhere() {
  ended_elsewhere_ = true;
  if (phase_ == Phase::kStopping) {
    // The ranks cannot finish their work without the other hosts.
    const Clock::time_point soon = in_seconds(kFailureGraceSeconds);
    deadline_ = deadline_ ? std::min(*deadline_, soon) : soon;
    return;
  }
  if (phase_ == Phase::kKilling) {
    return;
  }
  // A failure here at the same time stays a failure, so that node 0 receives it.
  reason_ = is_undecided() ? Reason::kElsewhere : reason_;
  stop(SIGTERM, kFailureGraceSeconds);
}

void JobStateMachine::on_output_lost(int error) {
  if (output_error_ != 0) {
    return;
  }
  output_error_ = error;
  if (is_undecided()) {
    reason_ = Reason::kOutputLost;
    if (error != EPIPE) {
      show_message_(fmt::format(
          "the ranks' output cannot be written: {}; the job ends", std::strerror(error)));
    }
    if (phase_ == Phase::kRunning) {
      stop(SIGTERM, kFailureGraceSeconds);
    }
  }
}

void JobStateMachine::on_deadline() {
  deadline_.reset();
  if (phase_ == Phase::kRunning || phase_ == Phase::kGracePeriod) {
    stop(SIGTERM, kFailureGraceSeconds);
  } else if (phase_ == Phase::kStopping) {
    const bool by_request = reason_ == Reason::kSignal || reason_ == Reason::kTimeout;
    const bool saving = by_request && !ended_elsewhere_ && is_saving_ && is_saving_();
    if (saving && !waits_for_save_) {
      show_message_(
          "a rank is still saving a checkpoint; waiting for it; a second SIGTERM or SIGINT kills "
          "it");
    }
    if (saving || (waits_for_save_ && !ended_elsewhere_)) {
      // A rank may handle the signal only after this save, and save once more because of it.
      deadline_ = in_seconds(saving ? kSavePollSeconds : grace_seconds_);
      waits_for_save_ = saving;
      return;
    }
    if (by_request) {
      show_message_(fmt::format(
          "some processes have not ended in time after {}; killing them", end_reason()));
    }
    kill();
  }
}

bool JobStateMachine::is_over() const {
  // A wrapper ends at the signal before its program, which may still be saving.
  return phase_ == Phase::kStopping ? ranks_.outputs_closed() : ranks_.ended();
}

void JobStateMachine::begin_grace_period() {
  phase_ = Phase::kGracePeriod;
  deadline_ = in_seconds(only_lost_peers() ? kLostPeerGraceSeconds : kGraceSeconds);
}

bool JobStateMachine::only_lost_peers() const {
  return !failures_.empty() &&
         std::all_of(failures_.begin(), failures_.end(), [](const RankFailure& failure) {
           return failure.lost_peer;
         });
}

void JobStateMachine::stop(int signal, double grace_seconds) {
  on_exits();  // Failures up to here are not caused by the signal.
  phase_ = Phase::kStopping;
  deadline_ = in_seconds(grace_seconds);
  stopped_ -= count_living_failed();  // They are not among the stopped ones.
  stopped_ += ranks_.stop(signal);
}

int JobStateMachine::count_living_failed() const {
  return static_cast<int>(
      std::count_if(failures_.begin(), failures_.end(), [this](const RankFailure& failure) {
        const auto local_rank = static_cast<size_t>(failure.rank - ranks_.first_rank());
        return local_rank < ranks_.all().size() && !ranks_.all()[local_rank].exit_status;
      }));
}

void JobStateMachine::kill() {
  if (phase_ != Phase::kStopping) {
    stop(SIGKILL, 0);
  }
  phase_ = Phase::kKilling;
  deadline_.reset();
  ranks_.send(SIGKILL);
}

int JobStateMachine::exit_code() const {
  if (const auto failure = cause()) {
    return failure->exit_code();
  }
  if (reason_ == Reason::kTimeout) {
    return kExitTimedOut;
  }
  if (output_error_ != 0 && reason_ != Reason::kSignal) {
    return output_error_ == EPIPE ? kExitSignalBase + SIGPIPE : kExitFailure;
  }
  if (reason_ == Reason::kElsewhere) {
    return kExitFailure;
  }
  int code = kExitOk;
  for (const RankProcess& process : ranks_.all()) {
    if (!ended_well(*process.exit_status)) {
      return kExitSignalBase + signal_;
    }
    code = std::max(code, process.exit_status->value);
  }
  return code;
}

std::optional<RankFailure> JobStateMachine::cause() const {
  if (reason_ == Reason::kFailure) {
    return root_cause(failures_);
  }
  return reason_ == Reason::kPreempted ? straggler() : std::nullopt;
}

std::vector<RankFailure> JobStateMachine::also_failed() const {
  std::vector<RankFailure> others;
  if (reason_ == Reason::kFailure) {
    const int rank = root_cause(failures_).rank;
    std::copy_if(
        failures_.begin(),
        failures_.end(),
        std::back_inserter(others),
        [rank](const RankFailure& failure) { return failure.rank != rank; });
  }
  return others;
}

std::optional<RankFailure> JobStateMachine::straggler() const {
  for (size_t rank = 0; rank < ranks_.all().size(); ++rank) {
    const RankProcess& process = ranks_.all()[rank];
    if (!ended_well(*process.exit_status)) {
      return RankFailure{
          .rank = ranks_.first_rank() + static_cast<int>(rank),
          .pid = process.pid,
          .exit_status = *process.exit_status,
          .diagnostic = fmt::format(
              "it did not end within {:g} s after another rank had saved and left (exit code {})",
              grace_seconds_,
              static_cast<int>(kExitPreempted)),
          .seconds = process.ended_seconds};
    }
  }
  return std::nullopt;
}

std::string JobStateMachine::end_reason() const {
  return reason_ == Reason::kTimeout ? "its time limit" : signal_name(signal_);
}

void JobStateMachine::report_end() const {
  if (reason_ != Reason::kSignal && reason_ != Reason::kTimeout) {
    return;
  }
  constexpr int kMostRanks = 8;
  std::string text = fmt::format("the job ended after {}; exit code {}", end_reason(), exit_code());
  int named = 0;
  for (size_t rank = 0; rank < ranks_.all().size() && named < kMostRanks; ++rank) {
    const ExitStatus& exit_status = *ranks_.all()[rank].exit_status;
    if (!ended_well(exit_status) && !died_of(exit_status, signal_)) {
      text += fmt::format(
          "\n  rank {} {}",
          static_cast<size_t>(ranks_.first_rank()) + rank,
          exit_status.description());
      ++named;
    }
  }
  show_message_(text);
}

}  // namespace lockstep::launcher
