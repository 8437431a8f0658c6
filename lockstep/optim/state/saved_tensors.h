// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::optim {

/// [group] The options of each parameter group.
using OptionsOfGroups = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;

/// Calls `visit` with each parameter and the index of its group.
template <typename Visit>
void for_each_parameter(torch::optim::Optimizer& optimizer, const Visit& visit) {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      visit(parameter, group);
    }
  }
}

/// The tensors of an optimizer's saved state, until a parameter takes them.
class SavedTensors {
 public:
  /// `path`: their source, for errors.
  SavedTensors(const NamedTensors& tensors, std::string path);

  /// Removes and returns a tensor; undefined if it is missing. Throws CheckpointError for other
  /// `sizes`.
  at::Tensor take(const std::string& name, at::IntArrayRef sizes);
  /// Throws CheckpointError if any are left.
  void check_all_taken() const;
  const std::string& path() const { return path_; }

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::string path_;
};

/// The saved state of one parameter.
class SavedParameter {
 public:
  SavedParameter(SavedTensors& saved, const std::string& name)
      : saved_(saved), prefix_(name + ".") {}

  /// Takes field `field`, see SavedTensors::take. `required`: the parameter's state needs it.
  at::Tensor take(const std::string& field, at::IntArrayRef sizes, bool required);
  /// Returns whether the parameter has saved state. Throws CheckpointError if a required field is
  /// missing and another field is not.
  bool check_complete() const;

 private:
  SavedTensors& saved_;
  std::string prefix_;
  bool any_ = false;
  std::string missing_;  ///< The first required field without a tensor.
};

}  // namespace lockstep::optim
