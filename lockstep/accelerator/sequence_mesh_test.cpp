// SPDX-License-Identifier: Apache-2.0
// Training with cp and sp equals training in one process on the global batch.
#include <filesystem>
#include <mutex>
#include <string>

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/test_weights.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/tensor_parallel/test_gpt.h"
#include "lockstep/zero/activation/activation_checkpoint.h"

namespace lockstep::sequence_mesh {
namespace {

using test_gpt::Gpt;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 12;
constexpr int64_t kLength = test_gpt::kPositions;

/// Selects how the loss of a part is weighted.
enum class Weighting {
  kPlain,    ///< One process without a scope: the mean over the labels of the batch.
  kMean,     ///< SequenceScope::mean.
  kCount,    ///< backward(loss_sum, count).
  kOwnMean,  ///< Wrong: the mean over the part's own labels.
};

struct Job {
  int world = 1;
  MeshShape mesh = {};
  Weighting weighting = Weighting::kMean;
  int zero_stage = 0;
  bool sequence_parallel = false;
  bool activation_checkpointing = false;
  int64_t accumulation = 1;
  std::filesystem::path save_to = {};    ///< After the first pass.
  std::filesystem::path load_from = {};  ///< Before the only pass.
  bool opens_scope = true;
  bool keeps_plain_arange = false;
};

at::Tensor all_texts() {
  return at::randint(
      test_gpt::kWords,
      {4 * kGlobalBatch, kLength + 1},
      at::detail::createCPUGenerator(11),
      at::kLong);
}

/// Returns labels, each the next word. Two of each text are ignored, at the end and in the first
/// half, so that the parts of a sequence have different numbers of them.
at::Tensor all_labels(const at::Tensor& texts) {
  at::Tensor labels = texts.slice(1, 1).clone();
  labels.select(1, kLength - 1).fill_(-100);
  labels.select(1, 1).fill_(-100);
  return labels;
}

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options = mesh_options(
      job.mesh,
      job.sequence_parallel ? test_gpt::sequence_plan() : test_gpt::plan(),
      job.zero_stage,
      job.sequence_parallel);
  options.gradient_accumulation_steps = job.accumulation;
  return options;
}

Gpt make_gpt(bool checkpoints) {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  Gpt model;
  model->to(at::kDouble);
  if (checkpoints) {
    model->run_block = [](const test_gpt::Block& block, const at::Tensor& x) {
      return activation_checkpoint(block, x);
    };
  }
  return model;
}

at::Tensor loss_sum(Gpt& model, const at::Tensor& tokens, const at::Tensor& labels) {
  return at::cross_entropy_loss(
      model(tokens).flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum);
}

/// Does forward and backward of one micro-step. Returns the loss of the whole line.
template <typename Batch>
at::Tensor micro_step(const Job& job, Accelerator& accelerator, Gpt& model, const Batch& batch) {
  if (job.weighting == Weighting::kPlain || !job.opens_scope) {
    const at::Tensor loss =
        loss_sum(model, batch.data, batch.target) / (batch.target != -100).sum();
    accelerator.backward(loss);
    return loss;
  }
  const SequenceScope scope(
      accelerator.mesh(),
      {{batch.data}, {batch.target}},
      SequenceScopeOptions{.arange_gives_positions = !job.keeps_plain_arange});
  EXPECT_EQ(batch.data.size(1), kLength / accelerator.mesh().sequence.size());
  const at::Tensor sum = loss_sum(model, batch.data, batch.target);
  const at::Tensor count = (batch.target != -100).sum();
  if (job.weighting == Weighting::kOwnMean) {
    accelerator.backward(sum / count);
    return sum / count;
  }
  const at::Tensor mean = scope.mean(sum, count);
  if (job.weighting == Weighting::kMean) {
    accelerator.backward(mean);
  } else {
    accelerator.backward(sum, count.item<double>());
  }
  return mean;
}

/// Trains for two passes; with `load_from` for the second one. Returns rank 0's weights, after a
/// check that all ranks have the same.
Weights train(const Job& job) {
  Weights result;
  std::mutex mutex;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    Gpt model = make_gpt(job.activation_checkpointing);
    const int64_t rows = kGlobalBatch / job.accumulation / accelerator.mesh().data.size();
    const at::Tensor texts = all_texts();
    data::Loader loader(
        data::TensorDataset(texts.slice(1, 0, kLength), all_labels(texts)), {.batch_size = rows});
    optim::SGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
    auto [prepared, updates, batches] = accelerator.prepare(model, optimizer, loader);
    if (!job.load_from.empty()) {
      accelerator.load_state(job.load_from);
    }
    for (int pass = job.load_from.empty() ? 0 : 1; pass < 2; ++pass) {
      for (auto& batch : batches) {
        const auto scope = accelerator.accumulate();
        const at::Tensor loss = micro_step(job, accelerator, model, batch);
        EXPECT_EQ(batch.data.size(1), kLength);  // Restored.
        EXPECT_EQ(batch.target.size(1), kLength);
        EXPECT_EQ(
            accelerator.gather_for_metrics(batch.data).size(0), kGlobalBatch / job.accumulation);
        EXPECT_LT(accelerator.reduce(loss.detach(), ReduceOp::kAvg).item<double>(), 8);
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

const Weights& trained_alone() {
  static const Weights weights = train({.weighting = Weighting::kPlain});
  return weights;
}

class OnASequenceMesh : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(OnASequenceMesh, TrainsAsOneProcessDoes) {
  EXPECT_LE(largest_difference(train(GetParam().second), trained_alone()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    OnASequenceMesh,
    testing::Values(
        std::pair("one_process", Job{}),
        std::pair("cp", Job{.world = 2, .mesh = {.cp = 2}}),
        std::pair("cp_of_four", Job{.world = 4, .mesh = {.cp = 4}}),
        std::pair("sp", Job{.world = 2, .mesh = {.sp = 2}}),
        std::pair("cp_counts", Job{.world = 2, .mesh = {.cp = 2}, .weighting = Weighting::kCount}),
        std::pair("cp_and_data", Job{.world = 4, .mesh = {.cp = 2}, .accumulation = 2}),
        std::pair("sp_and_data", Job{.world = 4, .mesh = {.sp = 2}, .accumulation = 2}),
        std::pair(
            "cp_and_data_counts",
            Job{.world = 4, .mesh = {.cp = 2}, .weighting = Weighting::kCount, .accumulation = 2}),
        std::pair("cp_and_tensor", Job{.world = 4, .mesh = {.cp = 2, .tp = 2}, .accumulation = 2}),
        std::pair("sp_and_tensor", Job{.world = 4, .mesh = {.sp = 2, .tp = 2}}),
        std::pair(
            "cp_and_tensor_sequence",
            Job{.world = 4, .mesh = {.cp = 2, .tp = 2}, .sequence_parallel = true}),
        std::pair("eight", Job{.world = 8, .mesh = {.cp = 2, .tp = 2}}),
        std::pair(
            "activation_checkpointing",
            Job{.world = 2, .mesh = {.cp = 2}, .activation_checkpointing = true}),
        std::pair("zero_1", Job{.world = 2, .mesh = {.cp = 2}, .zero_stage = 1, .accumulation = 2}),
        std::pair("zero_2", Job{.world = 2, .mesh = {.sp = 2}, .zero_stage = 2}),
        std::pair("zero_3", Job{.world = 4, .mesh = {.cp = 2}, .zero_stage = 3, .accumulation = 2}),
        std::pair("zero_3_sp", Job{.world = 2, .mesh = {.sp = 2}, .zero_stage = 3}),
        std::pair("zero_3_tensor", Job{.world = 4, .mesh = {.cp = 2, .tp = 2}, .zero_stage = 3})),
    [](const auto& one) { return one.param.first; });

TEST(SequenceMesh, ACheckpointFitsOtherMeshes) {
  const TestFolder folder;
  const std::filesystem::path saved = folder.path() / "saved";
  EXPECT_LE(
      largest_difference(
          train({.world = 4, .mesh = {.cp = 2}, .zero_stage = 1, .save_to = saved}),
          trained_alone()),
      1e-12);
  for (Job resumed :
       {Job{.world = 4, .mesh = {.cp = 2}, .zero_stage = 1},
        Job{},
        Job{.world = 2, .mesh = {.sp = 2}},
        Job{.world = 2, .mesh = {.tp = 2}}}) {
    resumed.load_from = saved;
    SCOPED_TRACE(mesh_text(resumed.mesh));
    EXPECT_LE(largest_difference(train(resumed), trained_alone()), 1e-12);
  }
}

TEST(SequenceMesh, WrongLoopsTrainAnotherModel) {
  EXPECT_GT(
      largest_difference(
          train({.world = 2, .mesh = {.cp = 2}, .weighting = Weighting::kOwnMean}),
          trained_alone()),
      1e-6);
  EXPECT_GT(
      largest_difference(
          train({.world = 2, .mesh = {.cp = 2}, .keeps_plain_arange = true}), trained_alone()),
      1e-6);
}

std::string error_of_job(const Job& job) {
  return error_of<ConfigError>([&] { train(job); });
}

TEST(SequenceMesh, AForgottenScopeIsAnError) {
  EXPECT_THAT(
      error_of_job({.world = 2, .mesh = {.cp = 2}, .opens_scope = false}),
      HasSubstr("backward was called outside of a SequenceScope"));
}

TEST(SequenceMesh, ALossWithoutAttentionIsAnError) {
  accelerated_ranks(2, {.mesh = MeshShape{.sp = 2}}, [](Accelerator& accelerator) {
    torch::nn::Linear net(4, 4);
    accelerator.prepare(net);
    at::Tensor x = at::ones({3, 8, 4});
    const SequenceScope scope(accelerator.mesh(), {{x}});
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.backward(net(x).sum()); }),
        HasSubstr("has called no scaled_dot_product_attention"));
    accelerator.group().barrier();
  });
}

TEST(SequenceMesh, BuffersAreCutAndRestored) {
  accelerated_ranks(2, {.mesh = MeshShape{.cp = 2}}, [](Accelerator& accelerator) {
    const int rank = accelerator.process_index();
    const at::Tensor data = at::arange(24).view({2, 12}).clone();
    const at::Tensor tokens = data.slice(1, 0, 8);
    const at::Tensor handle = tokens;
    const at::Tensor kept = data.slice(1, 4, 12).clone();
    const at::Tensor own = rank == 0 ? at::tensor({0, 1, 6, 7}) : at::tensor({2, 3, 4, 5});
    {
      const SequenceScope scope(accelerator.mesh(), {{tokens}, {.tensor = kept, .restore = false}});
      EXPECT_TRUE(at::equal(scope.positions(), own));
      EXPECT_TRUE(at::equal(handle[0], own));
      EXPECT_TRUE(at::equal(kept[0], own + 4));
      EXPECT_TRUE(at::equal(at::arange(4), own));
      EXPECT_TRUE(at::equal(at::arange(0, 4, at::kDouble), own.to(at::kDouble)));
      EXPECT_TRUE(at::equal(at::arange(1, 4), at::tensor({1, 2, 3})));
      EXPECT_TRUE(at::equal(scope.gather(handle), data.slice(1, 0, 8)));
      handle.fill_(-1);
    }
    EXPECT_TRUE(at::equal(handle, at::arange(24).view({2, 12}).slice(1, 0, 8)));
    EXPECT_TRUE(at::equal(data, at::arange(24).view({2, 12})));
    EXPECT_EQ(kept.size(1), 4);
    EXPECT_TRUE(at::equal(at::arange(4), at::tensor({0, 1, 2, 3})));
  });
}

TEST(SequenceMesh, TheFirstRowsOfATableOfPositionsAreAnError) {
  accelerated_ranks(2, {.mesh = MeshShape{.cp = 2}}, [](Accelerator& accelerator) {
    const at::Tensor tokens = at::zeros({3, 8});
    const at::Tensor parameter = at::ones({1, 16, 5}).requires_grad_();
    const at::Tensor buffer = at::ones({8, 5});
    const auto error = [](const auto& read) { return error_of<ConfigError>(read); };
    {
      const SequenceScope scope(accelerator.mesh(), {{tokens}});
      EXPECT_THAT(
          error([&] { parameter.slice(1, 0, 4); }),
          HasSubstr("the first 4 of 16 elements of a parameter or buffer of shape [1, 16, 5]"));
      EXPECT_THAT(error([&] { parameter.narrow(-2, 0, 4); }), HasSubstr("index it by arange(4)"));
      EXPECT_THAT(error([&] { buffer.slice(0, 0, 4); }), HasSubstr("the first 4 of 8"));
      {
        const at::NoGradGuard no_grad;
        EXPECT_THAT(error([&] { parameter.slice(1, 0, 4); }), HasSubstr("the first 4 of 16"));
      }
      // Neither is of positions.
      EXPECT_EQ(error([&] { parameter.slice(1, 0, 5); }), "no error");
      EXPECT_EQ(error([&] { parameter.slice(1, 4, 8); }), "no error");
      EXPECT_EQ(error([&] { (parameter * 2).slice(1, 0, 4); }), "no error");
      EXPECT_EQ(error([&] { at::ones({7, 2}).slice(0, 0, 4); }), "no error");
      const at::Tensor own = parameter.index_select(1, at::arange(4));
      EXPECT_EQ(own.size(1), 4);
    }
    const SequenceScope plain(
        accelerator.mesh(), {{tokens}}, SequenceScopeOptions{.arange_gives_positions = false});
    EXPECT_EQ(error([&] { parameter.slice(1, 0, 4); }), "no error");
  });
}

TEST(SequenceMesh, WrongBuffersAreErrors) {
  accelerated_ranks(2, {.mesh = MeshShape{.cp = 2}}, [](Accelerator& accelerator) {
    const auto error = [&](std::vector<SequenceBuffer> buffers) {
      return error_of<ConfigError>(
          [&] { const SequenceScope scope(accelerator.mesh(), std::move(buffers)); });
    };
    const at::Tensor tokens = at::zeros({3, 8});
    EXPECT_THAT(error({}), HasSubstr("no buffer is given"));
    EXPECT_THAT(error({{tokens, 2}}), HasSubstr("buffer 0 has 2 dimensions"));
    EXPECT_THAT(error({{tokens}, {at::zeros({3, 7})}}), HasSubstr("buffer 1 has 7 positions"));
    EXPECT_THAT(error({{tokens}, {tokens}}), HasSubstr("buffers 0 and 1 are the same tensor"));
    EXPECT_THAT(
        error({{at::zeros({3, 8}).requires_grad_()}}), HasSubstr("buffer 0 requires a gradient"));
    EXPECT_THAT(error({{at::zeros({3, 6})}}), HasSubstr("pad the sequence to 8 positions"));
    EXPECT_EQ(tokens.size(1), 8);
    const at::Tensor square = at::zeros({4, 8});
    const SequenceScope scope(accelerator.mesh(), {{square}});
    EXPECT_THAT(error_of<ConfigError>([] { at::arange(4); }), HasSubstr("may be the positions"));
  });
}

}  // namespace
}  // namespace lockstep::sequence_mesh
