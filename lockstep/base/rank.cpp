// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/rank.h"

#include <atomic>

namespace lockstep {
namespace {

std::atomic<int> process_rank{-1};
std::atomic<int> process_size{0};
thread_local RankLabel thread_label;

}  // namespace

void set_process_rank(RankLabel label) {
  process_rank = label.rank;
  process_size = label.size;
}

RankLabel current_rank() {
  if (thread_label.rank >= 0) {
    return thread_label;
  }
  return {process_rank, process_size};
}

std::string rank_suffix() {
  const RankLabel label = current_rank();
  if (label.rank < 0 || label.size <= 1) {
    return "";
  }
  return " (rank " + std::to_string(label.rank) + " of " + std::to_string(label.size) + ")";
}

std::string without_rank_suffix(const std::string& message) {
  const std::string suffix = rank_suffix();
  return message.ends_with(suffix) ? message.substr(0, message.size() - suffix.size()) : message;
}

ThreadRankScope::ThreadRankScope(RankLabel label) : previous_(thread_label) {
  thread_label = label;
}

ThreadRankScope::~ThreadRankScope() {
  thread_label = previous_;
}

}  // namespace lockstep
