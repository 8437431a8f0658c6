// SPDX-License-Identifier: Apache-2.0
// Training with experts on a mesh equals training in one process on the global batch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/test_weights.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/expert_parallel/moe.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using internal::AcceleratorInternals;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kHidden = 8;

/// Returns numbers in [-scale, scale] that differ for each name.
at::Tensor made(at::IntArrayRef shape, const std::string& name, double scale) {
  double phase = 0;
  for (const char letter : name) {
    phase = phase * 1.7 + letter;
  }
  const int64_t count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 12.9898 + std::fmod(phase, 6.28))
      .mul(scale)
      .view(shape);
}

nn::MoEOptions layer_options() {
  return {.hidden_size = kHidden, .num_experts = 4, .intermediate_size = 6, .shared_expert = [] {
            return torch::nn::AnyModule(torch::nn::Linear(kHidden, kHidden));
          }};
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Group& group, const nn::MoEOptions& options = layer_options()) {
    in = register_module("in", torch::nn::Linear(3, kHidden));
    first = register_module("first", nn::MoE(options, group));
    second = register_module("second", nn::MoE(options, group));
    out = register_module("out", torch::nn::Linear(kHidden, 2));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      const bool is_router = item.key().ends_with("gate.weight");
      item.value().copy_(made(item.value().sizes(), item.key(), is_router ? 2 : 0.5));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in(x);
    h = h + first(h);
    h = h + second(h);
    return out(h);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  nn::MoE first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

struct Job {
  int world = 1;
  MeshShape mesh = {};
  int64_t accumulation = 1;
  bool counts = false;                   ///< Losses are sums with counts.
  std::filesystem::path save_to = {};    ///< After the first pass.
  std::filesystem::path load_from = {};  ///< Before the only pass.
  double factor_of_experts = 1;          ///< Multiplies their gradients.
};

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options;
  options.mesh = job.mesh;
  options.gradient_accumulation_steps = job.accumulation;
  return options;
}

template <typename Loader>
void train_pass(
    Accelerator& accelerator, Net& net, Optimizer& updates, Loader& batches, const Job& job) {
  for (const auto& batch : batches) {
    const auto scope = accelerator.accumulate();
    const at::Tensor error = (net(batch.data) - batch.target).square();
    if (job.counts) {
      accelerator.backward(error.sum(), static_cast<double>(error.numel()));
    } else {
      const at::Tensor balance = expert_parallel::load_balancing_loss(
          {net->first->routing(), net->second->routing()}, accelerator.mesh().replicas);
      accelerator.backward(error.mean() + 0.05 * balance);
    }
    accelerator.clip_grad_norm_(net->parameters(), 0.3);
    updates.step();
    updates.zero_grad();
  }
}

/// Trains for two passes; with `load_from` for the second one. Returns the weights of all
/// processes, after a check that they agree.
Weights train(const Job& job) {
  Weights result;
  std::mutex mutex;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    Net net(accelerator.mesh().experts);
    if (job.factor_of_experts != 1) {
      for (const NamedTensor& item : expert_parallel::expert_parameters(*net)) {
        item.tensor.register_hook(
            [&](const at::Tensor& gradient) { return gradient * job.factor_of_experts; });
      }
    }
    const at::Tensor x = made({6 * kGlobalBatch, 3}, "x", 2);
    const data::TensorDataset samples(x, made({6 * kGlobalBatch, 2}, "y", 1));
    const int64_t rows = kGlobalBatch / job.accumulation / accelerator.mesh().data.size();
    optim::AdamW adam(net->parameters(), {.lr = 0.02, .eps = 1e-4});
    auto [model, updates, batches] =
        accelerator.prepare(net, adam, data::Loader(samples, {.batch_size = rows}));
    if (!job.load_from.empty()) {
      accelerator.load_state(job.load_from);
    }
    for (int pass = job.load_from.empty() ? 0 : 1; pass < 2; ++pass) {
      train_pass(accelerator, net, updates, batches, job);
      if (pass == 0 && !job.save_to.empty()) {
        accelerator.save_state(job.save_to);
      }
    }
    const Weights own = weights_of(accelerator, *net);
    const std::lock_guard lock(mutex);
    if (result.empty()) {
      result = own;
    }
    for (const auto& [name, value] : own) {
      EXPECT_LT((value - result.at(name)).abs().max().item<double>(), 1e-12) << name;
    }
  });
  return result;
}

class ExpertsOnAMesh : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(ExpertsOnAMesh, TrainAsInOneProcess) {
  const Job job = GetParam().second;
  const Weights alone = train({.accumulation = job.accumulation, .counts = job.counts});
  EXPECT_LT(largest_difference(train(job), alone), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    ExpertsOnAMesh,
    testing::Values(
        std::pair("data", Job{.world = 2}),
        std::pair("two", Job{.world = 2, .mesh = {.ep = 2}}),
        std::pair("two_of_four", Job{.world = 4, .mesh = {.ep = 2}}),
        std::pair("four", Job{.world = 4, .mesh = {.ep = 4}}),
        std::pair("accumulation", Job{.world = 4, .mesh = {.ep = 2}, .accumulation = 2}),
        std::pair("counts", Job{.world = 4, .mesh = {.ep = 2}, .accumulation = 2, .counts = true})),
    [](const auto& one) { return one.param.first; });

TEST(ExpertMesh, OtherGradientsOfExpertsGiveOtherWeights) {
  const Job job{.world = 4, .mesh = {.ep = 2}, .factor_of_experts = 2};
  EXPECT_GT(largest_difference(train(job), train({})), 1e-4);
}

TEST(ExpertMesh, ACheckpointHasAllExpertsAndFitsEveryMesh) {
  const TestFolder folder;
  const std::filesystem::path saved = folder.path() / "saved";
  const Weights expected = train({});
  EXPECT_LT(
      largest_difference(train({.world = 4, .mesh = {.ep = 2}, .save_to = saved}), expected),
      1e-12);
  for (Job job :
       {Job{.world = 4, .mesh = {.ep = 2}},
        Job{.world = 4, .mesh = {.ep = 4}},
        Job{.world = 2, .mesh = {.ep = 2}},
        Job{.world = 2},
        Job{.world = 1}}) {
    job.load_from = saved;
    SCOPED_TRACE(mesh_text(job.mesh) + " of " + std::to_string(job.world));
    EXPECT_LT(largest_difference(train(job), expected), 1e-12);
  }
}

TEST(ExpertMesh, ACheckpointOfOneProcessIsDivided) {
  const TestFolder folder;
  const std::filesystem::path saved = folder.path() / "saved";
  const Weights expected = train({.save_to = saved});
  EXPECT_LT(
      largest_difference(train({.world = 4, .mesh = {.ep = 2}, .load_from = saved}), expected),
      1e-12);
}

TEST(ExpertMesh, SaveModelWritesTheExpertsOfAllProcesses) {
  const TestFolder folder;
  AcceleratorOptions options;
  options.mesh = MeshShape{.ep = 2};
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    auto net = accelerator.prepare(Net(accelerator.mesh().experts));
    accelerator.save_model(net, folder.path() / "model");
  });
  accelerated_ranks(1, {}, [&](Accelerator& accelerator) {
    Net net{Group()};
    const Weights expected = weights_of(accelerator, *net);
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net->parameters()) {
        parameter.zero_();
      }
    }
    checkpoint::load_checkpoint_in_model(*net, folder.path() / "model");
    EXPECT_EQ(largest_difference(weights_of(accelerator, *net), expected), 0);
  });
}

TEST(ExpertMesh, OneClipCountsEachExpertOnce) {
  at::Tensor alone;
  for (const int size : {1, 2, 4}) {
    AcceleratorOptions options;
    options.mesh = MeshShape{.ep = std::min(size, 2)};
    for (const double type : {2.0, std::numeric_limits<double>::infinity()}) {
      accelerated_ranks(size, options, [&](Accelerator& accelerator) {
        Net net(accelerator.mesh().experts);
        auto [model, updates] = accelerator.prepare(net, optim::AdamW(net->parameters(), {}));
        const int64_t rows = 8 / size;
        const at::Tensor x =
            made({8, 3}, "x", 2).narrow(0, accelerator.mesh().data.rank() * rows, rows);
        accelerator.backward(net(x).square().mean());
        const at::Tensor norm = accelerator.clip_grad_norm_(net->parameters(), 1e9, type);
        if (size == 1) {
          alone = type == 2 ? norm.view({1}) : at::cat({alone, norm.view({1})});
        } else {
          EXPECT_NEAR(norm.item<double>(), alone[type == 2 ? 0 : 1].item<double>(), 1e-12);
        }
      });
    }
  }
}

TEST(ExpertMesh, AnOverflowOfOneExpertSkipsTheUpdateEverywhere) {
  AcceleratorOptions options{.mixed_precision = Precision::kFP16};
  options.mesh = MeshShape{.ep = 2};
  accelerated_ranks(4, options, [&](Accelerator& accelerator) {
    Net net(accelerator.mesh().experts);
    auto [model, updates] = accelerator.prepare(net, optim::AdamW(net->parameters(), {}));
    const Weights before = weights_of(accelerator, *net);
    accelerator.backward(net(made({4, 3}, "x", 2)).square().mean());
    if (accelerator.mesh().experts.rank() == 1) {
      expert_parallel::expert_parameters(*net)[0].tensor.mutable_grad().fill_(
          std::numeric_limits<double>::infinity());
    }
    updates.step();
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(largest_difference(weights_of(accelerator, *net), before), 0);
  });
}

TEST(ExpertMesh, ACopyOfAnExpertThatDiffersIsAnErrorOfSaveState) {
  const TestFolder folder;
  AcceleratorOptions options;
  options.mesh = MeshShape{.ep = 2};
  accelerated_ranks(4, options, [&](Accelerator& accelerator) {
    auto net = accelerator.prepare(Net(accelerator.mesh().experts));
    if (accelerator.world().rank == 3) {
      const at::NoGradGuard no_grad;
      expert_parallel::expert_parameters(*net)[0].tensor.add_(1);
    }
    const std::string error =
        error_of<ConfigError>([&] { accelerator.save_state(folder.path() / "saved"); });
    EXPECT_THAT(error, HasSubstr("parameter first.experts.2."));
  });
}

std::string error_of_prepare(
    int size, const MeshShape& mesh, const std::function<Net(Accelerator&)>& make) {
  std::string message;
  AcceleratorOptions options;
  options.mesh = mesh;
  accelerated_ranks(size, options, [&](Accelerator& accelerator) {
    Net net = make(accelerator);
    const std::string error = error_of<ConfigError>([&] { accelerator.prepare(net); });
    if (accelerator.world().rank == 0) {
      message = error;
    }
  });
  return message;
}

TEST(ExpertMesh, LayersOfAnotherGroupAreErrors) {
  EXPECT_THAT(
      error_of_prepare(2, {.ep = 2}, [](Accelerator&) { return Net(Group()); }),
      HasSubstr("was made for 1 rank, and the mesh has ep = 2"));
  EXPECT_THAT(
      error_of_prepare(2, {}, [](Accelerator& accelerator) { return Net(accelerator.group()); }),
      HasSubstr("was made for 2 ranks, and the mesh has ep = 1"));
  EXPECT_THAT(
      error_of_prepare(
          4,
          {.ep = 2},
          [](Accelerator& accelerator) {
            return Net(accelerator.group().split(accelerator.world().rank % 2));
          }),
      HasSubstr("is on ranks 0 and 1 of the 2 that divide the experts"));
  EXPECT_THAT(
      error_of_prepare(
          2,
          {.ep = 2},
          [](Accelerator& accelerator) {
            nn::MoEOptions options = layer_options();
            options.average_expert_gradients = false;
            return Net(accelerator.mesh().experts, options);
          }),
      HasSubstr("average_expert_gradients is false"));
}

TEST(ExpertMesh, WhatExpertsExcludeIsAnError) {
  const auto error_with = [](int size, AcceleratorOptions options, const MeshShape& mesh) {
    options.mesh = mesh;
    return error_of<ConfigError>([&] { accelerated_ranks(size, options, [](Accelerator&) {}); });
  };
  AcceleratorOptions compressed;
  compressed.data_parallel.comm_hook.type = CommHookType::kPowerSgd;
  EXPECT_THAT(
      error_with(2, compressed, {.ep = 2}), HasSubstr("has ep together with the comm hook"));
  AcceleratorOptions options;
  options.mesh = MeshShape{.ep = 2};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    auto net = accelerator.prepare(Net(accelerator.mesh().experts));
    EXPECT_THAT(
        error_of<ConfigError>([&] { const LocalSgd local_sgd(accelerator, net); }),
        HasSubstr("LocalSgd cannot be combined with experts"));
  });
}

}  // namespace
}  // namespace lockstep
