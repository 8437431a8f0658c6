// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

/// Norms and clipping of gradients and weights, modelled on torch.nn.utils.
///
/// Dtypes and devices may be mixed. A repeated parameter counts once; one without a gradient is
/// skipped. `norm_type` is above 0; infinity means the largest element. Norms are 0-d tensors on
/// the first tensor's device, accumulated and returned in fp32 (fp64 if any tensor is). No function
/// waits for a device; reading the norm does. Sparse gradients throw ConfigError. Clipping replaces
/// an expanded gradient by a writable copy.
///
/// Cost: one pass over the gradients for the norm, and one more to scale them; on the CPU the
/// second is skipped if nothing is clipped.
namespace lockstep::optim {

/// Returns the norm of all gradients, as of one vector; 0 without any.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);

/// Returns the norm of all parameters, as of one vector; 0 without any.
at::Tensor weight_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);

/// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1, and returns the norm
/// before. An infinite `max_norm` scales nothing. A non-finite norm makes the gradients zero or
/// NaN, as in torch; with `error_if_nonfinite` it throws ConfigError, and the call waits for the
/// device. If each rank has a part of the gradients, `over_ranks` computes the norm of all parts
/// from this rank's.
at::Tensor clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type = 2,
    bool error_if_nonfinite = false,
    const std::function<at::Tensor(const at::Tensor& own)>& over_ranks = nullptr);

/// Limits every element of every gradient to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace lockstep::optim
