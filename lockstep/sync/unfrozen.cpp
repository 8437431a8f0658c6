// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/unfrozen.h"

#include <set>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors unique;
  std::unordered_set<at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.requires_grad() && item.tensor.numel() > 0 &&
        seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(item);
    }
  }
  return unique;
}

NamedTensors frozen_among(const NamedTensors& parameters) {
  NamedTensors frozen;
  std::set<const at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    if (!item.tensor.requires_grad() && item.tensor.is_floating_point() &&
        item.tensor.numel() > 0 && seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      frozen.push_back(item);
    }
  }
  return frozen;
}

void refuse_unfrozen(const NamedTensors& frozen, const char* where) {
  for (const NamedTensor& item : frozen) {
    if (item.tensor.requires_grad()) {
      throw ConfigError(
          where,
          fmt::format(
              "{} requires gradients, but was frozen when the model was prepared, so its gradients "
              "would not be averaged; expected it to stay frozen; unfreeze it before prepare(), "
              "and freeze it afterwards while it is not trained",
              item.name));
    }
  }
}

}  // namespace lockstep
