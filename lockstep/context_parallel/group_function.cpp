// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/group_function.h"

#include <utility>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep::context_parallel {
namespace {

struct GroupHolder final : torch::CustomClassHolder {
  explicit GroupHolder(Group kept) : group(std::move(kept)) {}
  Group group;
};

}  // namespace

void keep_group(torch::autograd::AutogradContext& context, const Group& group) {
  context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

Group group_of(torch::autograd::AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<GroupHolder>(context.saved_data["group"].toCapsule())
      ->group;
}

void refuse_create_graph(const char* where) {
  if (c10::GradMode::is_enabled()) {
    // The communicated gradients have no graph, so gradients of gradients would lack them.
    throw ConfigError(
        where,
        "gradients of gradients are not supported with a sharded sequence; got a backward with "
        "create_graph, expected one without");
  }
}

}  // namespace lockstep::context_parallel
