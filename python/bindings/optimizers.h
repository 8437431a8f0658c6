// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/prepare/prepare.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Returns the state of a Python object for checkpoints. `get()` returns (values, tensors), a JSON
/// value and a dict of tensors; `set(values, tensors)` loads them.
AnyCheckpointable checkpointable_of(py::object get, py::object set, const void* id);

/// An update of Python's, as a torch::optim::Optimizer: for optimizer classes that Lockstep lacks.
class PythonOptimizer final : public torch::optim::Optimizer {
 public:
  /// `step`: Python's, called with a closure if there is one. Each group of `groups` is
  /// (parameters, learning rate).
  PythonOptimizer(
      const std::vector<std::pair<std::vector<at::Tensor>, double>>& groups,
      py::object step,
      py::object get_state,
      py::object set_state);

  at::Tensor step(LossClosure closure = nullptr) override;
  /// Throws ConfigError: a checkpoint has the state of Python's optimizer.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  const AnyCheckpointable& own_state() const { return state_; }

 private:
  Held<> step_;
  AnyCheckpointable state_;
};

/// Returns the optimizer as prepare() takes it.
GivenOptimizer given_optimizer_of(const std::shared_ptr<torch::optim::Optimizer>& optimizer);

}  // namespace lockstep::python
