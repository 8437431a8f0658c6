// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// Copies as `to.copy_(from)`, unrecorded by autograd. Copies of large dense CPU tensors of one
/// dtype bypass the caches (base/memory/stream_copy.h), for data that is not read soon: loading and
/// snapshots. Throws c10::Error if the shapes do not match.
void copy_values(const at::Tensor& to, const at::Tensor& from);

}  // namespace lockstep::flat
