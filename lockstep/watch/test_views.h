// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

constexpr int64_t kSecondNs = 1'000'000'000;

/// Returns an all_reduce of the job's own group.
inline Operation all_reduce(uint64_t number, int64_t issued_ns, Stage stage) {
  Operation operation;
  operation.number = number;
  operation.sequence = static_cast<int64_t>(number) - 1;
  operation.name = short_text<20>("all_reduce");
  operation.reduce = short_text<12>("sum");
  operation.dtype = short_text<20>("float32");
  operation.dims = 1;
  operation.sizes[0] = 10;
  operation.issued_ns = issued_ns;
  operation.ended_ns = stage == Stage::kDone ? issued_ns + 1 : 0;
  operation.stage = stage;
  return operation;
}

/// Returns a rank that runs and has joined, with these operations.
inline RankView view_of(int rank, std::vector<Operation> operations) {
  RankView view;
  view.rank = rank;
  view.record.pid = 100 + rank;
  view.record.rank = rank;
  view.record.operations = std::move(operations);
  return view;
}

}  // namespace lockstep::watch
