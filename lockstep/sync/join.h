// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

class DataParallel;

/// The names and defaults of PyTorch's join.
struct JoinOptions {
  /// Gradients stay divided by the number of all ranks: every sample counts the same, and the
  /// gradient shrinks as ranks run out. False: by the number of ranks that still have data.
  bool divide_by_initial_world_size = true;
  /// Instead of going on, every rank throws ConfigError when the first one has run out of data.
  bool throw_on_early_termination = false;
};

/// Runs `body`, a training loop, on ranks with differing numbers of batches.
///
/// A rank whose body has returned takes part in the averaging of the others, with zero gradients,
/// until the last body has returned. What it had accumulated but not averaged goes along the first
/// time. At the end every rank holds the parameters and buffers of `models`, and the tensors of
/// `more`, of a rank that was among the last; `more` (optimizer state, say) is called then, and
/// must give tensors of the same shapes and dtypes on every rank. While ranks are missing, buffers
/// follow the first rank that still has data.
///
/// Only backwards that average are counted, so accumulation steps may differ. In `body` no other
/// collective may be called in a number that depends on the data: it would meet the averaging of
/// another rank, which is a CommError.
///
/// Every averaging costs one all-reduce of (ranks + 2 models) int64 more, hidden behind backward.
/// With several models, a model's averaging starts when its backward has ended, not within it.
///
/// An exception of `body` is thrown on at once, without telling the other ranks: end the program,
/// as the launcher does for all. A group of one just runs `body`. Collective. After:
/// torch.distributed.algorithms.Join, and its hook for DDP.
void run_joined(
    const std::vector<std::shared_ptr<DataParallel>>& models,
    const std::function<void()>& body,
    JoinOptions options = {},
    const std::function<std::vector<at::Tensor>()>& more = nullptr);

}  // namespace lockstep
