// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/gathered_parameters.h"

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::internal {

void with_gathered_parameters(
    const PreparedObjects& objects,
    const std::vector<at::Tensor>& parameters,
    const std::function<void()>& body,
    std::optional<int> modifier_rank) {
  const int processes = objects.context.mesh.replicas.size();
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= processes)) {
    throw ConfigError(
        "with_gathered_parameters",
        fmt::format(
            "modifier_rank does not exist; got {}, expected 0 to {}",
            *modifier_rank,
            processes - 1));
  }
  objects.refuse_divided(
      "with_gathered_parameters", "a process would see its part of a parameter only");
  const zero::ExactValues exact(objects.sharding ? objects.sharding->coordinator() : nullptr);
  const zero::Gathered gathered(parameters, modifier_rank.has_value());
  body();
  if (!modifier_rank) {
    return;
  }
  Group group = objects.context.mesh.replicas;
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& parameter : parameters) {
    // By way of a plain tensor, since transports read tensors through pointers.
    at::Tensor values = parameter.detach().clone(at::MemoryFormat::Contiguous);
    group.broadcast(values, *modifier_rank).wait();
    parameter.detach().copy_(values);
  }
}

}  // namespace lockstep::internal
