// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Holds a parameter or buffer with its name in the model: "conv1.weight".
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

inline std::vector<at::Tensor> tensors_of(const NamedTensors& items) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& item : items) {
    tensors.push_back(item.tensor);
  }
  return tensors;
}

}  // namespace lockstep
