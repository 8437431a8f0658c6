// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

class DataParallel;
class JoinCoordinator;

/// Options with the names and defaults of PyTorch's join.
struct JoinOptions {
  /// True: divides gradients by the number of all ranks, so every sample counts the same. Gradients
  /// shrink as ranks run out of data. False: divides by the number of ranks that still have data.
  bool divide_by_initial_world_size = true;
  /// Every rank throws ConfigError when the first one has run out of data.
  bool throw_on_early_termination = false;
};

/// Joins training loops of ranks with differing numbers of batches.
///
///     Join join(models);
///     train();                 // as many batches as this rank has
///     join.finish();
///
/// A rank whose loop has ended takes part in the averaging of the others, with zero gradients,
/// until the last loop has ended. Gradients that it had accumulated but not averaged are
/// included the first time. At the end every rank gets the parameters and buffers of `models`, and
/// the tensors of `more`, from a rank that was among the last. `more` (for instance optimizer
/// state) is called then, and must return tensors of the same shapes and dtypes on every rank.
/// While ranks are missing, buffers are those of the first rank that still has data.
///
/// Only backward passes that average are counted, so accumulation steps may differ. A loop must not
/// call other collectives a number of times that depends on the data: they would be matched with
/// the averaging of another rank, which is a CommError.
///
/// Cost: each averaging has one more all-reduce of (ranks + 2 models) int64, overlapped with
/// backward. With several models, a model's averaging starts after its backward, not within it.
///
/// The destructor of a join that was not finished does not inform the other ranks: end the program,
/// as the launcher does for all. In a group of one nothing is joined. Modelled on
/// torch.distributed.algorithms.Join, and its hook for DDP.
class Join {
 public:
  /// Throws ConfigError without models, and if one of them is in a join.
  explicit Join(std::vector<std::shared_ptr<DataParallel>> models, JoinOptions options = {});
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Takes part until all loops have ended, and makes all ranks equal. Collective.
  void finish(const std::function<std::vector<at::Tensor>()>& more = nullptr);

 private:
  void leave() noexcept;

  std::vector<std::shared_ptr<DataParallel>> models_;
  JoinOptions options_;
  std::shared_ptr<JoinCoordinator> coordinator_;  ///< Null in a group of one, and after the end.
};

}  // namespace lockstep
