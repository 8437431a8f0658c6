// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace torch::nn {
class Module;
}

namespace lockstep::expert_parallel {

/// The experts of a model, as its ranks divide them.
struct ModelExperts {
  NamedTensors parameters = {};  ///< Those of this rank's experts, by their names in the model.
  std::vector<int> ranks = {};   ///< For each mixture the number of ranks that divide it.
  /// Names of those `parameters` that hold all of this rank's experts, one in each row. Other ranks
  /// have the next rows under the same name.
  std::set<std::string> stacked = {};
  /// Their gradients are divided by these numbers in backward, so that they only need the average.
  bool average_gradients = true;
};

/// Returns the experts of the nn::MoE layers of `model`.
ModelExperts experts_of(const torch::nn::Module& model);

}  // namespace lockstep::expert_parallel
