// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/output_tensors.h"

#include <memory>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/paged.h"

namespace lockstep::checkpoint {
namespace {

Dtype dtype_of(const std::string& path, const NamedTensor& named) {
  const auto refused = [&](const std::string& why) {
    return CheckpointError(path, "cannot be written; " + why, in_quotes(named.name));
  };
  const at::Tensor& tensor = named.tensor;
  if (!tensor.defined()) {
    throw refused("the tensor is undefined");
  }
  if (tensor.layout() != at::kStrided || tensor.is_meta()) {
    throw refused(
        "a sparse tensor, or one without data, has no place in the format; densify it first");
  }
  for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
    if (scalar_type(static_cast<Dtype>(i)) == tensor.scalar_type()) {
      return static_cast<Dtype>(i);
    }
  }
  throw refused(fmt::format(
      "the format has no dtype {}; convert the tensor", c10::toString(tensor.scalar_type())));
}

}  // namespace

std::vector<OutputTensor> output_tensors(const std::string& path, const NamedTensors& tensors) {
  const auto plain = std::make_shared<at::Tensor>();  // The one that is being written.
  std::vector<OutputTensor> output;
  for (const NamedTensor& named : tensors) {
    const auto bytes = [tensor = named.tensor, plain] {
      plain->reset();  // Before the next needs its memory.
      const at::Tensor here = comm::is_paged(tensor) ? tensor.detach().clone() : tensor.detach();
      *plain = here.to(at::kCPU).resolve_conj().resolve_neg().contiguous();
      return std::string_view(static_cast<const char*>(plain->const_data_ptr()), plain->nbytes());
    };
    output.push_back({named.name, dtype_of(path, named), named.tensor.sizes().vec(), bytes});
  }
  return output;
}

}  // namespace lockstep::checkpoint
