// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/tracking/file/spool.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_options.h"

namespace lockstep::tracking {

/// Runs a program and feeds it JSON lines on its standard input, in the format of JsonlTracker.
///
/// The program's output goes where this process's output goes. The lines are written to a file
/// first, a spool, from which a thread feeds the program. So a program that reads slowly, hangs or
/// ends does not stop the training. If it ends, a warning names its exit code and the file, which
/// has the lines that it did not read. The input ends with the training process, even if that is
/// killed. The program shares the process group, so that it gets the signals of a terminal.
///
/// flush() waits until the program has been fed everything, at most finish_timeout_s. finish() ends
/// the input, and waits as long for the program's exit. Images are not stored.
class ExecTracker final : public Tracker {
 public:
  /// Starts the program, with the spool `<folder>/exec-<pid>-<n>.jsonl`. Throws ConfigError if the
  /// command is empty, or the shell or the file cannot be opened.
  ExecTracker(const std::filesystem::path& folder, ExecOptions options);
  ~ExecTracker() override;

  std::string name() const override { return "exec"; }
  bool stores(MediaKind kind) const override { return kind != MediaKind::kImages; }
  pid_t pid() const { return pid_; }
  const std::filesystem::path& spool_path() const { return spool_->path(); }

 private:
  void do_store_config(const nlohmann::json& config) override;
  void do_log(const Values& values, int64_t step) override;
  void do_log_histograms(const Histograms& histograms, int64_t step) override;
  void do_log_text(const Texts& texts, int64_t step) override;
  void do_log_tables(const Tables& tables, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;

  void start();
  /// Runs in the spool's thread. Throws Error if the program has ended.
  size_t feed(const std::vector<std::string>& lines);
  bool write_line(const std::string& line);
  /// Describes how the program has ended, or that it closed its input.
  std::string ending();
  void wait_for_exit();

  ExecOptions options_;
  UniqueFd input_;  ///< The writing end of the program's standard input.
  pid_t pid_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> reaped_{false};
  std::unique_ptr<Spool> spool_;
};

}  // namespace lockstep::tracking
