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

/// Runs `forward` without keeping what it computes on the way, and again when backward needs it:
/// the memory of the inputs instead of that of all activations, for one forward more.
///
/// `parameters` are all that `forward` uses and that is to be trained; what it uses besides gets no
/// gradient. Their gradients arrive in the outer backward, so averaging over ranks, accumulation
/// and every ZeRO stage see nothing of it. Random numbers (dropout) are those of the first time,
/// and so are autocast's settings. To the bit what it is without, where `forward` is a function of
/// its inputs, parameters and random numbers. `forward` must be callable until backward is done.
/// A backward with create_graph throws ConfigError: gradients of gradients would be incomplete.
/// Where the inputs wait meanwhile, ActivationCheckpointing::Scope says, which an engine's forward
/// opens for its ds_config.json.
///
/// Thread safety: as of autograd. After torch.utils.checkpoint, and Chen et al., "Training Deep
/// Nets with Sublinear Memory Cost", 2016.
std::vector<at::Tensor> activation_checkpoint(
    CheckpointedForward forward,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& parameters);

/// The same of a module that makes one tensor of some: `activation_checkpoint(layer, x)`.
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
