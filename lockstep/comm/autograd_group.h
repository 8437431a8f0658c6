// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/group.h"

namespace lockstep::comm {

/// Keeps a group in the context of an autograd function, which holds torch's types only.
struct HeldGroup final : torch::CustomClassHolder {
  explicit HeldGroup(Group held) : group(std::move(held)) {}
  Group group;
};

inline c10::IValue to_ivalue(Group group) {
  return c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(std::move(group)));
}

/// `value`: one that to_ivalue has returned.
inline Group to_group(const c10::IValue& value) {
  return c10::static_intrusive_pointer_cast<HeldGroup>(value.toCapsule())->group;
}

}  // namespace lockstep::comm
