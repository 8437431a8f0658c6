// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class DataParallel;
using DataParallels = std::vector<std::shared_ptr<DataParallel>>;

/// A prepared optimizer: what `Accelerator::prepare` makes of a torch::optim one. A handle.
///
/// `zero_grad` keeps gradients in their buckets, where torch's own would free them to be copied
/// there again. Everything else is the optimizer within. Thread safety: none.
class Optimizer {
 public:
  Optimizer(
      std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<const DataParallels> models);

  /// One update by the wrapped optimizer.
  void step();
  /// Zeroes the gradients of this optimizer's parameters.
  void zero_grad();
  /// Updates done, by this process or those it was resumed from.
  int64_t steps() const;
  void set_steps(int64_t steps);

  torch::optim::Optimizer& inner() const;
  /// All parameters of all groups, in order.
  std::vector<at::Tensor> parameters() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
