// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// Who is speaking, for log lines and error messages only; it decides nothing.
///
/// A process has one label, set once when its world is known. A thread may carry its own, which
/// wins: tests run ranks as threads. `rank` is -1 until somebody knows better.
struct RankLabel {
  int rank = -1;
  int size = 0;
  bool is_main() const { return rank <= 0; }
};

/// Sets the label of this process. Thread-safe.
void set_process_rank(RankLabel label);

/// The calling thread's label if it has one, else the process's.
RankLabel current_rank();

/// " (rank 1 of 2)", or nothing while there is no world of several.
std::string rank_suffix();
/// `message` without that at its end: for one that is told to other ranks, or by them.
std::string without_rank_suffix(const std::string& message);

/// Gives the calling thread its own label for as long as it lives.
class ThreadRankScope {
 public:
  explicit ThreadRankScope(RankLabel label);
  ~ThreadRankScope();
  ThreadRankScope(const ThreadRankScope&) = delete;
  ThreadRankScope& operator=(const ThreadRankScope&) = delete;

 private:
  RankLabel previous_;
};

}  // namespace lockstep
