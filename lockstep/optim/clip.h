// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

/// Norms and clipping of gradients and weights, after torch.nn.utils.
///
/// Several dtypes and devices may be mixed. A parameter given twice counts once, one without a
/// gradient not at all. `norm_type` is a number above 0, infinity for the largest element. Norms
/// are 0-d tensors on the first tensor's device, accumulated and returned in fp32 (fp64 if any
/// tensor is), and nothing here waits for a device: reading the tensor does. Sparse gradients are a
/// ConfigError. Clipping replaces an expanded gradient by a copy, which it can write to.
///
/// Cost: one pass over the gradients for the norm, and one more to scale them; on the CPU that is
/// left out where nothing is to be clipped. Thread safety: none.
namespace lockstep::optim {

/// The norm of all gradients, as if they were one vector; 0 without any.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);

/// The norm of all parameters, as if they were one vector; 0 without any.
at::Tensor weight_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);

/// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1, and returns the norm they
/// had before. An infinite `max_norm` scales nothing. A norm that is not finite makes the
/// gradients zero or NaN, as in torch; with `error_if_nonfinite` it is a ConfigError instead, and
/// finding that out waits for the device. `over_ranks`, where each rank has a part of the
/// gradients: what makes the norm of all of them of this rank's.
at::Tensor clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type = 2,
    bool error_if_nonfinite = false,
    const std::function<at::Tensor(const at::Tensor& own)>& over_ranks = nullptr);

/// Limits every element of every gradient to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace lockstep::optim
