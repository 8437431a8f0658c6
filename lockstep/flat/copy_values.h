// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// As `to.copy_(from)`, and autograd does not see it. Large dense tensors of one dtype on the CPU
/// are streamed past the caches (base/stream_copy.h), which is for what is not read at once:
/// loading and snapshots. Throws c10::Error if the shapes do not fit.
void copy_values(const at::Tensor& to, const at::Tensor& from);

}  // namespace lockstep::flat
