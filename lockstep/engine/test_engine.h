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
#include "lockstep/engine/engine_core.h"

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

/// The same on every rank, so that one process is the oracle.
inline at::Tensor engine_batch(int step) {
  return at::sin(at::arange(4 * 6, at::kFloat) * (step + 2)).reshape({4, 6});
}

/// Copies of a model's values, in every stage. Collective.
inline std::vector<at::Tensor> whole_values(Accelerator& accelerator, const EngineNet& net) {
  std::vector<at::Tensor> values;
  accelerator.with_gathered_parameters(net->parameters(), [&] {
    for (const at::Tensor& parameter : net->parameters()) {
      values.push_back(parameter.detach().clone());
    }
  });
  return values;
}

inline void expect_values(
    const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::allclose(values[i], expected[i], 1e-5, 1e-6)) << values[i] << expected[i];
  }
}

inline std::string simple_config(int micro_steps, int stage = 0) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": )" +
         std::to_string(micro_steps) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization":
         {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

/// `body` on `world` ranks, threads of this process, each with what `initialize` wants.
inline void on_engine_ranks(
    int world,
    const std::string& config,
    const std::function<void(InitializeOptions options)>& body) {
  ranks(world, [&](Group group) {
    WorldSpec spec;
    spec.rank = spec.local_rank = group.rank();
    spec.size = spec.local_size = group.size();
    InitializeOptions options{.config_json = config};
    options.connected = InitializeOptions::Connected{spec, std::move(group)};
    body(std::move(options));
  });
}

}  // namespace lockstep
