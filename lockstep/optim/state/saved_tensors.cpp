// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/saved_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {

SavedTensors::SavedTensors(const NamedTensors& tensors, std::string path) : path_(std::move(path)) {
  for (const NamedTensor& item : tensors) {
    tensors_.emplace(item.name, item.tensor);
  }
}

at::Tensor SavedTensors::take(const std::string& name, at::IntArrayRef sizes) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return {};
  }
  at::Tensor tensor = found->second;
  if (tensor.sizes() != sizes) {
    throw CheckpointError(
        path_,
        fmt::format(
            "has shape [{}]; expected [{}]",
            fmt::join(tensor.sizes(), ", "),
            fmt::join(sizes, ", ")),
        name);
  }
  tensors_.erase(found);
  return tensor;
}

void SavedTensors::check_all_taken() const {
  if (!tensors_.empty()) {
    throw CheckpointError(
        path_, "belongs to no parameter of this program's optimizer", tensors_.begin()->first);
  }
}

at::Tensor SavedParameter::take(const std::string& field, at::IntArrayRef sizes, bool required) {
  at::Tensor tensor = saved_.take(prefix_ + field, sizes);
  any_ = any_ || tensor.defined();
  if (required && !tensor.defined() && missing_.empty()) {
    missing_ = prefix_ + field;
  }
  return tensor;
}

bool SavedParameter::check_complete() const {
  if (any_ && !missing_.empty()) {
    throw CheckpointError(saved_.path(), "is missing, but the parameter has other state", missing_);
  }
  return any_;
}

}  // namespace lockstep::optim
