// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/fail_together.h"

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {

void fail_together(
    Group& ranks, const char* where, const char* what, const std::function<void()>& body) {
  if (ranks.size() == 1) {
    body();
    return;
  }
  std::string failure;
  try {
    body();
  } catch (const std::exception& error) {
    failure = without_rank_suffix(error.what());
  }
  const at::Tensor failed =
      ranks.all_reduce(at::full({1}, failure.empty() ? 0 : 1, at::kByte), ReduceOp::kMax).wait();
  if (failed.const_data_ptr<uint8_t>()[0] == 0) {
    return;
  }
  const std::vector<std::string> all = all_gather_bytes(ranks, failure);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) {
      throw ConfigError(where, fmt::format("{} on rank {}: {}", what, rank, all[rank]));
    }
  }
}

}  // namespace lockstep
