// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/copy_values.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/memory/stream_copy.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::flat {
namespace {

/// Returns whether equal values have the same bytes in the same order in memory.
bool same_memory_order(const at::Tensor& to, const at::Tensor& from) {
  return !comm::is_sharded_param(to) && !comm::is_sharded_param(from) && to.is_cpu() &&
         from.is_cpu() && to.layout() == at::kStrided && from.layout() == at::kStrided &&
         to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

}  // namespace

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  const c10::AutoGradMode no_grad(false);
  if (to.nbytes() < kStreamBytes || !same_memory_order(to, from)) {
    to.detach().copy_(from);
    return;
  }
  auto* out = static_cast<char*>(to.mutable_data_ptr());
  const auto* in = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(
      0,
      static_cast<int64_t>(to.nbytes()),
      static_cast<int64_t>(kStreamBytes),
      [&](int64_t begin, int64_t end) {
        stream_copy(out + begin, in + begin, static_cast<size_t>(end - begin));
      });
  to.unsafeGetTensorImpl()->bump_version();  // As any write in place does.
}

}  // namespace lockstep::flat
