// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/moe.h"

#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/expert_parallel/dispatch.h"
#include "lockstep/expert_parallel/model_experts.h"

namespace lockstep::nn {

using expert_parallel::NoisyGatePolicy;
using expert_parallel::RouterOptions;
using expert_parallel::Routing;

namespace {

/// RAII scope: the default CPU generator has the given seeds, and afterwards its former state.
///
/// Ranks that are threads share that generator, so only one of them may have a scope at a time. The
/// mutex is recursive, since an expert may contain a mixture of experts.
class SeededScope {
 public:
  SeededScope() : lock_(mutex()), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> generator_lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~SeededScope() {
    const std::lock_guard<std::mutex> generator_lock(generator_.mutex());
    generator_.set_state(state_);
  }
  SeededScope(const SeededScope&) = delete;
  SeededScope& operator=(const SeededScope&) = delete;

  void seed(uint64_t seed) {
    const std::lock_guard<std::mutex> generator_lock(generator_.mutex());
    generator_.set_current_seed(seed);
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }
  std::lock_guard<std::recursive_mutex> lock_;
  at::Generator generator_;
  at::Tensor state_;
};

uint64_t draw_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

/// Returns the seed of group rank 0. Throws ConfigError if the ranks' options differ.
uint64_t agreed_seed(const MoEOptions& options, Group group) {
  const uint64_t seed = draw_seed();
  if (group.size() == 1) {
    return seed;
  }
  struct Field {
    const char* name;
    int64_t value;
  };
  const std::array<Field, 5> fields{{
      {"the experts' seed", static_cast<int64_t>(seed)},
      {"hidden_size", options.hidden_size},
      {"num_experts", options.num_experts},
      {"intermediate_size", options.intermediate_size},
      {"router.k", options.router.k},
  }};
  std::vector<int64_t> own;
  for (const Field& field : fields) {
    own.push_back(field.value);
  }
  const at::Tensor all = group.all_gather(at::tensor(own, at::kLong)).wait();
  const auto* values = all.const_data_ptr<int64_t>();
  for (size_t rank = 1; rank < static_cast<size_t>(group.size()); ++rank) {
    for (size_t i = 1; i < fields.size(); ++i) {
      if (values[rank * fields.size() + i] != values[i]) {
        throw ConfigError(
            "MoE",
            fmt::format(
                "the expert-parallel ranks have different options; got {} {} on rank {} and {} on "
                "rank 0, expected equal ones",
                fields.at(i).name,
                values[rank * fields.size() + i],
                rank,
                values[i]));
      }
    }
  }
  return static_cast<uint64_t>(values[0]);
}

MoEOptions checked(MoEOptions options, int ranks) {
  const auto refuse = [](const std::string& why) { throw ConfigError("MoE", why); };
  if (options.hidden_size < 1 || options.num_experts < 1) {
    refuse(fmt::format(
        "a layer needs tokens and experts; got hidden_size {} and num_experts {}, expected 1 or "
        "more",
        options.hidden_size,
        options.num_experts));
  }
  if ((options.intermediate_size > 0) == (options.expert != nullptr)) {
    refuse(
        "set intermediate_size for the default experts, or `expert` for your own; expected one of "
        "both");
  }
  if (options.num_experts % ranks != 0) {
    refuse(fmt::format(
        "the ranks cannot have equal numbers of experts; got num_experts {} and {} ranks in the "
        "expert-parallel group, expected a multiple of {}",
        options.num_experts,
        ranks,
        ranks));
  }
  if (options.eval_capacity_factor) {
    if (!options.router.capacity_factor) {
      refuse(
          "eval_capacity_factor needs router.capacity_factor; got a dropless router; set or unset "
          "both");
    }
    RouterOptions eval = options.router;
    eval.capacity_factor = options.eval_capacity_factor;
    expert_parallel::check_router_options(eval, options.num_experts);
  }
  if (options.shared_expert_mode != SharedExpertMode::kSum && !options.shared_expert) {
    refuse("shared_expert_mode needs an expert; set shared_expert, or leave the mode at kSum");
  }
  expert_parallel::check_router_options(options.router, options.num_experts);
  return options;
}

}  // namespace

MoEImpl::MoEImpl(MoEOptions options, Group group)
    : options_(checked(std::move(options), group.size())), group_(std::move(group)) {
  const auto linear = [this](int64_t outputs, bool bias) {
    return torch::nn::Linear(torch::nn::LinearOptions(options_.hidden_size, outputs).bias(bias));
  };
  gate_ = register_module("gate", linear(options_.num_experts, false));
  make_experts();
  if (options_.shared_expert) {
    shared_expert_ = options_.shared_expert();
    register_module("shared_expert", shared_expert_.ptr());
    if (options_.shared_expert_mode == SharedExpertMode::kSigmoidGate) {
      shared_gate_ = register_module("shared_expert_gate", linear(1, false));
    } else if (options_.shared_expert_mode == SharedExpertMode::kResidual) {
      shared_gate_ = register_module("coefficient", linear(2, true));
    }
  }
}

void MoEImpl::make_experts() {
  // A module of its own, so that the names are those of a list: "experts.0.w1.weight".
  struct Experts : torch::nn::Module {};
  const auto list = register_module("experts", std::make_shared<Experts>());
  const uint64_t seed = agreed_seed(options_, group_);
  const int64_t local = options_.num_experts / group_.size();
  SeededScope scope;
  for (int64_t i = group_.rank() * local; i < (group_.rank() + 1) * local; ++i) {
    // Far apart, because neighbouring layers may have neighbouring seeds.
    scope.seed(seed + 0x9E3779B97F4A7C15ULL * static_cast<uint64_t>(i + 1));
    if (options_.expert) {
      experts_.push_back(options_.expert());
    } else {
      swiglu_.emplace_back(options_.hidden_size, options_.intermediate_size);
      experts_.emplace_back(swiglu_.back());
    }
    list->register_module(std::to_string(i), experts_.back().ptr());
  }
}

RouterOptions MoEImpl::router_options() const {
  RouterOptions options = options_.router;
  if (!is_training()) {
    options.noisy_gate_policy = NoisyGatePolicy::kNone;
    options.top2_2nd_expert_sampling = false;
    if (options_.eval_capacity_factor) {
      options.capacity_factor = options_.eval_capacity_factor;
    }
  }
  return options;
}

at::Tensor MoEImpl::router_logits(const at::Tensor& tokens) {
  // In float32 at least, also under autocast: rounded logits choose other experts.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::ScalarType dtype = tokens.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor input = tokens.to(dtype);
  if (is_training() && options_.router.noisy_gate_policy == NoisyGatePolicy::kJitter) {
    constexpr double kEpsilon = 1e-2;  // DeepSpeed's.
    input = input * at::empty_like(input).uniform_(1 - kEpsilon, 1 + kEpsilon);
  }
  return at::linear(input, gate_->weight.to(dtype));
}

at::Tensor MoEImpl::compute(const at::Tensor& rows, const std::vector<int64_t>& counts) {
  if (options_.grouped_mm && !swiglu_.empty() &&
      expert_parallel::can_group(rows, swiglu_[0]->w1->weight)) {
    return expert_parallel::grouped_forward(swiglu_, rows, counts);
  }
  // Every expert computes, also without rows: its gradient is then zero, and not undefined.
  std::vector<at::Tensor> outputs;
  const std::vector<at::Tensor> groups = rows.split_with_sizes(counts);
  for (size_t i = 0; i < experts_.size(); ++i) {
    outputs.push_back(experts_[i].forward(groups[i]));
    if (outputs[i].sizes() != groups[i].sizes()) {
      throw ConfigError(
          "MoE",
          fmt::format(
              "an expert must return the shape of its input; got [{}] for [{}]",
              fmt::join(outputs[i].sizes(), ", "),
              fmt::join(groups[i].sizes(), ", ")));
    }
  }
  return at::cat(outputs);
}

at::Tensor MoEImpl::with_shared_expert(const at::Tensor& tokens, const at::Tensor& routed) {
  const auto shared = shared_expert_.forward(tokens);
  switch (options_.shared_expert_mode) {
    case SharedExpertMode::kSum:
      return routed + shared;
    case SharedExpertMode::kSigmoidGate:
      return routed + at::sigmoid(shared_gate_(tokens)) * shared;
    case SharedExpertMode::kResidual: {
      const at::Tensor c = at::softmax(shared_gate_(tokens), -1);
      return routed * c.narrow(-1, 0, 1) + shared * c.narrow(-1, 1, 1);
    }
  }
  LOCKSTEP_ASSERT(false, "the mode is none of SharedExpertMode's");
}

at::Tensor MoEImpl::forward(const at::Tensor& input) {
  if (input.dim() < 1 || input.size(-1) != options_.hidden_size) {
    throw ConfigError(
        "MoE",
        fmt::format(
            "the input has the wrong shape; got [{}], expected [..., {}]",
            fmt::join(input.sizes(), ", "),
            options_.hidden_size));
  }
  const at::Tensor tokens = input.reshape({-1, options_.hidden_size});
  routing_ = expert_parallel::route(router_logits(tokens), router_options());
  const expert_parallel::ExpertDispatch exchange(group_, *routing_);
  at::Tensor rows = exchange.dispatch(tokens);
  const bool averages = options_.average_expert_gradients && group_.size() > 1;
  if (averages) {
    rows = expert_parallel::scale_gradient(rows, group_.size());
  }
  at::Tensor outputs = compute(rows, exchange.rows_of_experts());
  if (averages) {
    outputs = expert_parallel::scale_gradient(outputs, 1.0 / group_.size());
  }
  const at::Tensor routed = exchange.combine(outputs);
  return (options_.shared_expert ? with_shared_expert(tokens, routed) : routed).view(input.sizes());
}

const Routing& MoEImpl::routing() const {
  if (!routing_) {
    throw ConfigError("MoE", "there is no routing before the first forward; call forward first");
  }
  return *routing_;
}

at::Tensor MoEImpl::l_aux() const {
  return expert_parallel::l_aux(routing());
}

std::vector<std::string> MoEImpl::expert_parameter_names() const {
  std::vector<std::string> names;
  for (const auto& item : named_parameters()) {
    if (item.key().starts_with("experts.")) {
      names.push_back(item.key());
    }
  }
  return names;
}

}  // namespace lockstep::nn

namespace lockstep::expert_parallel {

ModelExperts experts_of(const torch::nn::Module& model) {
  ModelExperts all;
  // named_modules() needs a shared_ptr for the module itself, which may not exist.
  const auto add = [&all](const torch::nn::Module& module, const std::string& prefix) {
    const auto* layer = dynamic_cast<const nn::MoEImpl*>(&module);
    if (layer != nullptr) {
      const auto parameters = layer->named_parameters();
      for (const std::string& name : layer->expert_parameter_names()) {
        all.parameters.push_back({prefix + name, parameters[name]});
      }
      all.ranks.push_back(layer->group().size());
      all.average_gradients = all.average_gradients && layer->options().average_expert_gradients;
    }
  };
  add(model, "");
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    add(*item.value(), item.key() + ".");
  }
  return all;
}

NamedTensors expert_parameters(const torch::nn::Module& model) {
  return experts_of(model).parameters;
}

}  // namespace lockstep::expert_parallel
