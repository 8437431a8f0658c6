// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/autocast.h"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr auto kCPU = c10::kCPU;

at::ScalarType product_dtype() {
  return at::ones({2, 3}).matmul(at::ones({3, 2})).scalar_type();
}

struct State {
  bool enabled = at::autocast::is_autocast_enabled(kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool operator==(const State&) const = default;
};

TEST(Autocast, CastsWithinAndRestoresBehind) {
  const State before;
  {
    const Autocast cast(kCPU, at::kHalf);
    EXPECT_EQ(product_dtype(), at::kHalf);
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
  EXPECT_TRUE(State() == before);
}

TEST(Autocast, NestsAndTheInnermostCounts) {
  const Autocast outer(kCPU, at::kBFloat16);
  {
    const Autocast inner(kCPU, at::kHalf);
    EXPECT_EQ(product_dtype(), at::kHalf);
    {
      const Autocast off(kCPU, at::kHalf, /*enabled=*/false, /*cache_enabled=*/false);
      EXPECT_EQ(product_dtype(), at::kFloat);
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(product_dtype(), at::kHalf);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_EQ(product_dtype(), at::kBFloat16);
}

TEST(Autocast, RestoresWhenAnExceptionPasses) {
  const State before;
  EXPECT_THROW(
      {
        const Autocast outer(kCPU, at::kBFloat16);
        const Autocast inner(kCPU, at::kBFloat16, true, false);
        throw std::runtime_error("out");
      },
      std::runtime_error);
  EXPECT_TRUE(State() == before);
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Autocast, TheOutermostEndForgetsCastWeights) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const auto output = [&] {
    const Autocast cast(kCPU, at::kBFloat16);
    const at::Tensor first = at::ones({1, 2}).matmul(weight);
    {
      const c10::AutoGradMode no_grad(false);
      weight.add_(1);  // As an optimizer would, but within: the cache must not notice.
    }
    { const Autocast inner(kCPU, at::kBFloat16); }
    const at::Tensor second = at::ones({1, 2}).matmul(weight);
    return std::pair{first[0][0].item<float>(), second[0][0].item<float>()};
  };
  EXPECT_EQ(output(), std::pair(2.0F, 2.0F)) << "one cast within, also past an inner scope's end";
  EXPECT_EQ(output(), std::pair(4.0F, 4.0F)) << "the next scope casts the weight of today";
}

TEST(Autocast, WithoutCacheSeesEachChangeOfAWeight) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const Autocast cast(kCPU, at::kBFloat16, true, /*cache_enabled=*/false);
  at::ones({1, 2}).matmul(weight);
  {
    const c10::AutoGradMode no_grad(false);
    weight.add_(1);
  }
  EXPECT_EQ(at::ones({1, 2}).matmul(weight)[0][0].item<float>(), 4.0F);
}

TEST(Autocast, BelongsToItsThread) {
  const Autocast cast(kCPU, at::kBFloat16);
  at::ScalarType elsewhere = at::kDouble;
  at::ScalarType elsewhere_within = at::kDouble;
  std::thread([&] {
    elsewhere = product_dtype();
    const Autocast theirs(kCPU, at::kHalf);
    elsewhere_within = product_dtype();
  }).join();
  EXPECT_EQ(elsewhere, at::kFloat);
  EXPECT_EQ(elsewhere_within, at::kHalf);
  EXPECT_EQ(product_dtype(), at::kBFloat16);
}

TEST(Autocast, ManyThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, dtype = i % 2 == 0 ? at::kHalf : at::kBFloat16] {
      for (int round = 0; round < 100; ++round) {
        const Autocast cast(kCPU, dtype);
        wrong += product_dtype() == dtype ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

at::ScalarType product_dtype(const at::Tensor& weight) {
  return at::ones({2, 2}).matmul(weight).scalar_type();
}

TEST(Autocast, ANestedScopeCastsWeightsAgainForItsDtype) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const Autocast outer(kCPU, at::kHalf);
  EXPECT_EQ(product_dtype(weight), at::kHalf);
  {
    const Autocast inner(kCPU, at::kBFloat16);
    EXPECT_EQ(product_dtype(weight), at::kBFloat16);
  }
  EXPECT_EQ(product_dtype(weight), at::kHalf);
  const Autocast off(kCPU, at::kHalf, /*enabled=*/false);
  EXPECT_EQ(product_dtype(weight), at::kFloat);
  {
    const Autocast inner(kCPU, at::kBFloat16);
    EXPECT_EQ(product_dtype(weight), at::kBFloat16);
  }
  const Autocast again(kCPU, at::kHalf);
  EXPECT_EQ(product_dtype(weight), at::kHalf);
}

TEST(Autocast, ThreadsShareWeightsInTwoDtypesWithoutTheCache) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    threads.emplace_back([&, dtype] {
      for (int round = 0; round < 100; ++round) {
        const Autocast cast(kCPU, dtype, /*enabled=*/true, /*cache_enabled=*/false);
        try {
          wrong += product_dtype(weight) == dtype ? 0 : 1;
        } catch (const c10::Error&) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Autocast, RefusesDtypesWithoutAutocast) {
  EXPECT_THROW(Autocast(kCPU, at::kFloat), ConfigError);
  EXPECT_THROW(Autocast(kCPU, at::kDouble), ConfigError);
  EXPECT_THROW(Autocast(c10::kXLA, at::kBFloat16), ConfigError);
  if (!at::hasCUDA()) {
    EXPECT_THROW(Autocast(c10::kCUDA, at::kHalf), ConfigError);
  }
  EXPECT_NO_THROW(Autocast(kCPU, at::kFloat, /*enabled=*/false));
}

/// What real models spend their time in.
struct Operation {
  const char* name;
  std::function<at::Tensor(const at::Tensor& input, const at::Tensor& weight)> run;
  std::vector<int64_t> input;
  std::vector<int64_t> weight;
};

std::vector<Operation> operations() {
  using T = at::Tensor;
  return {
      {"matmul", [](const T& x, const T& w) { return x.matmul(w); }, {5, 8}, {8, 4}},
      {"bmm", [](const T& x, const T& w) { return x.bmm(w); }, {2, 5, 8}, {2, 8, 4}},
      {"linear", [](const T& x, const T& w) { return at::linear(x, w); }, {5, 8}, {4, 8}},
      {"conv1d", [](const T& x, const T& w) { return at::conv1d(x, w); }, {2, 3, 9}, {4, 3, 3}},
      {"conv2d",
       [](const T& x, const T& w) { return at::conv2d(x, w); },
       {2, 3, 9, 9},
       {4, 3, 3, 3}},
      {"conv3d",
       [](const T& x, const T& w) { return at::conv3d(x, w); },
       {1, 2, 5, 5, 5},
       {3, 2, 3, 3, 3}},
      {"conv_transpose2d",
       [](const T& x, const T& w) { return at::conv_transpose2d(x, w); },
       {2, 3, 5, 5},
       {3, 4, 3, 3}},
      {"attention",
       [](const T& x, const T& w) { return at::scaled_dot_product_attention(x, w, w); },
       {2, 2, 6, 8},
       {2, 2, 6, 8}}};
}

class AutocastOperations : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(
    Dtypes, AutocastOperations, ::testing::Values(at::kHalf, at::kBFloat16), [](const auto& test) {
      return std::string(c10::toString(test.param));
    });

TEST_P(AutocastOperations, RunInTheDtypeOnTheCpuAndDifferentiateNearFp32s) {
  const double tolerance = GetParam() == at::kHalf ? 1e-2 : 6e-2;
  for (const Operation& operation : operations()) {
    at::manual_seed(1);
    const at::Tensor input = at::rand(operation.input).requires_grad_();
    const at::Tensor weight = at::rand(operation.weight).requires_grad_();
    operation.run(input, weight).pow(2).mean().backward();
    const at::Tensor expected_input = input.grad().clone();
    const at::Tensor expected_weight = weight.grad().clone();
    input.mutable_grad().reset();
    weight.mutable_grad().reset();

    at::Tensor loss;
    {
      const Autocast cast(kCPU, GetParam());
      const at::Tensor output = operation.run(input, weight);
      EXPECT_EQ(output.scalar_type(), GetParam()) << operation.name;
      loss = output.to(at::kFloat).pow(2).mean();
    }
    loss.backward();
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat) << operation.name;
    const auto error = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a - b).norm() / b.norm()).item<double>();
    };
    EXPECT_LT(error(input.grad(), expected_input), tolerance) << operation.name;
    EXPECT_LT(error(weight.grad(), expected_weight), tolerance) << operation.name;
    EXPECT_GT(error(weight.grad(), expected_weight), 0) << operation.name << " was not cast";
  }
}

/// An LSTM: oneDNN has an fp16 kernel on few CPUs. Throws, or has fp16 results.
at::Tensor lstm_output() {
  std::vector<at::Tensor> weights = {
      at::rand({16, 8}), at::rand({16, 4}), at::rand({16}), at::rand({16})};
  for (at::Tensor& weight : weights) {
    weight.requires_grad_();
  }
  const std::vector<at::Tensor> start = {at::zeros({1, 2, 4}), at::zeros({1, 2, 4})};
  return std::get<0>(
      at::lstm(at::rand({5, 2, 8}), start, weights, true, 1, 0.0, true, false, false));
}

TEST(Autocast, AnOperationWithoutAnFp16KernelThrowsAndTheLogSaysWhatToDo) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  const auto run_and_fail = [] {
    const Autocast cast(kCPU, at::kHalf);
    const at::Tensor output = lstm_output();
    EXPECT_EQ(output.scalar_type(), at::kHalf) << "computed in fp32 without a word";
    throw std::runtime_error("this CPU has an fp16 LSTM");
  };
  EXPECT_THROW(run_and_fail(), std::exception);
  EXPECT_THROW(run_and_fail(), std::exception);
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1U) << "once a process";
  EXPECT_THAT(
      lines[0],
      ::testing::AllOf(::testing::HasSubstr("bf16"), ::testing::HasSubstr("enabled = false")));

  const Autocast cast(kCPU, at::kHalf);
  const Autocast off(kCPU, at::kHalf, /*enabled=*/false);
  EXPECT_EQ(lstm_output().scalar_type(), at::kFloat) << "as the hint promises";
}

}  // namespace
}  // namespace lockstep
