// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/group_function.h"

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/autograd_group.h"

namespace lockstep::context_parallel {

void keep_group(torch::autograd::AutogradContext& context, const Group& group) {
  context.saved_data["group"] = comm::to_ivalue(group);
}

Group group_of(torch::autograd::AutogradContext& context) {
  return comm::to_group(context.saved_data["group"]);
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
