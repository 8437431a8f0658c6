// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/join.h"

namespace lockstep {

/// Runs `body` between the begin and the end of a join.
inline void run_joined(
    std::vector<std::shared_ptr<DataParallel>> models,
    const std::function<void()>& body,
    JoinOptions options = {},
    const std::function<std::vector<at::Tensor>()>& more = nullptr) {
  Join join(std::move(models), options);
  body();
  join.finish(more);
}

}  // namespace lockstep
