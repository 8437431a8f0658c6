// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/engine/engine.h"

namespace lockstep {

/// Two layers with weights that are the same on every rank.
struct EngineNetImpl : torch::nn::Module {
  EngineNetImpl() {
    fc = register_module("fc", torch::nn::Linear(6, 16));
    head = register_module("head", torch::nn::Linear(16, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()) / 2);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return head(at::tanh(fc(x))); }
  torch::nn::Linear fc{nullptr}, head{nullptr};
};
TORCH_MODULE(EngineNet);
using TestEngine = Engine<EngineNet>;

/// Returns a batch that is the same on every rank, so that one process computes the expected
/// values.
inline at::Tensor engine_batch(int step) {
  return at::sin(at::arange(4 * 6, at::kFloat) * (step + 2)).reshape({4, 6});
}

/// Returns copies of a model's full values, in every stage. Collective.
template <typename Net>
std::vector<at::Tensor> full_values(Accelerator& accelerator, const Net& net) {
  std::vector<at::Tensor> values;
  accelerator.with_gathered_parameters(net->parameters(), [&] {
    for (const at::Tensor& parameter : net->parameters()) {
      values.push_back(parameter.detach().clone());
    }
  });
  return values;
}

/// Returns a copy of the full values of one of `net`'s parameters. Collective.
inline at::Tensor full_value(
    Accelerator& accelerator, const EngineNet& net, const at::Tensor& parameter) {
  at::Tensor values;
  accelerator.with_gathered_parameters(
      net->parameters(), [&] { values = parameter.detach().clone(); });
  return values;
}

/// Runs micro-steps on engine_batch(from) to engine_batch(to - 1), and returns their losses.
template <typename Engine>
std::vector<double> train(Engine& engine, int from, int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    const at::Tensor loss = engine(engine_batch(step)).square().mean();
    losses.push_back(loss.template item<double>());
    engine.backward(loss);
    engine.step();
  }
  return losses;
}

inline void expect_values(
    const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::allclose(values[i], expected[i], 1e-5, 1e-6)) << values[i] << expected[i];
  }
}

/// Returns a ds_config.json. `zero_keys`: more of zero_optimization, after a comma.
inline std::string zero_config(int stage, const std::string& zero_keys, int micro_steps = 1) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": )" +
         std::to_string(micro_steps) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization":
         {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + zero_keys + "}}";
}

inline std::string simple_config(int micro_steps, int stage = 0) {
  return zero_config(stage, "", micro_steps);
}

/// Runs `body` on `world` ranks, which are threads, each with the options of initialize().
/// `local_size`: ranks of a host; 0: all.
inline void on_engine_ranks(
    int world,
    const std::string& config,
    const std::function<void(InitializeOptions options)>& body,
    int local_size = 0) {
  ranks(world, [&](Group group) {
    WorldSpec spec;
    spec.rank = group.rank();
    spec.size = group.size();
    spec.local_size = local_size == 0 ? spec.size : local_size;
    spec.local_rank = spec.rank % spec.local_size;
    InitializeOptions options{.config_json = config};
    options.connected = InitializeOptions::Connected{spec, std::move(group)};
    body(std::move(options));
  });
}

/// Runs `body(engine, net)` on `world` ranks, each with an engine of a new EngineNet.
template <typename Body>
void on_engines(int world, const std::string& config, const Body& body) {
  on_engine_ranks(world, config, [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    body(std::get<0>(made), net);
  });
}

}  // namespace lockstep
