// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/output_tensors.h"

#include <memory>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/offload/scratch_file.h"

namespace lockstep::checkpoint {
namespace {

storage::Dtype dtype_of(
    const std::string& path, const NamedTensor& named, at::ScalarType written_as) {
  const auto refused = [&](const std::string& why) {
    return CheckpointError(path, "cannot be written; " + why, storage::in_quotes(named.name));
  };
  const at::Tensor& tensor = named.tensor;
  if (!tensor.defined()) {
    throw refused("the tensor is undefined");
  }
  if (tensor.layout() != at::kStrided || tensor.is_meta()) {
    throw refused(
        "a sparse tensor, or one without data, has no place in the format; densify it first");
  }
  for (int i = 0; i <= static_cast<int>(storage::Dtype::kU64); ++i) {
    if (scalar_type(static_cast<storage::Dtype>(i)) == written_as) {
      return static_cast<storage::Dtype>(i);
    }
  }
  throw refused(
      fmt::format("the format has no dtype {}; convert the tensor", c10::toString(written_as)));
}

}  // namespace

std::vector<storage::OutputTensor> output_tensors(
    const std::string& path, const NamedTensors& tensors, std::optional<at::ScalarType> floating) {
  const auto plain = std::make_shared<at::Tensor>();  // The one that is being written.
  std::vector<storage::OutputTensor> output;
  for (const NamedTensor& named : tensors) {
    const bool is_floating = named.tensor.defined() && named.tensor.is_floating_point();
    const at::ScalarType written_as =
        !named.tensor.defined()
            ? at::kFloat
            : (is_floating ? floating : std::nullopt).value_or(named.tensor.scalar_type());
    const auto bytes = [tensor = named.tensor, plain, written_as] {
      plain->reset();  // Before the next needs its memory.
      const at::Tensor here = comm::is_sharded_param(tensor) ? tensor.detach().clone()
                                                             : offload::in_memory(tensor.detach());
      *plain = here.to(at::kCPU, written_as).resolve_conj().resolve_neg().contiguous();
      return std::string_view(static_cast<const char*>(plain->const_data_ptr()), plain->nbytes());
    };
    output.push_back(
        {named.name, dtype_of(path, named, written_as), named.tensor.sizes().vec(), bytes});
  }
  return output;
}

}  // namespace lockstep::checkpoint
