// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/reader.h"

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

NamedTensors Reader::tensors(const std::string& file_name) const {
  const SafetensorsMap file = tensor_map(file_name);
  NamedTensors tensors;
  for (const TensorEntry& entry : file.entries()) {
    tensors.push_back({entry.name, tensor_of(file, entry)});
  }
  return tensors;
}

}  // namespace lockstep::checkpoint
