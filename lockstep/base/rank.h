// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// The rank that log lines and error messages name. It has no other effect.
///
/// A process has one label, set once when its world is known. A thread may have its own, which
/// takes precedence: tests run ranks as threads. `rank` is -1 while it is unknown.
struct RankLabel {
  int rank = -1;
  int size = 0;
  bool is_main() const { return rank <= 0; }
};

/// Sets the label of this process. Thread-safe.
void set_process_rank(RankLabel label);

/// Returns the calling thread's label if it has one, else the process's.
RankLabel current_rank();

/// Returns " (rank 1 of 2)", or "" in a world of one.
std::string rank_suffix();
/// Returns `message` without that suffix, for a message that is sent to or from other ranks.
std::string without_rank_suffix(const std::string& message);

/// RAII scope: gives the calling thread its own label.
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
