// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/exit_status.h"

namespace lockstep::launcher {

/// Decides when a running job ends, and with which exit code: the rules of run_job().
///
///   running --failure--> grace period --0.1 s--> stopping --2 s--> killing
///      \-------------a signal to stop-------------^    (grace_seconds)
///
/// For 0.1 s after the first failure (grace period) no signal is sent, so that the root cause is
/// not hidden by ranks that fail because they lost it: both exits arrive in any order. The period
/// is 2 s while each failed rank of this host had lost another one, whose exit may be due. After a
/// rank ends with 75 (state saved), the others have grace_seconds to do the same. No rank is killed
/// at the time limit while it still saves, unless no restart follows. Events arrive through the on_
/// functions; each acts at once on the ranks.
class JobStateMachine {
 public:
  using ShowMessage = std::function<void(const std::string& text)>;
  /// Returns whether an ended rank had lost another rank before.
  using LostPeer = std::function<bool(size_t local_rank)>;
  /// Returns whether a rank saves a state that would be lost if it were killed.
  using IsSaving = std::function<bool()>;

  /// `ranks` must outlive this; `show_message` gets each message for the user, one or more lines.
  JobStateMachine(
      RankSet& ranks,
      double grace_seconds,
      ShowMessage show_message,
      LostPeer lost_peer = {},
      IsSaving is_saving = {});

  /// Handles a signal to the launcher: ends the job, or forwards the signal.
  void on_signal(int signal);
  /// Checks which ranks have ended; call it after any event. Returns whether one has.
  bool on_exits();
  /// Ends the job at its time limit of `seconds`.
  void on_timeout(double seconds);
  /// Ends the job for a rank that keeps the others from continuing, as `stall.diagnostic`
  /// describes. Its process runs, or has ended with 0.
  void on_stall(RankFailure stall);
  /// Reports `stall` as the root cause, instead of the failure that it caused.
  void add_stall(RankFailure stall);
  /// Moves deadlines by the duration of a pause.
  void postpone_deadline(Clock::duration pause);
  /// Ends the ranks here because the job has ended on another host, which reports why, or because
  /// the starter has ended. Call it once.
  void on_end_elsewhere();
  /// Ends the job because the launcher's output cannot be written; `error` is the errno.
  void on_output_lost(int error);
  /// Returns the time for on_deadline(), if no other event occurs.
  std::optional<Clock::time_point> deadline() const { return deadline_; }
  /// Starts the next phase of ending the job.
  void on_deadline();

  /// Returns whether all processes of the job have ended.
  bool is_over() const;
  /// Returns whether the job is running and nothing has begun to end it.
  bool is_running() const { return phase_ == Phase::kRunning && is_undecided(); }
  /// Returns whether a failed rank ended the job, without an earlier request to stop.
  bool has_failed() const { return reason_ == Reason::kFailure; }

  /// Returns the exit code of the job; call it after RankSet::close().
  int exit_code() const;
  /// Returns the failure that ended the job. Call it if has_failed(), or after RankSet::close().
  std::optional<RankFailure> cause() const;
  /// Returns the ranks that failed on their own at the same time.
  std::vector<RankFailure> also_failed() const;
  /// Returns the number of ranks that were then stopped.
  int stopped() const { return stopped_; }
  /// Reports how the ranks reacted to the signal or time limit that ended the job.
  void report_end() const;

 private:
  enum class Phase { kRunning, kGracePeriod, kStopping, kKilling };
  enum class Reason { kNone, kPreempted, kFailure, kSignal, kTimeout, kOutputLost, kElsewhere };

  void on_failure(const RankFailure& failure);
  /// Starts the time in which the failures of one cause are collected.
  void begin_grace_period();
  /// Returns whether each failed rank, of at least one, had lost another rank before.
  bool only_lost_peers() const;
  void stop(int signal, double grace_seconds);
  /// Returns the number of failed ranks of this host whose processes live.
  int count_living_failed() const;
  void kill();
  bool is_undecided() const { return reason_ == Reason::kNone || reason_ == Reason::kPreempted; }
  /// Returns the rank that did not end in time after another had saved its state.
  std::optional<RankFailure> straggler() const;
  /// Formats "SIGTERM", "its time limit".
  std::string end_reason() const;

  RankSet& ranks_;
  double grace_seconds_;
  ShowMessage show_message_;
  LostPeer lost_peer_;  // Empty: unknown.
  IsSaving is_saving_;  // Empty: no rank saves.
  bool waits_for_save_ = false;
  bool ended_elsewhere_ = false;  // on_end_elsewhere() was called.
  Clock::time_point started_ = Clock::now();
  Phase phase_ = Phase::kRunning;
  Reason reason_ = Reason::kNone;  // Why the job ends other than by exit status 0 of all ranks.
  std::optional<Clock::time_point> deadline_;
  std::vector<RankFailure> failures_;
  std::set<int> forwarded_;
  int signal_ = 0;        // [reason_ == kSignal or kTimeout]
  int output_error_ = 0;  // errno of the write that failed.
  int stopped_ = 0;
  int exit_order_ = 0;
};

}  // namespace lockstep::launcher
