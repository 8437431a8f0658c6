// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/expert_parallel/experts.h"
#include "lockstep/expert_parallel/router.h"

namespace lockstep::nn {

/// Makes one expert: any module that maps a tensor [rows, hidden] to one of the same shape, also if
/// rows is 0.
using ExpertFactory = std::function<torch::nn::AnyModule()>;

/// The way an expert that computes all tokens is added to the routed ones.
enum class SharedExpertMode {
  kSum,          ///< routed + shared(x): DeepSeek's and Megatron-LM's.
  kSigmoidGate,  ///< routed + sigmoid(shared_expert_gate(x)) * shared(x): Qwen2-MoE's.
  kResidual      ///< c0 * routed + c1 * shared(x), c = softmax(coefficient(x)): DeepSpeed's
                 ///< use_residual.
};

struct MoEOptions {
  int64_t hidden_size = 0;
  int64_t num_experts = 0;
  /// The width of the default experts, SwiGLU. 0 if `expert` makes them.
  int64_t intermediate_size = 0;
  ExpertFactory expert = nullptr;
  expert_parallel::RouterOptions router = {};
  /// The capacity factor in eval mode. None: router.capacity_factor. Without the latter it is
  /// refused.
  std::optional<double> eval_capacity_factor = std::nullopt;
  /// Makes an expert that computes all tokens, on every rank. None: no such expert.
  ExpertFactory shared_expert = nullptr;
  SharedExpertMode shared_expert_mode = SharedExpertMode::kSum;
  /// Multiplies the weights of SwiGLU experts by one at::_grouped_mm, where can_group permits it.
  bool grouped_mm = true;
  /// Divides the experts' gradients by the number of expert-parallel ranks. See MoEImpl.
  bool average_expert_gradients = true;
};

/// A mixture of experts: a router sends each token to k of E experts, and sums up their outputs.
///
/// Maps [..., hidden] to the same shape. With a `group` of N ranks each rank has E/N experts, and
/// tokens are sent to the ranks of their experts. The values are those of one process with all
/// experts.
///
/// Parameters: `gate.weight` [E, hidden], `experts.I.*` for this rank's experts by their index I
/// among all, `shared_expert.*`, `shared_expert_gate.weight` or `coefficient.*`. So the parameters
/// of all ranks together have the names of one process.
///
/// - Gradients. An expert's gradient is summed over the tokens of the whole group, since its rank
///   computes them. If each of W ranks has the mean loss of its own tokens, other parameters are
///   averaged over W ranks, but an expert over the W/N ranks that have it. So its gradient needs
///   the factor 1/N, and `average_expert_gradients` applies it in backward, to the experts'
///   outputs: the average over the W/N ranks is then the gradient of the mean loss of all W ranks.
/// - Initialization. Expert I has the same values for every N: the constructor draws one seed from
///   torch's default CPU generator, takes that of the group's rank 0, and initializes each expert
///   with a seed of its own. So a rank makes only its own experts. The default generator advances
///   by one draw for all experts.
/// - Auxiliary losses. `routing()` and `l_aux()` belong to the last forward, until the next one.
///
/// Collective: the constructor (one all_gather), each forward and its backward, also without
/// tokens; see ExpertDispatch for their cost. Not thread-safe. Modelled on DeepSpeed's
/// `deepspeed.moe.layer.MoE` and transformers' `MixtralSparseMoeBlock`.
class MoEImpl : public torch::nn::Module {
 public:
  /// Throws ConfigError for options that fit neither each other nor the group's size, and if the
  /// ranks' options differ.
  explicit MoEImpl(MoEOptions options, Group group = {});

  at::Tensor forward(const at::Tensor& input);

  /// The experts of the last forward's tokens. Throws ConfigError before the first one.
  const expert_parallel::Routing& routing() const;
  /// DeepSpeed's auxiliary loss of the last forward, a scalar: see expert_parallel::l_aux.
  at::Tensor l_aux() const;

  const MoEOptions& options() const { return options_; }
  const Group& group() const { return group_; }
  /// The names of this rank's expert parameters in this module: "experts.3.w1.weight".
  std::vector<std::string> expert_parameter_names() const;

 private:
  void make_experts();
  expert_parallel::RouterOptions router_options() const;
  at::Tensor router_logits(const at::Tensor& tokens);
  at::Tensor compute(const at::Tensor& rows, const std::vector<int64_t>& counts);
  at::Tensor with_shared_expert(const at::Tensor& tokens, const at::Tensor& routed);

  MoEOptions options_;
  Group group_;
  torch::nn::Linear gate_{nullptr};
  std::vector<torch::nn::AnyModule> experts_;  ///< This rank's.
  std::vector<SwiGLU> swiglu_;                 ///< The same, if they are the default ones.
  torch::nn::AnyModule shared_expert_;
  torch::nn::Linear shared_gate_{nullptr};  ///< shared_expert_gate or coefficient.
  std::optional<expert_parallel::Routing> routing_;
};
TORCH_MODULE(MoE);

}  // namespace lockstep::nn

namespace lockstep::expert_parallel {

/// Returns the parameters of `model` that belong to experts of nn::MoE layers, by their names in
/// the model. Average these over the ranks that have the same experts, and all others over all
/// ranks. Shared experts are not among them.
NamedTensors expert_parameters(const torch::nn::Module& model);

}  // namespace lockstep::expert_parallel
