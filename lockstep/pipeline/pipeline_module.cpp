// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/pipeline_module.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

using FullNames = std::map<const void*, std::string>;

/// Returns the first name of each parameter and buffer in a Sequential of all layers.
FullNames full_names(const Layers& layers) {
  FullNames names;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto module = layers[layer].ptr();
    for (const auto& tensors : {module->named_parameters(), module->named_buffers()}) {
      for (const auto& item : tensors) {
        names.emplace(item.value().unsafeGetTensorImpl(), std::to_string(layer) + "." + item.key());
      }
    }
  }
  return names;
}

template <typename Tensors>
NamedTensors named(const Tensors& tensors, const FullNames& names) {
  NamedTensors all;
  for (const auto& item : tensors) {
    all.push_back({names.at(item.value().unsafeGetTensorImpl()), item.value()});
  }
  return all;
}

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
// clang deduces an aggregate's arguments from version 17 on, and Debian 12 has 14.
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

Bounds bounds_of(const Layers& layers, const Cut& cut, size_t chunks, Group line) {
  const auto at = [&](const CutAt& places) { return cut_at(places.starts, layers.size(), chunks); };
  const auto by_time = [&](const CutByTime& time) {
    const std::vector<double> own = layer_milliseconds(layers, time.example);
    // One rank decides, since times differ from rank to rank.
    const at::Tensor all = line.broadcast(at::tensor(own, at::kDouble)).wait();
    const auto* begin = all.const_data_ptr<double>();
    return cut_by_cost(std::vector<double>(begin, begin + all.numel()), chunks);
  };
  return std::visit(
      Overloaded{
          [&](const CutUniformly&) { return cut_uniformly(layers.size(), chunks); },
          [&](const CutByParameters&) { return cut_by_cost(parameter_counts(layers), chunks); },
          [&](const CutByClass& by) {
            return cut_by_class(class_names(layers), by.pattern, chunks);
          },
          at,
          by_time},
      cut);
}

/// Throws ConfigError, on all ranks, for a rank without parameters, which nothing could train.
void expect_parameters(const std::vector<double>& counts, const Bounds& bounds, size_t ranks) {
  std::vector<double> of_ranks(ranks);
  for (size_t chunk = 0; chunk + 1 < bounds.size(); ++chunk) {
    for (size_t layer = bounds[chunk]; layer < bounds[chunk + 1]; ++layer) {
      of_ranks[chunk % ranks] += counts[layer];
    }
  }
  const auto empty = std::ranges::find(of_ranks, 0);
  if (empty != of_ranks.end()) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "the layers of stage {} have no parameters; expected some in each of {} stages; cut "
            "the layers at other places, or use fewer stages",
            empty - of_ranks.begin(),
            ranks));
  }
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
}

}  // namespace

std::vector<double> layer_milliseconds(const Layers& layers, const at::Tensor& example) {
  if (!example.defined()) {
    throw ConfigError(
        "pipeline", "CutByTime::example is an undefined tensor; expected a micro-batch");
  }
  using Clock = std::chrono::steady_clock;
  const c10::AutoGradMode grad(true);
  std::vector<double> times;
  at::Tensor input = example.detach();
  for (torch::nn::AnyModule layer : layers) {
    at::Tensor output;
    double least = std::numeric_limits<double>::max();
    for (int run = 0; run < 3; ++run) {
      wait_for(input.device());
      const auto began = Clock::now();
      output = layer.forward(input);
      std::vector<at::Tensor> inputs;
      for (const at::Tensor& parameter : layer.ptr()->parameters()) {
        if (parameter.requires_grad()) {
          inputs.push_back(parameter);
        }
      }
      if (input.requires_grad()) {
        inputs.push_back(input);
      }
      if (output.requires_grad() && !inputs.empty()) {
        torch::autograd::grad(
            {output},
            inputs,
            {at::ones_like(output)},
            /*retain_graph=*/std::nullopt,
            /*create_graph=*/false,
            /*allow_unused=*/true);
      }
      wait_for(input.device());
      least =
          std::min(least, std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    }
    times.push_back(least);
    input = output.detach().requires_grad_(output.requires_grad());
  }
  return times;
}

PipelineModuleImpl::PipelineModuleImpl(
    const Layers& layers,
    LossFunction loss,
    const comm::MeshGroups& mesh,
    const PipelineOptions& options)
    : torch::nn::Module("PipelineModule") {
  const Group& line = mesh.pipeline;
  const pipeline_schedule::ScheduleShape shape{
      .kind = options.schedule,
      .ranks = line.size(),
      .chunks_per_rank = options.chunks_per_rank,
      .micro_batches = options.micro_batches};
  pipeline_schedule::compute_actions(shape);  // Refuses an impossible shape before the cut.
  bounds_ = bounds_of(
      layers,
      options.cut,
      static_cast<size_t>(line.size()) * static_cast<size_t>(options.chunks_per_rank),
      line);
  expect_parameters(parameter_counts(layers), bounds_, static_cast<size_t>(line.size()));
  std::vector<Chunk> chunks;
  for (const torch::nn::Sequential& part :
       chunks_of_rank(layers, bounds_, line.rank(), line.size())) {
    for (const auto& item : part->named_children()) {
      register_module(item.key(), item.value());
    }
    chunks.emplace_back(part);
  }
  const FullNames names = full_names(layers);
  stage_ = std::make_shared<Stage>(
      std::move(chunks),
      Stage::Tensors{named(named_parameters(), names), named(named_buffers(), names)},
      line,
      shape,
      std::move(loss));
}

double PipelineModuleImpl::eval_batch(const at::Tensor& inputs, const at::Tensor& targets) {
  return evaluate([&] { return forward(inputs, targets); });
}

double PipelineModuleImpl::eval_batch(const MicroBatches& batch) {
  return evaluate([&] { return forward(batch); });
}

double PipelineModuleImpl::evaluate(const std::function<at::Tensor()>& loss) {
  const c10::AutoGradMode no_grad(false);
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (const auto& module : modules(/*include_self=*/false)) {
    modes.emplace_back(module, module->is_training());
  }
  const bool own_mode = is_training();
  eval();
  const auto restore = [&] {
    train(own_mode);
    for (const auto& [module, mode] : modes) {
      module->train(mode);
    }
  };
  try {
    const double mean = loss().item<double>();
    restore();
    return mean;
  } catch (...) {
    restore();
    throw;
  }
}

}  // namespace lockstep::pipeline
