// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/coalesce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include "lockstep/flat/bucket_plan.h"

namespace lockstep::flat {

void broadcast_coalesced(
    Group& group, const std::vector<at::Tensor>& tensors, int root, int64_t cap_bytes) {
  if (group.size() == 1 || tensors.empty()) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  for (const BucketPlan& plan : plan_buckets(tensors, cap_bytes, cap_bytes)) {
    const at::Tensor& first = tensors[plan.entries.front().parameter];
    const at::Tensor buffer = at::empty({plan.numel}, first.options().requires_grad(false));
    if (group.rank() == root) {
      for (const BucketEntry& entry : plan.entries) {
        view_like(buffer, entry, tensors[entry.parameter]).copy_(tensors[entry.parameter].detach());
      }
    }
    group.broadcast(buffer, root).wait();
    if (group.rank() != root) {
      for (const BucketEntry& entry : plan.entries) {
        tensors[entry.parameter].detach().copy_(view_like(buffer, entry, tensors[entry.parameter]));
      }
    }
  }
}

void all_reduce_coalesced(
    Group& group, const std::vector<at::Tensor>& tensors, ReduceOp op, int64_t cap_bytes) {
  if (group.size() == 1 || tensors.empty()) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  for (const BucketPlan& plan : plan_buckets(tensors, cap_bytes, cap_bytes)) {
    const at::Tensor& first = tensors[plan.entries.front().parameter];
    const at::ScalarType type =
        c10::isReducedFloatingType(first.scalar_type()) ? at::kFloat : first.scalar_type();
    const at::Tensor buffer =
        at::zeros({plan.numel}, first.options().dtype(type).requires_grad(false));
    for (const BucketEntry& entry : plan.entries) {
      view_like(buffer, entry, tensors[entry.parameter]).copy_(tensors[entry.parameter].detach());
    }
    group.all_reduce(buffer, op).wait();
    for (const BucketEntry& entry : plan.entries) {
      tensors[entry.parameter].detach().copy_(view_like(buffer, entry, tensors[entry.parameter]));
    }
  }
}

}  // namespace lockstep::flat
