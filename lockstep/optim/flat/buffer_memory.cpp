// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/buffer_memory.h"

#include <fmt/format.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {

at::Tensor BufferMemory::zeros(int64_t numel, const at::TensorOptions& options) {
  if (!sharing_group_) {
    return at::zeros({numel}, options);
  }
  at::Tensor zeros = sharing_group_->shared_zeros({numel}, options);
  if (!zeros.defined()) {
    throw ConfigError(
        "optim",
        fmt::format(
            "shared_parameters needs memory that all ranks share; got transport {}, expected shm; "
            "run all ranks on one host with LOCKSTEP_COMM=auto, or turn shared_parameters off",
            sharing_group_->transport_name()));
  }
  return zeros;
}

at::Tensor BufferMemory::shared_copy(const at::Tensor& from) {
  at::Tensor copy = zeros(from.numel(), from.options().requires_grad(false))
                        .as_strided(from.sizes(), from.strides());
  if (is_writer()) {
    copy.copy_(from);
  }
  return copy;
}

void BufferMemory::wait_for_writer() {
  if (sharing_group_) {
    sharing_group_->barrier();
  }
}

}  // namespace lockstep::optim
