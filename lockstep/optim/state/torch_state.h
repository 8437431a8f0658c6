// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
}  // namespace torch::optim

namespace lockstep::optim {

/// The fields of one parameter's state: tensors shaped like the parameter, and counts.
struct TorchFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, int64_t*>> counts;
};

/// How to treat the state of one kind of torch::optim optimizer.
struct TorchKind {
  const char* name;
  std::unique_ptr<torch::optim::OptimizerParamState> (*make)();
  TorchFields (*fields)(torch::optim::OptimizerParamState&);
};

/// Nothing for an optimizer whose state is not known: LBFGS, and others' own.
std::optional<TorchKind> find_torch_kind(torch::optim::Optimizer& optimizer);
/// ConfigError for an optimizer whose state is not known: LBFGS, and others' own.
TorchKind torch_kind_of(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
