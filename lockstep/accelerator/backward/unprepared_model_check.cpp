// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/unprepared_model_check.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {
namespace {

/// Appends the first elements of a tensor as bytes.
void append_elements(std::string& bytes, const at::Tensor& tensor) {
  constexpr int64_t kMostCompared = 64;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor flat = tensor.detach().reshape({-1});
  const at::Tensor first =
      flat.narrow(0, 0, std::min(flat.numel(), kMostCompared)).to(at::kCPU).contiguous();
  bytes.append(static_cast<const char*>(first.const_data_ptr()), first.nbytes());
}

}  // namespace

void UnpreparedModelCheck::watch_optimizers() {
  if (!objects_.context.is_distributed()) {
    return;
  }
  loop_.agree_on_unprepared =
      [this, alive = std::weak_ptr<const void>(alive_)](const std::vector<at::Tensor>& parameters) {
        return alive.expired() || agree(parameters);
      };
}

void UnpreparedModelCheck::expect_model() const {
  // A prepared optimizer compares the gradients, which the program may average itself.
  const int processes = objects_.context.size();
  if (objects_.models.empty() && objects_.optimizers.empty() && processes > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "no model is prepared in a job of {} processes, so no gradients would be averaged; "
            "call prepare(model, optimizer, ...) first, or loss.backward() for gradients that stay "
            "on their process and are not averaged",
            processes));
  }
}

bool UnpreparedModelCheck::read_graph(const at::Tensor& loss, bool any_held) {
  // With one model all processes take part in every backward that averages; with more, some may
  // not.
  const bool must_compare = !leaves_.is_finished() && objects_.context.is_distributed() &&
                            objects_.models.size() == 1 && !loop_.joining && local_sgds_.empty() &&
                            !any_held && loop_.accumulation.sync_gradients &&
                            loop_.accumulation.no_sync_depth == 0;
  if (must_compare) {
    leaves_.read_graph(loss, objects_.parameters());
  }
  return must_compare;
}

void UnpreparedModelCheck::compare() {
  Group group = objects_.context.group;
  leaves_.compare(group);
}

bool UnpreparedModelCheck::agree(const std::vector<at::Tensor>& parameters) const {
  if (loop_.joining) {
    return false;  // Some processes may have finished.
  }
  const std::set<const void*> prepared = objects_.parameters();
  size_t count = 0;
  std::string values, gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && !prepared.contains(parameter.unsafeGetTensorImpl())) {
      ++count;
      append_elements(values, parameter);
      if (parameter.grad().defined()) {
        append_elements(gradients, parameter.grad());
      }
    }
  }
  if (count == 0) {
    return true;
  }
  Group group = objects_.context.group;
  const std::vector<std::string> all = all_gather_bytes(group, values + "/" + gradients);
  const bool any_gradient = std::any_of(all.begin(), all.end(), [&](const std::string& theirs) {
    return theirs.size() > values.size() + 1;
  });
  const auto differs = [&](const std::string& theirs) { return theirs != all[0]; };
  if (any_gradient && std::any_of(all.begin(), all.end(), differs)) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "{} of this optimizer's {} parameters belong to no prepared model, and their values or "
            "gradients differ between processes; pass their model to prepare, or average their "
            "gradients with accelerator.reduce before step(); if they should differ, do not pass "
            "their optimizer to prepare",
            count,
            parameters.size()));
  }
  return any_gradient;
}

}  // namespace lockstep
