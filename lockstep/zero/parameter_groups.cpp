// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/parameter_groups.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {

std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups) {
  std::map<const at::TensorImpl*, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group]) {
      group_of[parameter.unsafeGetTensorImpl()] = group;
    }
  }
  std::vector<NamedTensors> sorted(groups.size());
  for (const NamedTensor& item : all) {
    const auto found = group_of.find(item.tensor.unsafeGetTensorImpl());
    if (found == group_of.end()) {
      throw ConfigError(
          "zero",
          fmt::format(
              "{} requires gradients, but no optimizer of this prepare() has it; add it to one, or "
              "freeze it",
              item.name));
    }
    sorted[found->second].push_back(item);
    group_of.erase(found);
  }
  if (std::any_of(group_of.begin(), group_of.end(), [](const auto& item) {
        return item.first->requires_grad() && item.first->numel() > 0;
      })) {
    throw ConfigError(
        "zero",
        "an optimizer has a parameter that the prepared model does not have; prepare one model "
        "that has all parameters of its optimizers");
  }
  return sorted;
}

std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all) {
  std::set<const at::TensorImpl*> kept;
  int64_t left = in_all;
  for (const NamedTensor& item : all) {
    const int64_t numel = item.tensor.numel();
    if (numel <= std::min(up_to, left) && kept.insert(item.tensor.unsafeGetTensorImpl()).second) {
      left -= numel;
    }
  }
  return kept;
}

NamedTensors frozen_to_shard(const NamedTensors& all, const std::set<const at::TensorImpl*>& kept) {
  NamedTensors frozen;
  std::set<const at::TensorImpl*> seen;
  for (const NamedTensor& item : all) {
    const at::Tensor& tensor = item.tensor;
    if (!tensor.requires_grad() && tensor.is_floating_point() && tensor.layout() == at::kStrided &&
        !kept.contains(tensor.unsafeGetTensorImpl()) &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      frozen.push_back(item);
    }
  }
  return frozen;
}

NamedTensors with_masters(const NamedTensors& all, const LowPrecisionPolicy& low_precision_policy) {
  NamedTensors found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const NamedTensor& item) {
    return update_dtype(item.tensor, low_precision_policy) != item.tensor.scalar_type();
  });
  return found;
}

NamedTensors concatenated(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace lockstep::zero
