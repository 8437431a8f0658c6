// SPDX-License-Identifier: Apache-2.0
// The ranks of a mesh send as many bytes in an update as the formulas of the documents say, and
// nothing that could be left out.
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/test_weights.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/comm/thread/test_left_out.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/expert_parallel/moe.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/pipeline/pipeline_module.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep::mesh_communication {
namespace {

using test_gpt::kPositions;
using test_gpt::kWidth;
using test_gpt::kWords;
using testing::Contains;
using testing::Pair;

constexpr int64_t kBatch = 8;
constexpr int64_t kMicroBatches = 2;
constexpr int64_t kBlocks = 2;
constexpr int64_t kBytes = 8;  ///< Of a double.

struct Job {
  int world = 1;
  MeshShape mesh = {};
  bool sequence_parallel = false;  ///< Of tp.
  int zero_stage = 0;
  bool has_experts = false;
};

struct Trained {
  Weights weights = {};
  std::vector<CommsLogRow> rows = {};  ///< What rank 0 sent in the update.
  std::string left_out = {};
};

/// Trains one batch with a loss that is a mean over its texts.
template <typename Model, typename Loss>
Trained train_model(
    Accelerator& accelerator,
    Model& model,
    const Loss& loss,
    CommsLog& log,
    const LeftOut& leaves_out) {
  const at::Tensor tokens =
      at::randint(kWords, {kBatch, kPositions + 1}, at::detail::createCPUGenerator(11), at::kLong);
  data::Loader loader(
      data::TensorDataset(
          tokens.slice(1, 0, kPositions).contiguous(), tokens.slice(1, 1).contiguous()),
      {.batch_size = kBatch / accelerator.mesh().data.size()});
  auto [prepared, updates, batches] =
      accelerator.prepare(model, optim::SGD(model->parameters(), {.lr = 0.1}), loader);
  const std::vector<CommsLogRow> before = log.rows();
  at::Tensor own_loss;
  for (auto& batch : batches) {
    left_out() = leaves_out;
    left_out().counts = true;
    own_loss = loss(batch.data, batch.target).detach().clone();
    accelerator.clip_grad_norm_(model->parameters(), 0.1);
    updates.step();
    updates.zero_grad();
    left_out().counts = false;
  }
  Trained result{.rows = log.rows(), .left_out = left_out().what};
  for (CommsLogRow& row : result.rows) {
    for (const CommsLogRow& earlier : before) {
      const bool is_same = row.operation == earlier.operation && row.bytes == earlier.bytes &&
                           row.mesh_dims == earlier.mesh_dims;
      row.count -= is_same ? earlier.count : 0;
    }
  }
  result.weights = weights_of(accelerator, *model);
  result.weights["loss"] = own_loss;  // That of all stages of a pipeline.
  return result;
}

at::Tensor mean_loss(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(scores.flatten(0, 1), labels.flatten());
}

Trained train_gpt(Accelerator& accelerator, CommsLog& log, const LeftOut& leaves_out) {
  test_gpt::Gpt model;
  model->to(at::kDouble);
  const auto loss = [&](const at::Tensor& tokens, const at::Tensor& labels) {
    const SequenceScope scope(accelerator.mesh(), {{tokens}, {labels}});
    const at::Tensor sum = mean_loss(model(tokens), labels) * labels.numel();
    const at::Tensor mean = scope.mean(sum, at::tensor(labels.numel()));
    accelerator.backward(mean);
    return mean;
  };
  return train_model(accelerator, model, loss, log, leaves_out);
}

torch::nn::Sequential layers() {
  torch::nn::Sequential all(torch::nn::Embedding(kWords, kWidth));
  for (int64_t i = 0; i < kBlocks; ++i) {
    all->push_back(test_gpt::Block(0));
  }
  all->push_back(torch::nn::Linear(kWidth, kWords));
  return all;
}

Trained train_pipeline(Accelerator& accelerator, CommsLog& log, const LeftOut& leaves_out) {
  torch::nn::Sequential all = layers();
  all->to(at::kDouble);
  pipeline::PipelineModule model(
      pipeline::layers_of(all),
      mean_loss,
      accelerator.mesh(),
      pipeline::PipelineOptions{.micro_batches = kMicroBatches, .cut = pipeline::CutUniformly{}});
  const auto loss = [&](const at::Tensor& tokens, const at::Tensor& labels) {
    const at::Tensor value = model->forward(tokens, labels);
    accelerator.backward(value);
    return value;
  };
  return train_model(accelerator, model, loss, log, leaves_out);
}

struct MixtureImpl : torch::nn::Module {
  explicit MixtureImpl(const Group& group)
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        moe(register_module(
            "moe",
            nn::MoE(
                nn::MoEOptions{.hidden_size = kWidth, .num_experts = 4, .intermediate_size = 6},
                group))),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = words(tokens);
    return head(x + moe(x));
  }
  torch::nn::Embedding words;
  nn::MoE moe;
  torch::nn::Linear head;
};
TORCH_MODULE(Mixture);

Trained train_experts(Accelerator& accelerator, CommsLog& log, const LeftOut& leaves_out) {
  Mixture model(accelerator.mesh().experts);
  model->to(at::kDouble);
  const auto loss = [&](const at::Tensor& tokens, const at::Tensor& labels) {
    const at::Tensor value = mean_loss(model(tokens), labels);
    accelerator.backward(value);
    return value;
  };
  return train_model(accelerator, model, loss, log, leaves_out);
}

/// Trains one update without an operation. Returns rank 0's result; one without weights if a rank
/// has noticed.
Trained train(const Job& job, const LeftOut& leaves_out = {}) {
  AcceleratorOptions options = mesh_options(
      job.mesh,
      job.sequence_parallel ? test_gpt::sequence_plan() : test_gpt::plan(),
      job.zero_stage,
      job.sequence_parallel);
  Trained result;
  std::string left;
  std::mutex mutex;
  try {
    ranks(job.world, [&](const Group& group) {
      at::set_num_threads(1);
      const auto log = std::make_shared<CommsLog>();
      WorldSpec world;
      world.rank = world.local_rank = group.rank();
      world.size = world.local_size = group.size();
      Accelerator accelerator(options, world, logged(leaving_out(group), log));
      {
        const std::lock_guard lock(mutex);
        torch::manual_seed(3);  // torch's default generator is the process's.
      }
      left_out() = {};
      Trained own;
      try {
        own = job.mesh.pp > 1   ? train_pipeline(accelerator, *log, leaves_out)
              : job.has_experts ? train_experts(accelerator, *log, leaves_out)
                                : train_gpt(accelerator, *log, leaves_out);
      } catch (...) {
        const std::lock_guard lock(mutex);
        left = left_out().what;
        throw;
      }
      if (group.rank() == 0) {
        result = own;
      }
    });
  } catch (const Error&) {
    return {.left_out = left};
  }
  return result;
}

bool is_close(const Trained& got, const Trained& expected) {
  return largest_difference(got.weights, expected.weights) < 1e-10;
}

class OfAMesh : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(OfAMesh, NoOperationCanBeLeftOut) {
  const Job job = GetParam().second;
  const Trained expected = train(job);
  ASSERT_FALSE(expected.weights.empty());
  std::vector<std::string> left;
  for (int64_t LeftOut::*const kind : {&LeftOut::collective, &LeftOut::message}) {
    for (int64_t number = 0;; ++number) {
      LeftOut leaves_out;
      leaves_out.*kind = number;
      const Trained got = train(job, leaves_out);
      if (got.left_out.empty()) {
        break;
      }
      left.push_back(got.left_out);
      EXPECT_TRUE(got.weights.empty() || !is_close(got, expected)) << number << ": " << left.back();
    }
  }
  EXPECT_FALSE(left.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    OfAMesh,
    testing::Values(
        std::pair("data", Job{.world = 2}),
        std::pair("zero_1", Job{.world = 2, .zero_stage = 1}),
        std::pair("zero_3", Job{.world = 2, .zero_stage = 3}),
        std::pair("tensor", Job{.world = 2, .mesh = {.tp = 2}}),
        std::pair("sequence", Job{.world = 2, .mesh = {.tp = 2}, .sequence_parallel = true}),
        std::pair("ring", Job{.world = 2, .mesh = {.cp = 2}}),
        std::pair("ulysses", Job{.world = 2, .mesh = {.sp = 2}}),
        std::pair("pipeline", Job{.world = 2, .mesh = {.pp = 2}}),
        std::pair("experts", Job{.world = 2, .mesh = {.ep = 2}, .has_experts = true})),
    [](const auto& one) { return one.param.first; });

/// Returns the bytes of each operation in the groups of `dims`, without small comparisons.
std::map<std::string, int64_t> bytes_of(const Trained& trained, const std::string& dims) {
  std::map<std::string, int64_t> bytes;
  for (const CommsLogRow& row : trained.rows) {
    if (row.mesh_dims == dims && row.count > 0 && row.bytes > 1024) {
      bytes[row.operation] += row.bytes * row.count;
    }
  }
  return bytes;
}

TEST(MeshCommunication, BytesAreThoseOfTheFormulas) {
  constexpr int64_t kHidden = kBatch * kPositions * kWidth * kBytes;
  // Two sums of each block in forward, and two in backward; one of the embedding, and one of the
  // head's input.
  EXPECT_THAT(
      bytes_of(train({.world = 2, .mesh = {.tp = 2}}), "tp"),
      testing::UnorderedElementsAre(
          Pair("all_reduce", (4 * kBlocks + 2) * kHidden),
          Pair("all_gather", kBatch * kPositions * kWords * kBytes)));
  // The same sums, each as a reduce_scatter and an all_gather.
  const auto sequence =
      bytes_of(train({.world = 2, .mesh = {.tp = 2}, .sequence_parallel = true}), "tp");
  EXPECT_THAT(sequence, Contains(Pair("reduce_scatter", (4 * kBlocks + 2) * kHidden)));
  // Keys and values of the other half once in forward; in backward they, and their gradients.
  EXPECT_THAT(
      bytes_of(train({.world = 2, .mesh = {.cp = 2}}), "cp"),
      Contains(Pair("send", 3 * kBlocks * kHidden)));
  // Queries, keys, values and the output, in forward and in backward, of half of the positions.
  EXPECT_THAT(
      bytes_of(train({.world = 2, .mesh = {.sp = 2}}), "sp"),
      Contains(Pair("all_to_all", 8 * kBlocks * kHidden / 2)));
  // The output of the first stage, and the gradient of the other rank.
  EXPECT_THAT(
      bytes_of(train({.world = 2, .mesh = {.pp = 2}}), "pp"), Contains(Pair("send", kHidden)));
  // The gradients of a rank's parts once, and what aligns them.
  constexpr int64_t kBlockPart = 4 * kWidth + (kWidth + 1) * 3 * kWidth / 2 + kWidth * kWidth / 2 +
                                 kWidth + (kWidth + 1) * 4 * kWidth / 2 + 4 * kWidth * kWidth / 2;
  constexpr int64_t kParts =
      kBytes * (kWords * kWidth + kPositions * kWidth + kBlocks * kBlockPart + 2 * kWidth);
  const int64_t sent = bytes_of(train({.world = 4, .mesh = {.tp = 2}}), "dp")["all_reduce"];
  EXPECT_GE(sent, kParts);
  EXPECT_LE(sent, kParts * 21 / 20);
}

TEST(MeshCommunication, ALayerOfExpertsExchangesItsTokensFourTimes) {
  const Trained trained = train({.world = 2, .mesh = {.ep = 2}, .has_experts = true});
  int64_t count = 0;
  for (const CommsLogRow& row : trained.rows) {
    count += row.mesh_dims == "ep" && row.operation == "all_to_all" ? row.count : 0;
  }
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace lockstep::mesh_communication
