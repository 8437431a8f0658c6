// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/collectives.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include <ATen/ops/full.h>

#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"

namespace lockstep::internal {

at::Tensor Collectives::gather_samples(const at::Tensor& recorded) {
  // Metrics need no gradients; with one process the result must not keep them either.
  const at::Tensor tensor =
      recorded.defined() && recorded.requires_grad() ? recorded.detach() : recorded;
  const data::BatchInfo* batch = active_.current();
  bool per_sample =
      batch != nullptr && tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch->rows;
  if (batch != nullptr && group_.size() > 1 &&
      std::any_of(batch->rows_per_rank.begin(), batch->rows_per_rank.end(), [&](int64_t rows) {
        return rows != batch->rows;
      })) {
    // A tensor of one row is a sample to the rank whose batch has one, and a value to the others.
    const at::Tensor all =
        group_.all_reduce(at::full({1}, per_sample ? 1 : 0, at::kInt), ReduceOp::kMin).wait();
    per_sample = all.item<int>() != 0;
  }
  if (!per_sample) {
    return lockstep::gather(group_, tensor);
  }
  return gather_rows(group_, tensor, batch->rows_per_rank, batch->valid_rows);
}

std::vector<nlohmann::json> Collectives::gather_object(const nlohmann::json& value) {
  return lockstep::gather_object(group_, value);
}

std::vector<nlohmann::json> Collectives::gather_object_for_metrics(const nlohmann::json& array) {
  const data::BatchInfo* batch = active_.current();
  if (!array.is_array()) {
    group_.refuse(comm::Op::kAllGather);
    throw ConfigError("gather_object_for_metrics", "expected an array, an element per sample");
  }
  nlohmann::json mine = array;
  if (batch != nullptr && static_cast<int64_t>(array.size()) == batch->rows) {
    mine.erase(mine.begin() + batch->valid_rows[static_cast<size_t>(group_.rank())], mine.end());
  }
  return lockstep::gather_object(group_, mine);
}

nlohmann::json Collectives::broadcast_object(const nlohmann::json& value, int from_process) {
  return lockstep::broadcast_object(all_, value, from_process);
}

bool Collectives::any(bool own) {
  return any_rank(all_, own);
}

}  // namespace lockstep::internal
