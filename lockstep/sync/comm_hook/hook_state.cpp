// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/hook_state.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep {

const at::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(
      tensors.begin(), tensors.end(), [&](const NamedTensor& item) { return item.name == name; });
  return found == tensors.end() ? nullptr : &found->tensor;
}

void check_hook_tensors(const CommHookState& state, const NamedTensors& known) {
  for (const NamedTensor& item : state.tensors) {
    const at::Tensor* ours = find_tensor(known, item.name);
    if (ours == nullptr) {
      throw ConfigError(
          "comm_hook",
          fmt::format(
              "the comm hook's state has the unknown tensor {}; load it into the hook, options and "
              "model that wrote it",
              item.name));
    }
    if (ours->sizes() != item.tensor.sizes()) {
      throw ConfigError(
          "comm_hook",
          fmt::format(
              "{} in the comm hook's state has another shape; got [{}], expected [{}]; load it "
              "into the options and model that wrote it",
              item.name,
              fmt::join(item.tensor.sizes(), ", "),
              fmt::join(ours->sizes(), ", ")));
    }
  }
}

void copy_hook_tensors(const CommHookState& state, const NamedTensors& known) {
  check_hook_tensors(state, known);
  const c10::AutoGradMode no_grad(false);
  for (const NamedTensor& item : known) {
    const at::Tensor* theirs = find_tensor(state.tensors, item.name);
    if (theirs != nullptr) {
      item.tensor.copy_(*theirs);
    } else {
      item.tensor.zero_();
    }
  }
}

}  // namespace lockstep
