// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

using CheckpointedForward =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Runs `forward` without keeping its intermediate results, and again when backward needs them. It
/// saves the memory of all activations but the inputs, at the cost of one more forward.
///
/// `parameters` are all trained tensors that `forward` uses; other tensors that it captures get no
/// gradient. Their gradients arrive in the outer backward, so averaging over ranks, accumulation
/// and every ZeRO stage work unchanged. The second run uses the random numbers (dropout),
/// autocast settings and ContextParallelScope of the first. Bit-exact with an ordinary forward if
/// `forward` is a function of its inputs, parameters and random numbers. `forward` must be callable
/// until backward is done. A backward with create_graph throws ConfigError: gradients of gradients
/// would be incomplete. ActivationCheckpointing::Scope, which an engine's forward opens for its
/// ds_config.json, decides where the inputs are kept.
///
/// Thread safety: that of autograd. Modelled on torch.utils.checkpoint, and Chen et al., "Training
/// Deep Nets with Sublinear Memory Cost", 2016.
std::vector<at::Tensor> activation_checkpoint(
    CheckpointedForward forward,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& parameters);

/// Does the same for a module with one input and one output: `activation_checkpoint(layer, x)`.
template <typename Module, std::convertible_to<at::Tensor>... Inputs>
requires requires(const Module& module) {
  module->parameters();
}
at::Tensor activation_checkpoint(const Module& module, const Inputs&... inputs) {
  return activation_checkpoint(
      [module](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
    return {[&]<size_t... kIndex>(std::index_sequence<kIndex...>){
        return Module(module)->forward(given[kIndex]...);
        }(std::index_sequence_for<Inputs...>())
};
},
      {inputs...},
      module->parameters())[0];
}

}  // namespace lockstep
