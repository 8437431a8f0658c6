// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/context_parallel_scope.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/transformerlayer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/context_parallel/test_attention.h"
#include "lockstep/context_parallel/test_language_model.h"
#include "lockstep/context_parallel/test_message_transport.h"

namespace lockstep {
namespace {

using context_parallel::counted;
using context_parallel::difference;
using context_parallel::LanguageModel;
using context_parallel::loss_of;
using context_parallel::SentBytes;
using context_parallel::sines;
using context_parallel::TokenBatch;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLength = 24;

struct LossAndGradients {
  at::Tensor loss;
  std::vector<at::Tensor> gradients = {};
};

LossAndGradients train_alone(at::ScalarType dtype) {
  LanguageModel model(kLength, dtype);
  const TokenBatch batch = TokenBatch::make(2, kLength);
  const at::Tensor loss =
      loss_of(model(batch.tokens, at::arange(kLength, at::kLong)), batch.labels, batch.count());
  loss.backward();
  LossAndGradients result{.loss = loss.detach()};
  for (const at::Tensor& parameter : model->parameters()) {
    result.gradients.push_back(parameter.grad());
  }
  return result;
}

/// Trains the model on parts of the sequence; the results are summed over ranks.
LossAndGradients train_sharded(
    Group group, SequenceLayout layout, AttentionMethod method, at::ScalarType dtype) {
  LanguageModel model(kLength, dtype);
  const TokenBatch full = TokenBatch::make(2, kLength);
  const SequenceShard shard(kLength, group, layout);
  const TokenBatch part = full.part_of(shard);
  at::Tensor loss;
  {
    ContextParallelScope scope(group, shard, method);
    loss = loss_of(model(part.tokens, shard.positions()), part.labels, full.count());
    scope.finish();
    EXPECT_EQ(scope.attention_calls(), group.size() == 1 ? 0 : 2);
  }
  loss.backward();
  LossAndGradients result{.loss = group.all_reduce(loss.detach().clone()).wait()};
  for (const at::Tensor& parameter : model->parameters()) {
    result.gradients.push_back(group.all_reduce(parameter.grad().clone()).wait());
  }
  return result;
}

double largest_difference(const LossAndGradients& got, const LossAndGradients& expected) {
  double largest = difference(got.loss, expected.loss);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    largest = std::max(largest, difference(got.gradients[i], expected.gradients[i]));
  }
  return largest;
}

TEST(ContextParallelScope, TrainsAnUnmodifiedModelAsOneProcessDoes) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const LossAndGradients expected = train_alone(dtype);
    for (const int size : {1, 2, 4}) {
      for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
        for (const auto method : {AttentionMethod::kRing, AttentionMethod::kUlysses}) {
          ranks(size, [&](const Group& group) {
            EXPECT_LE(
                largest_difference(train_sharded(group, layout, method, dtype), expected),
                dtype == at::kDouble ? 1e-12 : 1e-6);
          });
        }
      }
    }
    ranks(3, [&](const Group& group) {
      const auto got =
          train_sharded(group, SequenceLayout::kContiguous, AttentionMethod::kRing, dtype);
      EXPECT_LE(largest_difference(got, expected), dtype == at::kDouble ? 1e-12 : 1e-6);
    });
  }
}

/// Returns how much the loss of parts differs from that of one process if a part is `wrong`.
double difference_of_loss(bool without_scope, bool wrong_positions) {
  const at::Tensor expected = train_alone(at::kDouble).loss;
  double result = 0;
  ranks(2, [&](Group group) {
    LanguageModel model(kLength, at::kDouble);
    const TokenBatch full = TokenBatch::make(2, kLength);
    const SequenceShard shard(kLength, group, SequenceLayout::kZigzag);
    const TokenBatch part = full.part_of(shard);
    ContextParallelScope scope(group, shard, AttentionMethod::kRing);
    const std::unique_ptr<LocalAttentionScope> local(
        without_scope ? new LocalAttentionScope() : nullptr);
    const at::Tensor positions =
        wrong_positions ? at::arange(shard.local_length(), at::kLong) : shard.positions();
    const at::Tensor loss =
        loss_of(model(part.tokens, positions), part.labels, full.count()).detach();
    const double mine = difference(group.all_reduce(loss).wait(), expected);
    if (group.rank() == 0) {
      result = mine;
    }
  });
  return result;
}

TEST(ContextParallelScope, TheLossDiffersWithoutItAndWithOtherPositions) {
  EXPECT_LE(difference_of_loss(false, false), 1e-12);
  EXPECT_GT(difference_of_loss(true, false), 1e-3);
  EXPECT_GT(difference_of_loss(false, true), 1e-3);
}

at::Tensor input() {
  return sines({2, 4, kLength, 8}, 0.5);
}

/// Returns the error of `forward`, which gets this rank's part of input(), on two ranks.
template <typename Forward>
std::string error_within_scope(AttentionMethod method, const Forward& forward) {
  std::string error;
  ranks(2, [&](Group group) {
    const SequenceShard shard(kLength, group);
    const at::Tensor x = shard.shard_sequence(input(), 2);
    ContextParallelScope scope(group, shard, method);
    const std::string mine = error_of([&] {
      forward(x);
      at::scaled_dot_product_attention(x, x, x);  // finish() expects one.
      scope.finish();
    });
    if (group.rank() == 0) {
      error = mine;
    }
  });
  return error;
}

TEST(ContextParallelScope, RefusesArgumentsThatItCannotServe) {
  for (const auto method : {AttentionMethod::kRing, AttentionMethod::kUlysses}) {
    EXPECT_THAT(
        error_within_scope(
            method,
            [](const at::Tensor& x) {
              at::scaled_dot_product_attention(x, x, x, at::ones({12, 12}, at::kBool));
            }),
        HasSubstr("attn_mask is not supported"));
    EXPECT_THAT(
        error_within_scope(
            method,
            [](const at::Tensor& x) { at::scaled_dot_product_attention(x, input(), input()); }),
        HasSubstr("run this attention within a LocalAttentionScope"));
  }
  EXPECT_THAT(
      error_within_scope(
          AttentionMethod::kRing,
          [](const at::Tensor& x) { at::scaled_dot_product_attention(x, x, x, {}, 0.1); }),
      HasSubstr("dropout_p"));
  EXPECT_EQ(
      error_within_scope(
          AttentionMethod::kUlysses,
          [](const at::Tensor& x) { at::scaled_dot_product_attention(x, x, x, {}, 0.1); }),
      "no error");
}

TEST(ContextParallelScope, RefusesAttentionThatItCannotReplace) {
  const auto error = [](const auto& forward) {
    return error_within_scope(AttentionMethod::kRing, forward);
  };
  EXPECT_THAT(
      error([](const at::Tensor& x) {
        at::matmul(at::softmax(at::matmul(x, x.transpose(2, 3)), -1), x);
      }),
      HasSubstr("a softmax over scores of 12 x 12 positions"));
  EXPECT_THAT(
      error([](const at::Tensor& x) {
        torch::nn::MultiheadAttention layer(32, 4);
        const at::Tensor rows = x.to(at::kFloat).permute({2, 0, 1, 3}).flatten(2);
        layer(rows, rows, rows);
      }),
      HasSubstr("a softmax over scores"));
  EXPECT_THAT(
      error([](const at::Tensor& x) { at::_scaled_dot_product_flash_attention_for_cpu(x, x, x); }),
      HasSubstr("_scaled_dot_product_flash_attention_for_cpu computes attention over this rank's"));
  EXPECT_EQ(error([](const at::Tensor& x) { at::softmax(x, -1); }), "no error");
  EXPECT_EQ(
      error([](const at::Tensor& x) {
        const LocalAttentionScope local;
        at::softmax(at::matmul(x, x.transpose(2, 3)), -1);
      }),
      "no error");
}

TEST(ContextParallelScope, ReportsAForwardWithoutAttention) {
  std::mutex mutex;
  std::string logged;
  set_log_sink([&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    logged += line;
  });
  ranks(2, [&](Group group) {
    const SequenceShard shard(kLength, group);
    ContextParallelScope scope(group, shard, AttentionMethod::kRing);
    at::relu(shard.shard_sequence(input(), 2));
    EXPECT_THAT(
        error_of([&] { scope.finish(); }), HasSubstr("has called no scaled_dot_product_attention"));
  });
  EXPECT_EQ(logged, "");
  ranks(2, [&](const Group& group) {
    const ContextParallelScope scope(group, SequenceShard(kLength, group), AttentionMethod::kRing);
  });
  EXPECT_THAT(logged, HasSubstr("has called no scaled_dot_product_attention"));
  set_log_sink({});
}

TEST(ContextParallelScope, ComputesLocalAttentionToKeysThatEveryRankHas) {
  const at::Tensor memory = sines({2, 4, 7, 8}, 2.5);
  const at::Tensor expected = at::scaled_dot_product_attention(input(), memory, memory);
  ranks(2, [&](Group group) {
    const SequenceShard shard(kLength, group);
    const at::Tensor x = shard.shard_sequence(input(), 2);
    const ContextParallelScope scope(group, shard, AttentionMethod::kRing);
    at::Tensor local;
    {
      const LocalAttentionScope full_keys;
      local = at::scaled_dot_product_attention(x, memory, memory);
    }
    EXPECT_LE(difference(local, shard.shard_sequence(expected, 2)), 1e-12);
    EXPECT_EQ(scope.attention_calls(), 0);
    at::scaled_dot_product_attention(x, x, x);
    EXPECT_EQ(scope.attention_calls(), 1);
  });
}

TEST(ContextParallelScope, EndsWithItsBlock) {
  ranks(2, [&](Group group) {
    const SequenceShard shard(kLength, group);
    const at::Tensor x = shard.shard_sequence(input(), 2);
    const at::Tensor before = at::scaled_dot_product_attention(x, x, x);
    {
      const ContextParallelScope scope(group, shard, AttentionMethod::kRing);
      EXPECT_GT(difference(at::scaled_dot_product_attention(x, x, x), before), 1e-3);
    }
    EXPECT_TRUE(at::equal(at::scaled_dot_product_attention(x, x, x), before));
  });
}

TEST(ContextParallelScope, CastsAsAutocastDoesBeforeItSends) {
  const at::Tensor full = input().to(at::kFloat);
  const at::Tensor expected = at::scaled_dot_product_attention(full, full, full, {}, 0, true);
  ranks(2, [&](const Group& given) {
    const auto sent = std::make_shared<SentBytes>();
    const Group group = counted(given, sent);
    const SequenceShard shard(kLength, group);
    const at::Tensor x = shard.shard_sequence(full, 2).clone().requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto torch_dtype = at::scaled_dot_product_attention(x, x, x).scalar_type();
    at::Tensor output;
    {
      const ContextParallelScope scope(group, shard, AttentionMethod::kRing);
      output = at::scaled_dot_product_attention(x, x, x, {}, 0, true);
    }
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(output.scalar_type(), torch_dtype);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_EQ(sent->of(comm::Op::kSend), 2 * 2 * x.numel());
    EXPECT_LE(difference(output, shard.shard_sequence(expected, 2)), 1e-2);
    output.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  });
}

TEST(ContextParallelScope, RefusesAShardOfAnotherGroup) {
  EXPECT_THAT(
      error_of([] {
        const ContextParallelScope scope(Group(), SequenceShard(8, 0, 2), AttentionMethod::kRing);
      }),
      HasSubstr("belongs to another group"));
}

TEST(HiddenAttention, NamesTheSubmodule) {
  struct Net : torch::nn::Module {
    Net() {
      auto inner = std::make_shared<torch::nn::SequentialImpl>();
      inner->push_back(torch::nn::Linear(8, 8));
      inner->push_back(
          torch::nn::TransformerEncoderLayer(torch::nn::TransformerEncoderLayerOptions(8, 2)));
      register_module("layers", inner);
    }
  };
  EXPECT_THAT(
      error_of([] { expect_no_hidden_attention(Net()); }),
      AllOf(HasSubstr("\"layers.1\""), HasSubstr("TransformerEncoderLayer")));
  EXPECT_THAT(
      error_of([] { expect_no_hidden_attention(torch::nn::MultiheadAttentionImpl(8, 2)); }),
      HasSubstr("the module itself"));
  const LanguageModel model(kLength, at::kFloat);
  EXPECT_EQ(error_of([&] { expect_no_hidden_attention(*model); }), "no error");
}

}  // namespace
}  // namespace lockstep
