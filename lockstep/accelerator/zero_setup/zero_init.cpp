// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/zero_init.h"

#include <utility>

#include "lockstep/flat/move_in_place.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::internal {

std::shared_ptr<void> ZeroInit::begin() {
  constexpr int64_t kMinElements = 4096;  // A message for less is not worth it.
  auto init = std::make_unique<zero::Init>(group_, device_, kMinElements);
  auto scope = std::make_shared<zero::InitInterceptScope>(*init);  // May throw.
  inits_.push_back(std::move(init));
  return scope;
}

void ZeroInit::finish(const NamedTensors& tensors, zero::Sharding* sharding) {
  inits_.back()->shard(tensors_of(tensors));
  inits_.back()->finish();
  // Tensors are moved only now: small ones are filled through pointers, as torch::tensor does.
  flat::move_in_place(tensors_of(tensors), device_);
  if (sharding != nullptr) {
    transfer_to(*sharding);
  }
}

void ZeroInit::unshard(const std::vector<at::Tensor>& tensors) {
  for (const auto& init : inits_) {
    init->make_full(tensors);
  }
}

void ZeroInit::transfer_to(zero::Sharding& sharding) {
  for (const auto& init : inits_) {
    for (zero::Init::ReleasedUnit& left : init->release()) {
      sharding.manage(std::move(left.unit), std::move(left.name));
    }
  }
  inits_.clear();
}

}  // namespace lockstep::internal
