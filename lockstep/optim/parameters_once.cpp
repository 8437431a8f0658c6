// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/parameters_once.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {

void list_parameters_once(torch::optim::Optimizer& optimizer) {
  std::unordered_map<const at::TensorImpl*, size_t> group_of;
  auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    std::vector<at::Tensor> once;
    for (const at::Tensor& parameter : groups[group].params()) {
      const auto [found, is_new] = group_of.emplace(parameter.unsafeGetTensorImpl(), group);
      if (found->second != group) {
        throw ConfigError(
            "optimizer",
            fmt::format(
                "a parameter of shape [{}] is in parameter groups {} and {}, so a step would "
                "update it twice; keep it in one group",
                fmt::join(parameter.sizes(), ", "),
                found->second,
                group));
      }
      if (is_new) {
        once.push_back(parameter);
      }
    }
    if (once.size() < groups[group].params().size()) {
      groups[group].params() = std::move(once);
    }
  }
}

}  // namespace lockstep::optim
