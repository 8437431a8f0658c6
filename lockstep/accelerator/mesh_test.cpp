// SPDX-License-Identifier: Apache-2.0
// Training on a mesh equals training in one process on the global batch.
#include <mutex>
#include <string>

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/test_weights.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/tensor_parallel/test_gpt.h"
#include "lockstep/zero/activation/activation_checkpoint.h"

namespace lockstep {
namespace {

using test_gpt::Gpt;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 8;

at::Tensor all_tokens() {
  return at::randint(
      test_gpt::kWords,
      {6 * kGlobalBatch, test_gpt::kPositions},
      at::detail::createCPUGenerator(11),
      at::kLong);
}

at::Tensor loss_of_tokens(Gpt& model, const at::Tensor& batch) {
  const at::Tensor logits = model(batch).narrow(1, 0, batch.size(1) - 1);
  return at::cross_entropy_loss(
      logits.flatten(0, 1), batch.narrow(1, 1, batch.size(1) - 1).flatten());
}

Gpt make_gpt(bool tied) {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  Gpt model(tied);
  model->to(at::kDouble);
  return model;
}

struct Job {
  int world = 1;
  MeshShape mesh = {};
  int zero_stage = 0;
  bool sequence_parallel = false;
  bool tied = false;
  bool frozen = false;
  bool activation_checkpointing = false;
  int64_t accumulation = 1;
  std::filesystem::path save_to = {};    ///< After the first pass.
  std::filesystem::path load_from = {};  ///< Before the only pass.
  std::function<void(AcceleratorOptions&)> change = nullptr;
};

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options = mesh_options(
      job.mesh,
      job.sequence_parallel ? test_gpt::sequence_plan(job.tied) : test_gpt::plan(job.tied),
      job.zero_stage,
      job.sequence_parallel);
  options.gradient_accumulation_steps = job.accumulation;
  if (job.change) {
    job.change(options);
  }
  return options;
}

/// Trains for two passes of six batches; with `load_from` for the second one. Returns rank 0's
/// weights, after a check that all ranks have the same.
Weights train(const Job& job) {
  Weights result;
  std::mutex mutex;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    Gpt model = make_gpt(job.tied);
    if (job.frozen) {
      model->positions->weight.set_requires_grad(false);
      model->blocks[0]->as<test_gpt::Block>()->qkv->weight.set_requires_grad(false);
    }
    if (job.activation_checkpointing) {
      model->run_block = [](const test_gpt::Block& block, const at::Tensor& x) {
        return activation_checkpoint(block, x);
      };
    }
    const int64_t rows =
        kGlobalBatch / job.accumulation /
        internal::AcceleratorInternals::objects(accelerator).context.mesh.data.size();
    data::Loader loader(
        data::TensorDataset(all_tokens(), at::arange(6 * kGlobalBatch)), {.batch_size = rows});
    optim::SGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
    auto [prepared, updates, batches] = accelerator.prepare(model, optimizer, loader);
    EXPECT_EQ(
        internal::AcceleratorInternals::objects(accelerator).division_of(model->words->weight) !=
            nullptr,
        job.mesh.tp > 1);
    if (!job.load_from.empty()) {
      accelerator.load_state(job.load_from);
    }
    for (int pass = job.load_from.empty() ? 0 : 1; pass < 2; ++pass) {
      for (const auto& batch : batches) {
        const auto scope = accelerator.accumulate();
        accelerator.backward(loss_of_tokens(model, batch.data));
        accelerator.clip_grad_norm_(model->parameters(), 0.5);
        updates.step();
        updates.zero_grad();
      }
      if (pass == 0 && !job.save_to.empty()) {
        accelerator.save_state(job.save_to);
      }
    }
    const Weights own = weights_of(accelerator, *model);
    const std::lock_guard lock(mutex);
    if (result.empty()) {
      result = own;
    }
    for (const auto& [name, value] : own) {
      EXPECT_TRUE(at::equal(value, result.at(name))) << name;
    }
  });
  return result;
}

void expect_close(const Weights& got, const Weights& expected, double tolerance = 1e-12) {
  EXPECT_LE(largest_difference(got, expected), tolerance);
}

class OnAMesh : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(OnAMesh, TrainsAsOneProcessDoes) {
  const Job job = GetParam().second;
  const Job alone = {.tied = job.tied, .frozen = job.frozen};
  expect_close(train(job), train(alone));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    OnAMesh,
    testing::Values(
        std::pair("data", Job{.world = 2}),
        std::pair("tensor", Job{.world = 2, .mesh = {.tp = 2}}),
        std::pair("tensor_of_four", Job{.world = 4, .mesh = {.tp = 4}}),
        std::pair("tensor_and_data", Job{.world = 4, .mesh = {.tp = 2}}),
        std::pair("eight", Job{.world = 8, .mesh = {.tp = 2}}),
        std::pair("tied", Job{.world = 4, .mesh = {.tp = 2}, .tied = true}),
        std::pair("frozen", Job{.world = 4, .mesh = {.tp = 2}, .frozen = true}),
        std::pair("accumulation", Job{.world = 4, .mesh = {.tp = 2}, .accumulation = 2}),
        std::pair("sequence", Job{.world = 4, .mesh = {.tp = 2}, .sequence_parallel = true}),
        std::pair(
            "activation_checkpointing",
            Job{.world = 4, .mesh = {.tp = 2}, .activation_checkpointing = true}),
        std::pair(
            "activation_checkpointing_of_sequences",
            Job{.world = 4,
                .mesh = {.tp = 2},
                .sequence_parallel = true,
                .activation_checkpointing = true}),
        std::pair(
            "activation_checkpointing_with_zero_3",
            Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 3, .activation_checkpointing = true}),
        std::pair("zero_1", Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 1}),
        std::pair("zero_2", Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 2}),
        std::pair("zero_3", Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 3}),
        std::pair(
            "zero_3_sequence",
            Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 3, .sequence_parallel = true}),
        std::pair(
            "zero_3_tied", Job{.world = 4, .mesh = {.tp = 2}, .zero_stage = 3, .tied = true})),
    [](const auto& one) { return one.param.first; });

TEST(Mesh, ACheckpointFitsEveryMesh) {
  const TestFolder folder;
  const std::filesystem::path saved = folder.path() / "saved";
  const Weights expected = train({});
  expect_close(train({.world = 4, .mesh = {.tp = 2}, .save_to = saved}), expected);
  for (const Job& job :
       {Job{.world = 4, .mesh = {.tp = 2}},
        Job{.world = 1},
        Job{.world = 4},
        Job{.world = 4, .mesh = {.tp = 4}},
        Job{.world = 2, .zero_stage = 3},
        Job{.world = 4, .mesh = {.tp = 2}, .sequence_parallel = true}}) {
    Job resumed = job;
    resumed.load_from = saved;
    SCOPED_TRACE(mesh_text(job.mesh));
    expect_close(train(resumed), expected);
  }
}

TEST(Mesh, ACheckpointOfOneProcessIsDivided) {
  const TestFolder folder;
  const std::filesystem::path saved = folder.path() / "saved";
  const Weights expected = train({.save_to = saved});
  expect_close(train({.world = 4, .mesh = {.tp = 2}, .load_from = saved}), expected);
}

TEST(Mesh, ACheckpointOfZeroOnAMeshFitsOthers) {
  const Weights expected = train({});
  for (const int stage : {1, 2, 3}) {
    const TestFolder folder;
    const std::filesystem::path saved = folder.path() / "saved";
    const Job job{.world = 4, .mesh = {.tp = 2}, .zero_stage = stage};
    Job saving = job;
    saving.save_to = saved;
    expect_close(train(saving), expected);
    for (Job resumed : {job, Job{.world = 1}, Job{.world = 2, .zero_stage = 3}}) {
      resumed.load_from = saved;
      SCOPED_TRACE(resumed.world);
      expect_close(train(resumed), expected);
    }
  }
}

std::string error_on_mesh(const Job& job) {
  return error_of<ConfigError>([&] { train(job); });
}

TEST(Mesh, OptionsThatItExcludesAreErrors) {
  EXPECT_THAT(
      error_on_mesh({.world = 2, .mesh = {.tp = 4}}), HasSubstr("needs a multiple of 4 ranks"));
  EXPECT_THAT(
      error_on_mesh(
          {.world = 2,
           .mesh = {.tp = 2},
           .change = [](AcceleratorOptions& options) { options.tensor_parallel.plan.clear(); }}),
      HasSubstr("tensor_parallel.plan is empty, so 2 processes would compute the same"));
  EXPECT_THAT(
      error_on_mesh(
          {.world = 2,
           .mesh = {.tp = 2},
           .change =
               [](AcceleratorOptions& options) {
                 options.tensor_parallel.without_example = false;
               }}),
      HasSubstr("tensor_parallel.example is not set"));
  EXPECT_THAT(
      error_on_mesh(
          {.world = 2,
           .mesh = {.tp = 2},
           .change = [](AcceleratorOptions& options) { options.shared_parameters = true; }}),
      HasSubstr("shared_parameters needs processes that all hold the full model"));
}

/// A model whose attention has two heads, whatever the width of its input.
struct FixedHeadsImpl : torch::nn::Module {
  FixedHeadsImpl()
      : qkv(register_module("qkv", torch::nn::Linear(8, 24))),
        out(register_module("out", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> heads;
    for (const at::Tensor& part : qkv(x).chunk(3, -1)) {
      heads.push_back(part.view({part.size(0), part.size(1), 2, -1}).transpose(1, 2));
    }
    return out(
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2]).transpose(1, 2).flatten(2));
  }
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(FixedHeads);

/// Two heads with a norm of each, which all processes have.
struct NormedHeadsImpl : torch::nn::Module {
  NormedHeadsImpl()
      : up(register_module("up", torch::nn::Linear(8, 8))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
        down(register_module("down", torch::nn::Linear(8, 1))) {}
  at::Tensor forward(const at::Tensor& x) {
    return down(norm(up(x).view({x.size(0), -1, 4})).flatten(1));
  }
  torch::nn::Linear up;
  torch::nn::LayerNorm norm;
  torch::nn::Linear down;
};
TORCH_MODULE(NormedHeads);

TEST(Mesh, AWholeParameterOfDividedFeaturesNeedsARule) {
  TensorPlan plan = {{"up", TensorStyle::kColwise}, {"down", TensorStyle::kRowwise}};
  for (const bool has_rule : {false, true}) {
    if (has_rule) {
      plan.push_back({"norm", TensorStyle::kWholeSumGradient});
    }
    AcceleratorOptions options;
    options.mesh = MeshShape{.tp = 2};
    options.tensor_parallel = {.plan = plan, .without_example = true};
    accelerated_ranks(2, options, [&](Accelerator& accelerator) {
      NormedHeads net;
      optim::SGD sgd(net->parameters(), {.lr = 0.1});
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model->forward(at::linspace(-1, 1, 24).view({3, 8})).square().sum());
      const std::string error = error_of<ConfigError>([&] { optimizer.step(); });
      EXPECT_THAT(
          error, HasSubstr(has_rule ? "no error" : "the gradient of norm.weight, which all"));
    });
  }
}

TEST(Mesh, AModelIsDividedOnce) {
  AcceleratorOptions options;
  options.mesh = MeshShape{.tp = 2};
  options.tensor_parallel = {.plan = {{"", TensorStyle::kColwiseGather}}, .without_example = true};
  ranks(2, [&](Group group) {
    torch::nn::Linear net(8, 8);
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator first(options, world, group);
    first.prepare(net);
    Accelerator second(options, world, group);
    EXPECT_THAT(
        error_of<ConfigError>([&] { second.prepare(net); }),
        HasSubstr("weight is this process's part already"));
  });
}

TEST(Mesh, AModelThatWouldBecomeAnotherFunctionIsRefused) {
  ranks(2, [](Group group) {
    FixedHeads model;
    AcceleratorOptions options;
    options.mesh = MeshShape{.tp = 2};
    options.tensor_parallel = {
        .plan = {{"qkv", TensorStyle::kColwise, {1, 1, 1}}, {"out", TensorStyle::kRowwise}},
        .example = [&] {
          return model->forward(at::linspace(-1, 1, 48).view({2, 3, 8}));
        }};
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(options, world, std::move(group));
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.prepare(model); }),
        HasSubstr("the divided model computes another function than the full one"));
  });
}

}  // namespace
}  // namespace lockstep
