// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/tied_tensors.h"

#include <cstdint>
#include <map>
#include <tuple>

namespace lockstep::checkpoint {

std::vector<std::vector<size_t>> tied_groups(const NamedTensors& tensors) {
  // By storage and place, not by address: memory that comes and goes has none for a while.
  using Identity =
      std::tuple<const void*, int64_t, at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<Identity, size_t> group_of;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    size_t group = groups.size();
    // What has no memory of its own is told apart by the tensor itself.
    const bool in_memory = tensor.defined() && tensor.layout() == at::kStrided &&
                           !tensor.is_meta() && tensor.numel() > 0;
    if (in_memory) {
      const Identity identity{
          tensor.storage().unsafeGetStorageImpl(),
          tensor.storage_offset(),
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.strides().vec()};
      group = group_of.emplace(identity, group).first->second;
    }
    if (group == groups.size()) {
      groups.emplace_back();
    }
    groups[group].push_back(i);
  }
  return groups;
}

}  // namespace lockstep::checkpoint
