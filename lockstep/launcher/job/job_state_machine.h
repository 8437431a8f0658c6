// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/exit_status.h"
#include "lockstep/launcher/job/rank_set.h"

namespace lockstep::launcher {

/// Decides what becomes of a running job, and with which exit code it ends: the rules of run_job().
///
///   running --failure--> settling --0.1 s--> stopping --2 s--> killing
///      \-----------a signal to stop-----------^    (grace_seconds)
///
/// While settling nobody is told anything, so that what falls, falls by itself: the death of a rank
/// and that of the peers it takes along arrive in any order. A rank that ends with 75 has saved and
/// left, and the others have grace_seconds to do so, too. Nobody is killed for the time while a
/// rank still saves, unless the job goes on nowhere else. Events come in by the on_ functions; each
/// acts at once on the ranks. Not thread-safe.
class JobStateMachine {
 public:
  using Say = std::function<void(const std::string& text)>;
  /// Whether a rank that has ended had lost another one before.
  using LostPeer = std::function<bool(size_t local_rank)>;
  /// Whether a rank saves what would be lost if it were killed.
  using IsSaving = std::function<bool()>;

  /// `ranks` must outlive this; `say` gets each remark for the user, a line or more.
  JobStateMachine(
      RankSet& ranks,
      double grace_seconds,
      Say say,
      LostPeer lost_peer = {},
      IsSaving is_saving = {});

  void on_signal(int signal);
  /// Looks who has ended; call whenever something happened. Returns whether anybody has.
  bool on_endings();
  /// The job has run for `seconds`, as long as it may.
  void on_timeout(double seconds);
  /// A rank keeps the others from going on, as `stall.remark` says: a failure, but its process
  /// lives, or has ended with 0.
  void on_stall(RankFailure stall);
  /// The failure that ends the job is the consequence of `stall`, which is reported instead.
  void blame(RankFailure stall);
  /// The job was paused for so long: what it has time for is due later.
  void put_off(Clock::duration pause);
  /// The job has ended on another host, which says why, or whoever wanted it is gone. Call once.
  void on_end_elsewhere();
  /// Our own output cannot be written any more.
  void on_output_lost(int error);
  /// When on_deadline() wants to be called, if nothing else happens.
  std::optional<Clock::time_point> deadline() const { return deadline_; }
  void on_deadline();

  /// Nothing is left to wait for.
  bool is_over() const;

  /// The rest is for a job that is over and whose ranks are closed.
  int exit_code() const;
  /// Nothing has begun to end it.
  bool is_running() const { return phase_ == Phase::kRunning && is_undecided(); }
  /// The job ended by the failure of a rank, and not because it had been told to stop before.
  bool has_failed() const { return reason_ == Reason::kFailure; }
  /// The failure to report, if the job ended by one.
  std::optional<RankFailure> cause() const;
  /// Those who failed by themselves in the same moment.
  std::vector<RankFailure> also_failed() const;
  /// How many ranks were then told to stop.
  int stopped() const { return stopped_; }
  /// Says how the ranks took what ended the job, if that was a signal or the time.
  void say_how_it_ended() const;

 private:
  enum class Phase { kRunning, kGracePeriod, kStopping, kKilling };
  enum class Reason { kNone, kPreempted, kFailure, kSignal, kTimeout, kOutputLost, kElsewhere };

  void on_failure(const RankFailure& failure);
  void settle();
  void stop(int signal, double grace_seconds);
  /// Ranks of this host that have failed though their processes live.
  int living_culprits() const;
  void kill();
  bool is_undecided() const { return reason_ == Reason::kNone || reason_ == Reason::kPreempted; }
  std::optional<RankFailure> straggler() const;
  /// "SIGTERM", "its time limit".
  std::string what_ended_it() const;

  RankSet& ranks_;
  double grace_seconds_;
  Say say_;
  LostPeer lost_peer_;  // Empty: nobody knows.
  IsSaving is_saving_;  // Empty: nobody does.
  bool waits_for_save_ = false;
  bool ended_elsewhere_ = false;
  Clock::time_point started_ = Clock::now();
  Phase phase_ = Phase::kRunning;
  Reason reason_ = Reason::kNone;  // Why the job ends otherwise than by all ranks' ending with 0.
  std::optional<Clock::time_point> deadline_;
  std::vector<RankFailure> failures_;
  std::set<int> passed_on_;
  int signal_ = 0;        // [reason_ == kSignal or kTimeout]
  int output_error_ = 0;  // errno of the write that failed.
  int stopped_ = 0;
  int round_ = 0;
};

}  // namespace lockstep::launcher
