// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/tensor_parallel.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/class_name.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/tensor_parallel/divided_param.h"

namespace lockstep::tensor_parallel {
namespace {

constexpr const char* kWhere = "tensor_parallel";

const NamedTensor* find_named(const NamedTensors& parameters, const std::string& name) {
  const auto found = std::find_if(
      parameters.begin(), parameters.end(), [&](const auto& item) { return item.name == name; });
  return found == parameters.end() ? nullptr : &*found;
}

/// Returns whether `name` is a parameter of the module itself, not of one within it.
bool is_of_module(const std::string& name, const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  return name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos;
}

/// Throws ConfigError for modules that divide their features among a fixed number of heads.
void refuse_fixed_heads(const std::string& module, const ModuleClasses& modules) {
  for (const auto& [name, class_name] : modules) {
    const bool is_within = name.empty() || module == name || module.starts_with(name + ".");
    if (is_within && plain_class_name(class_name) == "MultiheadAttention") {
      throw ConfigError(
          kWhere,
          fmt::format(
              "the plan divides {}, a part of the {} {}, which splits its features among a fixed "
              "number of heads: it would compute another function; write the attention with Linear "
              "modules and view(..., -1, head_size)",
              module,
              class_name,
              name));
    }
  }
}

/// Throws ConfigError for fused layers whose parts are joined by rank, or found by their first
/// index.
void refuse_fused(const TensorRule& rule, const std::string& module) {
  const bool is_joined = rule.style == TensorStyle::kColwiseGather ||
                         rule.style == TensorStyle::kRowwiseSplitInput ||
                         rule.style == TensorStyle::kEmbedding;
  if (is_joined && rule.fused.size() > 1) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the plan gives {} the style {} and {} fused layers, whose parts would be joined in "
            "another order; expected colwise or rowwise, or no fused sizes",
            module,
            tensor_style_name(rule.style),
            rule.fused.size()));
  }
}

/// Returns whether the module computes with its part by itself.
bool is_own_division(TensorStyle style) {
  return style == TensorStyle::kOwnRows || style == TensorStyle::kOwnColumns;
}

bool divides_weights(TensorStyle style) {
  return style != TensorStyle::kSequence && style != TensorStyle::kWhole &&
         style != TensorStyle::kWholeSumGradient && !is_own_division(style);
}

/// Adds the gradients of all ranks before they are accumulated. torch cannot remove such a hook, so
/// it refers to the group weakly.
class SumHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit SumHook(std::weak_ptr<const Group> group) : group_(std::move(group)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    const std::shared_ptr<const Group> held = group_.lock();
    if (!held || !gradients[0].defined()) {
      return gradients;
    }
    const comm::CallScope call("backward");
    at::Tensor sum;
    run_callback([&] {
      Group group = *held;
      sum = group.all_reduce(gradients[0].clone(at::MemoryFormat::Contiguous)).wait();
    });
    return {sum};
  }

 private:
  std::weak_ptr<const Group> group_;
};

// A shared_ptr up to torch 2.12, an intrusive_ptr from 2.13 on.
using Accumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// Returns the dimension of a module's weight that a style divides.
int64_t divided_dim(TensorStyle style) {
  return style == TensorStyle::kRowwise || style == TensorStyle::kRowwiseSplitInput ||
                 style == TensorStyle::kOwnColumns
             ? 1
             : 0;
}

}  // namespace

/// Held: a tensor refers to its accumulator only weakly.
struct TensorParallel::Accumulators {
  std::vector<Accumulator> nodes;
};

TensorParallel::TensorParallel(
    const NamedTensors& parameters,
    const ModuleClasses& modules,
    const TensorParallelOptions& options,
    const Group& group)
    : group_(group),
      hooked_(std::make_shared<const Group>(group)),
      accumulators_(std::make_unique<Accumulators>()),
      sequence_parallel_(options.sequence_parallel) {
  install_dispatch();
  std::set<std::string> named;
  for (const TensorRule& rule : options.plan) {
    bool is_used = false;
    for (const auto& [name, class_name] : modules) {
      if (!matches_modules(rule.modules, name)) {
        continue;
      }
      is_used = true;
      if (!named.insert(name).second) {
        throw ConfigError(
            kWhere,
            fmt::format("two rules of the plan match {}; expected one for each module", name));
      }
      const std::string kind = plain_class_name(class_name);
      const bool divides = divides_weights(rule.style);
      const char* const expected = rule.style == TensorStyle::kEmbedding ? "Embedding" : "Linear";
      if (divides) {
        refuse_fixed_heads(name, modules);
      }
      if (divides && !kind.ends_with(expected)) {
        throw ConfigError(
            kWhere,
            fmt::format(
                "the plan gives {} the style {}, but it is a {}; expected a {}",
                name,
                tensor_style_name(rule.style),
                class_name,
                expected));
      }
      refuse_fused(rule, name);
      apply_rule(rule, name, parameters);
    }
    if (!is_used) {
      throw ConfigError(
          kWhere,
          fmt::format(
              "no module of the model matches the pattern '{}' of the plan; expected names like {}",
              rule.modules,
              modules.empty() ? "" : modules.back().first));
    }
  }
  if (!sequence_parallel_) {
    return;
  }
  for (const NamedTensor& item : parameters) {
    if (std::none_of(named.begin(), named.end(), [&](const std::string& module) {
          return is_of_module(item.name, module);
        })) {
      throw ConfigError(
          kWhere,
          fmt::format(
              "no rule of the plan is about the parameter {}; with sequence_parallel each needs "
              "one: "
              "sequence if it is used on parts of the sequence, as norms are, else whole",
              item.name));
    }
  }
}

TensorParallel::~TensorParallel() {
  for (const Entry& entry : entries_) {
    comm::forget_divided(entry.parameter);
  }
}

void TensorParallel::apply_rule(
    const TensorRule& rule, const std::string& module, const NamedTensors& parameters) {
  const bool is_sequence = rule.style == TensorStyle::kSequence;
  if (is_sequence && !sequence_parallel_) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the plan gives {} the style sequence, but sequence_parallel is off; turn it on, or "
            "use "
            "whole",
            module));
  }
  if (rule.style == TensorStyle::kWhole) {
    return;
  }
  for (const NamedTensor& item : parameters) {
    if (!is_of_module(item.name, module)) {
      continue;
    }
    if (rule.style == TensorStyle::kWholeSumGradient) {
      sum_gradient(item.tensor);
      continue;
    }
    const bool is_weight = item.name.ends_with("weight") && item.tensor.dim() == 2;
    const bool is_added_after = divided_dim(rule.style) == 1 && !is_weight;
    if (is_added_after || (is_sequence && !is_weight)) {
      if (sequence_parallel_) {
        sum_gradient(item.tensor);  // It is used with this rank's part of the sequence only.
      }
      continue;
    }
    const int64_t dim = divided_dim(rule.style);
    divide(
        item,
        std::make_shared<const DividedParam>(
            item.name,
            rule.style,
            DividedLayout(
                full_sizes(item.tensor), dim, rule.fused, is_sequence ? 1 : group_.size()),
            group_,
            sequence_parallel_,
            this));
  }
  if (divides_weights(rule.style) &&
      find_named(parameters, module.empty() ? "weight" : module + ".weight") == nullptr) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "{} has no parameter of its own called weight; expected a Linear or Embedding",
            module));
  }
}

void TensorParallel::divide(
    const NamedTensor& parameter, std::shared_ptr<const DividedParam> info) {
  if (Entry* tied = find(parameter.tensor)) {
    tie(*tied, std::move(info));
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const at::Tensor own = info->layout.own_sizes() == info->layout.full_sizes()
                             ? parameter.tensor.detach()
                             : info->layout.own_part(parameter.tensor.detach(), group_.rank());
  parameter.tensor.mutable_grad().reset();
  parameter.tensor.set_data(own);
  // Only a matrix meets the operations that must know of the division.
  if (own.dim() == 2 && !is_own_division(info->style)) {
    comm::mark_divided(parameter.tensor, info);
  }
  index_.emplace(parameter.tensor.unsafeGetTensorImpl(), entries_.size());
  entries_.push_back({parameter.tensor, std::move(info)});
}

/// Divides one tensor of an embedding and of an output layer: both by words.
void TensorParallel::tie(Entry& entry, std::shared_ptr<const DividedParam> info) {
  const auto is_by_words = [](TensorStyle style) {
    return style == TensorStyle::kEmbedding || style == TensorStyle::kColwise ||
           style == TensorStyle::kColwiseGather;
  };
  if (is_own_division(info->style) && entry.info->style == info->style) {
    return;
  }
  if (!is_by_words(entry.info->style) || !is_by_words(info->style)) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "{} and {} are one tensor, which the plan divides in two ways ({} and {}); expected "
            "embedding and colwise_gather for both, or neither in the plan",
            entry.info->name,
            info->name,
            tensor_style_name(entry.info->style),
            tensor_style_name(info->style)));
  }
  if (info->style != TensorStyle::kEmbedding) {
    entry.info = std::move(info);  // It says what the output layer returns.
    comm::mark_divided(entry.parameter, entry.info);
  }
}

void TensorParallel::sum_gradient(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) {
    return;
  }
  // On the accumulator, not on the tensor: a checkpoint of activations computes gradients twice,
  // and accumulates them once.
  Accumulator node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_pre_hook(std::make_unique<SumHook>(hooked_));
  accumulators_->nodes.push_back(std::move(node));
}

TensorParallel::Entry* TensorParallel::find(const at::Tensor& parameter) {
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const TensorParallel::Entry* TensorParallel::find(const at::Tensor& parameter) const {
  return const_cast<TensorParallel*>(this)->find(parameter);
}

bool TensorParallel::divides(const at::Tensor& parameter) const {
  const Entry* entry = find(parameter);
  return entry != nullptr && entry->info->style != TensorStyle::kSequence;
}

std::vector<int64_t> TensorParallel::full_sizes(const at::Tensor& parameter) const {
  const Entry* entry = find(parameter);
  return entry == nullptr ? parameter.sizes().vec() : entry->info->layout.full_sizes();
}

at::Tensor TensorParallel::full(const at::Tensor& parameter, const at::Tensor& own) {
  return divides(parameter) ? find(parameter)->info->layout.full(own, group_) : own;
}

at::Tensor TensorParallel::own_part(const at::Tensor& parameter, const at::Tensor& full) const {
  return divides(parameter) ? find(parameter)->info->layout.own_part(full, group_.rank()) : full;
}

void TensorParallel::expect_marked() const {
  for (const Entry& entry : entries_) {
    if (entry.parameter.dim() == 2 && !is_own_division(entry.info->style) &&
        !comm::is_divided(entry.parameter)) {
      throw ConfigError(
          kWhere,
          fmt::format(
              "{}, of which each rank has a part, was replaced or moved (set_data, Module::to) "
              "after "
              "prepare(), so the ranks' parts would not be put together; move the model before",
              entry.info->name));
    }
  }
}

}  // namespace lockstep::tensor_parallel
