// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::checkpoint {

/// A torch::nn::Module, recognised by its members: this header does not include torch::nn, whose
/// headers take seconds to compile. For a holder (TORCH_MODULE) pass `*net`.
template <typename T>
concept ModuleLike = requires(const T& module) {
  module.named_parameters(false);
  module.named_buffers(false);
  module.named_children();
};

/// Returns parameters and buffers in the order of Python's state_dict: a module's own parameters,
/// its own buffers, then its children's. Tied ones appear under each name. `with_frozen`: includes
/// parameters that require no gradient.
template <ModuleLike Module>
void append_tensors(
    NamedTensors& all, const Module& module, const std::string& prefix, bool with_frozen) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (with_frozen || item.value().requires_grad()) {
      all.push_back({prefix + item.key(), item.value()});
    }
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    all.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    append_tensors(all, *child.value(), prefix + child.key() + ".", with_frozen);
  }
}

template <ModuleLike Module>
NamedTensors tensors_of(const Module& module, bool with_frozen = true) {
  NamedTensors all;
  append_tensors(all, module, "", with_frozen);
  return all;
}

}  // namespace lockstep::checkpoint
