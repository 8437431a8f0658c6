// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Describes a tensor for messages: "Float[2, 3] on cpu", or "an undefined tensor".
std::string describe(const at::Tensor& tensor);

}  // namespace lockstep::data
