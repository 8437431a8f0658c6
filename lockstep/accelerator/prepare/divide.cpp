// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/divide.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/data/sample/random.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/pipeline/stage.h"
#include "lockstep/sync/agreement.h"
#include "lockstep/sync/rank_facts.h"
#include "lockstep/tensor_parallel/region.h"
#include "lockstep/tensor_parallel/style.h"

namespace lockstep::internal {
namespace {

/// Returns the difference that rounding may cause, relative to the largest value. The order of sums
/// differs, and 16-bit partial results are rounded before they are added.
double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-9;
    case at::kFloat:
      return 1e-3;
    default:
      return 5e-2;
  }
}

void check_options(const MeshShape& shape, const TensorParallelOptions& options) {
  if (options.plan.empty()) {
    throw ConfigError(
        "prepare",
        fmt::format(
            "the mesh {} has tp, but tensor_parallel.plan is empty, so {} processes would compute "
            "the same; expected styles for modules, such as colwise for 'blocks.*.up'",
            mesh_text(shape),
            shape.tp));
  }
  if (!options.example && !options.without_example) {
    throw ConfigError(
        "prepare",
        "tensor_parallel.example is not set; expected a function that computes the model on a "
        "small "
        "batch, whose result is compared before and after the model is divided; or set "
        "without_example");
  }
}

void refuse_example_of_stage(const GivenModel& model, const TensorParallelOptions& options) {
  if (model.pipeline && model.pipeline->line().size() > 1 && options.example) {
    throw ConfigError(
        "prepare",
        "tensor_parallel.example is set for a pipeline, of which a process computes one stage; set "
        "without_example, and compare one mesh without pp");
  }
}

/// Throws ConfigError on all processes if they have different plans.
void expect_equal_plan(const RunContext& context, const TensorParallelOptions& options) {
  std::string text = options.sequence_parallel ? "sequence_parallel" : "";
  for (const TensorRule& rule : options.plan) {
    text += fmt::format(
        "; {}: {} [{}]", rule.modules, tensor_style_name(rule.style), fmt::join(rule.fused, ", "));
  }
  Group group = context.group;
  expect_equal_facts(
      group,
      {{"the plan of tensor parallelism", text, "give every process the same rules"}},
      "prepare");
}

/// Runs `body` on all processes. If it throws on one, the others throw, too, instead of waiting.
template <typename Body>
auto together(const RunContext& context, const Body& body) {
  std::exception_ptr failure;
  decltype(body()) result;
  try {
    result = body();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  Group group = context.group;
  const bool failed = any_rank(group, failure != nullptr);
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (failed) {
    throw ConfigError(
        "prepare", "the model could not be divided on another process, which names the reason");
  }
  return result;
}

/// Returns the options without the rules for modules of other stages of a pipeline. A rule that no
/// stage has a module for stays, to be refused.
TensorParallelOptions for_stage(
    TensorParallelOptions options, const RunContext& context, const NamedClasses& classes) {
  TensorPlan plan;
  for (TensorRule& rule : options.plan) {
    const bool is_here = std::ranges::any_of(
        classes, [&](const auto& item) { return matches_modules(rule.modules, item.first); });
    if (any_rank(context.mesh.pipeline, is_here) == is_here) {
      plan.push_back(std::move(rule));
    }
  }
  options.plan = std::move(plan);
  return options;
}

/// Throws ConfigError, on all processes, if the plan divides an expert.
void refuse_divided_experts(
    const RunContext& context,
    const tensor_parallel::TensorParallel& divided,
    const DividedExperts* experts) {
  std::string name;
  for (const NamedTensor& item : experts != nullptr ? experts->own : NamedTensors()) {
    name = name.empty() && divided.divides(item.tensor) ? item.name : name;
  }
  if (any_rank(context.group, !name.empty())) {
    throw ConfigError(
        "prepare",
        fmt::format(
            "the plan of tensor parallelism divides the expert parameter {}; expected rules for "
            "other layers: the mesh divides experts by ep, and each process of a tp line has the "
            "same ones",
            name.empty() ? "of another process" : name));
  }
}

at::Tensor result_of(const TensorParallelOptions& options, const GivenModel& model) {
  if (!options.example) {
    return {};
  }
  const c10::AutoGradMode no_grad(false);
  const std::function<void()> restore = model.evaluate ? model.evaluate() : [] {};
  at::Tensor result;
  try {
    result = options.example();
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return result.defined() ? result.detach().clone() : result;
}

/// Returns a result of which each process has a part (columns, or of a sequence) in full.
at::Tensor in_full(const at::Tensor& result, at::IntArrayRef sizes, const Group& line) {
  const c10::AutoGradMode no_grad(false);
  for (int64_t dim = 0; dim < result.dim() && sizes.size() == result.sizes().size(); ++dim) {
    std::vector<int64_t> full = result.sizes().vec();
    full[static_cast<size_t>(dim)] *= line.size();
    if (sizes == at::IntArrayRef(full)) {
      return tensor_parallel::gather_sequence(result, dim, line);
    }
  }
  return result;
}

void compare(const RunContext& context, const at::Tensor& before, const at::Tensor& own) {
  if (!before.defined() || before.numel() == 0) {
    return;
  }
  const at::Tensor after = in_full(own, before.sizes(), context.mesh.tensor);
  const bool same_shape = before.sizes() == after.sizes();
  const double difference =
      same_shape ? at::max(at::abs(at::sub(before, after))).item<double>() : 0;
  const double most = tolerance_of(before.scalar_type()) * at::max(at::abs(before)).item<double>();
  Group group = context.group;
  const bool differs = !same_shape || !(difference <= most);
  if (any_rank(group, differs)) {
    throw ConfigError(
        "tensor_parallel",
        fmt::format(
            "the divided model computes another function than the full one: the results on the "
            "example differ by {}, expected at most {}{}; a layer between divided ones depends on "
            "their full width: write the number of heads as -1 and the size of a head as a number, "
            "and give layers that fuse several TensorRule::fused",
            difference,
            most,
            same_shape ? "" : ", and their shapes differ"));
  }
}

}  // namespace

std::shared_ptr<tensor_parallel::TensorParallel> divide_model(
    const RunContext& context,
    const GivenModel& model,
    bool is_first,
    const DividedExperts* experts) {
  if (context.mesh.tensor.size() == 1) {
    return nullptr;
  }
  if (!is_first) {
    throw ConfigError(
        "prepare",
        "tensor_parallel.plan is for one model, and another one is prepared already; use another "
        "Accelerator(options, first.world(), first.group()) for each further model");
  }
  const TensorParallelOptions& given =
      model.tensor_parallel ? *model.tensor_parallel : context.options.tensor_parallel;
  check_options(context.mesh.shape, given);
  expect_equal_plan(context, given);
  const TensorParallelOptions options = for_stage(given, context, model.classes());
  refuse_example_of_stage(model, options);
  const NamedTensors parameters = model.parameters();
  for (const NamedTensor& item : parameters) {
    if (comm::is_divided(item.tensor)) {
      throw ConfigError(
          "prepare",
          fmt::format(
              "{} is this process's part already, since the model was prepared before; expected "
              "the "
              "full model; construct it anew",
              item.name));
    }
  }
  // Every process has all parameters of its stage yet.
  Group line = context.mesh.tensor;
  broadcast_initial_values(line, parameters, model.buffers());
  broadcast_values(context, parameters, model.buffers(), experts);
  // Layers that all compute must drop the same elements.
  std::vector<data::RngType> generators = {data::RngType::kTorch};
  if (context.device.is_cuda()) {
    generators.push_back(data::RngType::kCuda);
  }
  data::synchronize_rng_states(line, generators);
  const at::Tensor before = together(context, [&] { return result_of(options, model); });
  const auto divided = together(context, [&] {
    return std::make_shared<tensor_parallel::TensorParallel>(
        parameters, model.classes(), options, context.mesh.tensor);
  });
  refuse_divided_experts(context, *divided, experts);
  compare(context, before, result_of(options, model));
  return divided;
}

void expect_elementwise(torch::optim::Optimizer& optimizer, const char* because) {
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer);
  // Those of torch::optim whose state is known are elementwise.
  if (flat == nullptr ? is_known_optimizer(optimizer) : flat->traits().elementwise) {
    return;
  }
  throw ConfigError(
      "prepare",
      fmt::format(
          "the optimizer {} may need all elements of a parameter to update one, and {}; expected "
          "an "
          "elementwise one, such as AdamW",
          flat == nullptr ? "of an own class" : flat->traits().name,
          because));
}

}  // namespace lockstep::internal
