// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/sequence_state.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string name_of_state(size_t i) {
  return fmt::format("state_{:03}", i);
}

}  // namespace

SequenceState::SequenceState(Accelerator& accelerator, int64_t dim)
    : group_(internal::AcceleratorInternals::objects(accelerator).context.mesh.data),
      device_(accelerator.device()),
      dim_(dim) {}

void SequenceState::set(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> detached;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() <= dim_) {
      throw ConfigError(
          "SequenceState",
          fmt::format(
              "dimension {} counts rows; got a tensor of {} dimensions, expected at least {}; give "
              "the dimension as SequenceState(accelerator, dim)",
              dim_,
              tensor.dim(),
              dim_ + 1));
    }
    detached.push_back(tensor.detach());
  }
  tensors_ = std::move(detached);
}

ObjectState SequenceState::state_dict() const {
  ObjectState state;
  state.values["tensors"] = tensors_.size();
  Group group = group_;  // A handle of the same group.
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // Rows first, as a gather puts one rank's behind the other's.
    const at::Tensor rows_first = tensors_[i].transpose(0, dim_).contiguous();
    const at::Tensor all = lockstep::gather(group, rows_first);
    state.tensors.push_back({name_of_state(i), all.transpose(0, dim_).contiguous().cpu()});
  }
  return state;
}

void SequenceState::load_state_dict(const ObjectState& state) {
  if (!state.values.is_object() || !state.values.contains("tensors") ||
      state.values["tensors"] != state.tensors.size()) {
    throw ConfigError(
        "SequenceState",
        fmt::format(
            "the saved state is not one of a SequenceState; got {} with {} tensors; register the "
            "same objects in the same order as when it was saved",
            state.values.dump(),
            state.tensors.size()));
  }
  std::vector<at::Tensor> own;
  for (const NamedTensor& item : state.tensors) {
    const int64_t rows = item.tensor.dim() > dim_ ? item.tensor.size(dim_) : -1;
    if (rows < 0 || rows % group_.size() != 0) {
      throw ConfigError(
          "SequenceState",
          fmt::format(
              "the rows of {} cannot be shared equally; got {} rows in dimension {} for {} ranks",
              item.name,
              rows,
              dim_,
              group_.size()));
    }
    const int64_t share = rows / group_.size();
    own.push_back(item.tensor.narrow(dim_, group_.rank() * share, share).clone().to(device_));
  }
  tensors_ = std::move(own);
}

}  // namespace lockstep
