// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/fail_together.h"

#include <exception>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {

bool any_rank(Group ranks, bool own) {
  return ranks.all_reduce(at::full({1}, own ? 1 : 0, at::kInt), ReduceOp::kMax)
             .wait()
             .item<int>() != 0;
}

std::optional<FirstFailure> first_failure(Group ranks, const std::string& own) {
  if (!any_rank(ranks, !own.empty())) {
    return std::nullopt;
  }
  const std::vector<std::string> all = all_gather_bytes(ranks, own);
  int rank = 0;
  while (all[static_cast<size_t>(rank)].empty()) {
    ++rank;
  }
  return FirstFailure{.rank = rank, .why = all[static_cast<size_t>(rank)]};
}

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const std::string why = without_rank_suffix(error.what());
    return why.empty() ? "no reason given" : why;
  }
  return "";
}

void fail_together(
    Group& ranks, const char* where, const char* what, const std::function<void()>& body) {
  if (ranks.size() == 1) {
    body();
    return;
  }
  if (const auto failed = first_failure(ranks, failure_of(body))) {
    throw ConfigError(where, fmt::format("{} on rank {}: {}", what, failed->rank, failed->why));
  }
}

}  // namespace lockstep
