// SPDX-License-Identifier: Apache-2.0
// One process: against transformers' layers, by numeric gradients, and by what the options say.
#include "lockstep/expert_parallel/moe.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/expert_parallel/test_golden.h"

namespace lockstep::expert_parallel {
namespace {

using nn::MoE;
using nn::MoEOptions;
using nn::SharedExpertMode;
using nn::SwiGLU;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

MoEOptions small() {
  return {.hidden_size = 8, .num_experts = 4, .intermediate_size = 12};
}

/// Fills a layer as make_experts.py fills transformers' one. There all experts' gate_proj (w1) and
/// up_proj (w3) are one parameter, and all down_proj (w2) another one.
void fill(MoE& layer) {
  const at::NoGradGuard no_grad;
  auto parameters = layer->named_parameters();
  const auto numbers = [](at::IntArrayRef shape, int64_t i) { return made(shape, 17 * i, 1500); };
  parameters["gate.weight"].copy_(numbers({4, 8}, 0));
  const at::Tensor gate_up = numbers({4, 24, 8}, 1);
  const at::Tensor down = numbers({4, 8, 12}, 2);
  for (int64_t e = 0; e < 4; ++e) {
    const std::string expert = "experts." + std::to_string(e);
    parameters[expert + ".w1.weight"].copy_(gate_up[e].narrow(0, 0, 12));
    parameters[expert + ".w3.weight"].copy_(gate_up[e].narrow(0, 12, 12));
    parameters[expert + ".w2.weight"].copy_(down[e]);
  }
  if (parameters.contains("shared_expert_gate.weight")) {
    parameters["shared_expert.w1.weight"].copy_(numbers({10, 8}, 3));
    parameters["shared_expert.w3.weight"].copy_(numbers({10, 8}, 4));
    parameters["shared_expert.w2.weight"].copy_(numbers({8, 10}, 5));
    parameters["shared_expert_gate.weight"].copy_(numbers({1, 8}, 6));
  }
}

void expect_as_transformers(MoE& layer, const nlohmann::json& it) {
  fill(layer);
  const at::Tensor input = made({2, 6, 8}, 3).requires_grad_();
  const at::Tensor output = layer(input);
  expect_golden(output, it["output"], "output");
  (output * made(output.sizes(), 7)).sum().backward();
  expect_golden(input.grad(), it["input_gradient"], "input's gradient");
  std::vector<at::Tensor> gate_up;
  std::vector<at::Tensor> down;
  for (const auto& item : layer->named_parameters()) {
    if (item.key().ends_with("w2.weight") && item.key().starts_with("experts")) {
      down.push_back(item.value().grad());
    }
  }
  auto parameters = layer->named_parameters();
  for (int64_t e = 0; e < 4; ++e) {
    const std::string expert = "experts." + std::to_string(e);
    gate_up.push_back(parameters[expert + ".w1.weight"].grad());
    gate_up.push_back(parameters[expert + ".w3.weight"].grad());
  }
  const auto& gradients = it["gradients"];
  expect_golden(parameters["gate.weight"].grad(), gradients["gate.weight"], "router");
  expect_golden(at::cat(gate_up), gradients["experts.gate_up_proj"], "w1 and w3");
  expect_golden(at::cat(down), gradients["experts.down_proj"], "w2");
  if (parameters.contains("shared_expert_gate.weight")) {
    expect_golden(
        parameters["shared_expert.w2.weight"].grad(),
        gradients["shared_expert.down_proj.weight"],
        "shared expert");
    expect_golden(
        parameters["shared_expert_gate.weight"].grad(),
        gradients["shared_expert_gate.weight"],
        "shared expert's gate");
  }
}

TEST(MoE, EqualsTransformersMixtralGroupedAndByLoop) {
  for (const bool grouped : {true, false}) {
    MoEOptions options = small();
    options.grouped_mm = grouped;
    MoE layer(options);
    expect_as_transformers(layer, golden()["mixtral"]);
  }
}

TEST(MoE, EqualsTransformersQwen2MoeWithItsSharedExpert) {
  MoEOptions options = small();
  options.router.norm_topk_prob = false;
  options.shared_expert = [] { return torch::nn::AnyModule(SwiGLU(8, 10)); };
  options.shared_expert_mode = SharedExpertMode::kSigmoidGate;
  MoE layer(options);
  expect_as_transformers(layer, golden()["qwen2_moe"]);
}

TEST(MoE, AddsASharedExpertAsDeepSpeedsResidual) {
  MoEOptions options = small();
  options.shared_expert = [] { return torch::nn::AnyModule(torch::nn::Linear(8, 8)); };
  options.shared_expert_mode = SharedExpertMode::kResidual;
  MoE layer(options);
  MoE routed_only(small());
  auto parameters = layer->named_parameters();
  const at::NoGradGuard no_grad;
  for (auto& item : routed_only->named_parameters()) {
    item.value().copy_(parameters[item.key()]);
  }
  const at::Tensor input = made({5, 8}, 3);
  const at::Tensor c = at::softmax(
      at::linear(input, parameters["coefficient.weight"], parameters["coefficient.bias"]), -1);
  const at::Tensor shared =
      at::linear(input, parameters["shared_expert.weight"], parameters["shared_expert.bias"]);
  const at::Tensor expected = routed_only(input) * c.slice(1, 0, 1) + shared * c.slice(1, 1, 2);
  EXPECT_LT(difference(layer(input), expected), 1e-6);
}

/// An expert of the program's own, with another nonlinearity.
struct TanhExpertImpl : torch::nn::Module {
  TanhExpertImpl() { inner = register_module("inner", torch::nn::Linear(8, 8)); }
  at::Tensor forward(const at::Tensor& rows) { return at::tanh(inner(rows)); }
  torch::nn::Linear inner{nullptr};
};
TORCH_MODULE(TanhExpert);

/// Compares the gradient of `of(parameter)` by autograd with central differences, on all ranks at
/// once: `changed_rank` changes its tensor, and all ranks' losses count.
void expect_numeric_gradient(
    Group group,
    int changed_rank,
    const at::Tensor& changed,
    const std::function<at::Tensor()>& loss) {
  const at::Tensor gradient = changed.defined() ? changed.grad().detach().clone() : at::Tensor();
  constexpr double kStep = 1e-5;
  const at::Tensor size = at::full({1}, changed.defined() ? changed.numel() : 0, at::kLong);
  const int64_t count = group.broadcast(size, changed_rank).wait().item<int64_t>();
  const at::NoGradGuard no_grad;
  const bool is_mine = group.rank() == changed_rank;
  for (int64_t i = 0; i < count; ++i) {
    double sums[2] = {0, 0};
    for (const int side : {0, 1}) {
      at::Tensor element;
      if (is_mine) {
        element = changed.detach().view({-1})[i];
        element.add_(side == 0 ? kStep : -kStep);
      }
      sums[side] = group.all_reduce(loss().detach().clone()).wait().item<double>();
      if (is_mine) {
        element.add_(side == 0 ? -kStep : kStep);
      }
    }
    if (is_mine) {
      EXPECT_NEAR(gradient.view({-1})[i].item<double>(), (sums[0] - sums[1]) / (2 * kStep), 2e-8)
          << "element " << i;
    }
  }
}

TEST(MoE, HasTheGradientsOfFiniteDifferencesInFloat64) {
  for (const int size : {1, 2}) {
    for (const bool drops : {false, true}) {
      ranks(size, [&](Group group) {
        MoEOptions options = small();
        // The sum of all ranks' losses is differentiated, not their mean.
        options.average_expert_gradients = false;
        if (drops) {
          options.router.capacity_factor = 0.6;
          options.router.min_capacity = 1;
          options.router.drop_policy = DropPolicy::kPosition;
        } else {
          options.intermediate_size = 0;
          options.expert = [] { return torch::nn::AnyModule(TanhExpert()); };
        }
        MoE layer(options, group);
        layer->to(at::kDouble);
        if (!drops) {
          const at::NoGradGuard no_grad;
          layer->named_parameters()["gate.weight"].copy_(made({4, 8}, 2, 300, at::kDouble));
        }
        const at::Tensor input =
            made({3 + group.rank(), 8}, int64_t{40} * group.rank(), 300, at::kDouble)
                .requires_grad_();
        const auto loss = [&] {
          const at::Tensor output = layer(input);
          return (output * made(output.sizes(), 5, 300, at::kDouble)).sum() + layer->l_aux();
        };
        loss().backward();
        // The router has a copy on each rank, which are changed one by one.
        for (int rank = 0; rank < size; ++rank) {
          expect_numeric_gradient(group, rank, input, loss);
          for (const auto& item : layer->named_parameters()) {
            const bool is_small = item.key().ends_with("gate.weight") || !drops;
            if (is_small && !item.key().ends_with("inner.weight")) {
              expect_numeric_gradient(group, rank, item.value(), loss);
            }
          }
        }
      });
    }
  }
}

TEST(MoE, AcceptsTokensOfAnyShapeAndNone) {
  MoE layer(small());
  EXPECT_THAT(layer(at::zeros({2, 3, 8})).sizes(), ElementsAre(2, 3, 8));
  EXPECT_THAT(layer(at::ones({8})).sizes(), ElementsAre(8));
  const at::Tensor none = layer(at::zeros({2, 0, 8}));
  EXPECT_THAT(none.sizes(), ElementsAre(2, 0, 8));
  none.sum().backward();
  for (const auto& item : layer->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_EQ(item.value().grad().abs().max().item<float>(), 0) << item.key();
  }
}

TEST(MoE, UsesTheCapacityOfEvalModeAndNoNoiseThere) {
  MoEOptions options = small();
  options.router.capacity_factor = 0.25;
  options.router.min_capacity = 1;
  options.eval_capacity_factor = 2.0;
  options.router.noisy_gate_policy = NoisyGatePolicy::kJitter;
  MoE layer(options);
  const at::Tensor input = made({16, 8}, 3, 100);
  layer(input);
  EXPECT_FALSE(layer->routing().kept.all().item<bool>());
  const at::Tensor noisy = layer->routing().logits;
  layer->eval();
  layer(input);
  EXPECT_TRUE(layer->routing().kept.all().item<bool>());
  const at::Tensor weight = layer->named_parameters()["gate.weight"];
  EXPECT_TRUE(layer->routing().logits.equal(at::linear(input, weight)));
  // Each number of the input has changed by at most 1 %.
  const at::Tensor change = (noisy - layer->routing().logits).abs();
  const at::Tensor limit = at::linear(input.abs(), weight.abs()) * 0.01001;
  EXPECT_TRUE(change.le(limit).all().item<bool>());
  EXPECT_GT(change.max().item<float>(), 0);
}

TEST(MoE, RoutesInFloat32UnderAutocast) {
  MoE layer(small());
  const at::Tensor input = made({16, 8}, 3, 500);
  const at::Tensor expected = layer(input);
  const at::Tensor experts = layer->routing().experts;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::Tensor output;
  {
    const c10::impl::IncludeDispatchKeyGuard keys(c10::autocast_dispatch_keyset);
    output = layer(input);
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(layer->routing().logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(layer->routing().experts.equal(experts));
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_LT(difference(output, expected), 0.02);
  EXPECT_GT(difference(output, expected), 0);
}

TEST(MoE, NamesTheExpertParametersOfAModel) {
  torch::nn::Sequential model(torch::nn::Linear(8, 8), MoE(small()), torch::nn::Linear(8, 2));
  const NamedTensors experts = expert_parameters(*model);
  ASSERT_EQ(experts.size(), 12);
  EXPECT_EQ(experts[0].name, "1.experts.0.w1.weight");
  EXPECT_EQ(experts[11].name, "1.experts.3.w3.weight");
  EXPECT_TRUE(experts[11].tensor.is_same(model->named_parameters()["1.experts.3.w3.weight"]));
  EXPECT_EQ(expert_parameters(*MoE(small()))[0].name, "experts.0.w1.weight");
  EXPECT_TRUE(expert_parameters(*torch::nn::Linear(2, 2)).empty());
}

TEST(MoE, RefusesOptionsThatDoNotFit) {
  const auto expect_refused = [](const std::function<void(MoEOptions&)>& change, const char* why) {
    MoEOptions options = small();
    change(options);
    EXPECT_THAT([&] { MoE layer(options); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  expect_refused([](MoEOptions& it) { it.num_experts = 0; }, "num_experts 0");
  expect_refused([](MoEOptions& it) { it.intermediate_size = 0; }, "expected one of both");
  expect_refused([](MoEOptions& it) { it.router.k = 5; }, "expected 1 to 4");
  expect_refused([](MoEOptions& it) { it.eval_capacity_factor = 1.0; }, "dropless router");
  expect_refused(
      [](MoEOptions& it) { it.shared_expert_mode = SharedExpertMode::kResidual; },
      "set shared_expert");
  MoE layer(small());
  EXPECT_THAT(
      [&] {
        layer(at::zeros({2, 7}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("got [2, 7], expected [..., 8]")));
  EXPECT_THAT(
      [&] { layer->routing(); }, ThrowsMessage<ConfigError>(HasSubstr("call forward first")));
  MoEOptions wrong = small();
  wrong.intermediate_size = 0;
  wrong.expert = [] { return torch::nn::AnyModule(torch::nn::Linear(8, 3)); };
  MoE wide(wrong);
  EXPECT_THAT(
      [&] {
        wide(at::zeros({2, 8}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("must return the shape of its input")));
}

}  // namespace
}  // namespace lockstep::expert_parallel
