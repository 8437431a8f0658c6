// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

/// Regression by a net of two layers, of targets another such net gave.
struct Mlp {
  at::Tensor w1 = wave({24, 32}, 0.11).requires_grad_();
  at::Tensor b1 = at::zeros({32}).requires_grad_();
  at::Tensor w2 = wave({32, 16}, 0.23).requires_grad_();
  at::Tensor b2 = at::zeros({16}).requires_grad_();

  static at::Tensor wave(std::vector<int64_t> shape, double pace) {
    return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble).pow(1.3) * pace)
               .to(at::kFloat)
               .view(shape) *
           0.3;
  }
  NamedTensors named() const { return {{"w1", w1}, {"b1", b1}, {"w2", w2}, {"b2", b2}}; }
  std::vector<at::Tensor> all() const { return {w1, b1, w2, b2}; }
  static at::Tensor inputs(int rank, int step) {
    return wave({20, 24}, 0.31 + 0.07 * rank + 0.013 * (step % 5)) * 3;
  }
  static at::Tensor targets(const at::Tensor& x) {
    return at::tanh(x.matmul(wave({24, 32}, 0.17))).matmul(wave({32, 16}, 0.41));
  }
  at::Tensor loss(const at::Tensor& x) const {
    return (at::tanh(x.matmul(w1) + b1).matmul(w2) + b2 - targets(x)).pow(2).mean();
  }
  void step(DataParallel& parallel, int rank, int step) const {
    parallel.zero_grad(all());
    loss(inputs(rank, step)).backward();
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& parameter : all()) {
      parameter.data().sub_(parameter.grad(), 0.3);
    }
  }
  double total_loss(int size) const {
    const c10::AutoGradMode no_grad(false);
    double sum = 0;
    for (int rank = 0; rank < size; ++rank) {
      for (int step = 0; step < 5; ++step) {
        sum += loss(inputs(rank, step)).item<double>() / (5 * size);
      }
    }
    return sum;
  }
};

using Runner = std::function<void(int, const std::function<void(Group)>&)>;

Runner runner(const std::string& transport) {
  if (transport == "gloo") {
    return [](int size, const auto& body) { gloo_ranks(size, body); };
  }
  return [](int size, const auto& body) { ranks(size, body); };
}

constexpr int kSteps = 100;

/// The loss after kSteps, the same on every rank.
double train(const Runner& run, int size, const CommHookOptions& hook) {
  std::vector<double> losses(static_cast<size_t>(size));
  run(size, [&](Group group) {
    const Mlp net;
    DataParallel parallel(
        net.named(), {}, group, {.cap_bytes = 4096, .first_cap_bytes = 2048, .comm_hook = hook});
    for (int step = 0; step < kSteps; ++step) {
      net.step(parallel, group.rank(), step);
    }
    losses[static_cast<size_t>(group.rank())] = net.total_loss(size);
  });
  for (double loss : losses) {
    EXPECT_EQ(loss, losses[0]);
  }
  return losses[0];
}

struct HookCase {
  const char* name;
  CommHookOptions options;
  double band;  ///< Largest relative distance from the loss of uncompressed training.
};

PowerSgdOptions low_rank(int64_t rank) {
  return {.matrix_approximation_rank = rank, .start_iter = 10, .min_compression_rate = 1.5};
}

const std::vector<HookCase>& hook_cases() {
  using enum CommHookType;
  static const std::vector<HookCase> cases = {
      {"fp16", {.type = kFp16}, 1e-4},
      {"fp16_feedback", {.type = kFp16, .use_error_feedback = true}, 1e-4},
      {"bf16", {.type = kBf16}, 5e-4},
      {"bf16_feedback", {.type = kBf16, .use_error_feedback = true}, 5e-4},
      {"power_sgd_rank_2", {.type = kPowerSgd, .power_sgd = low_rank(2)}, 0.05},
      {"power_sgd_rank_2_cold",
       {.type = kPowerSgd,
        .power_sgd =
            {.matrix_approximation_rank = 2,
             .start_iter = 10,
             .min_compression_rate = 1.5,
             .warm_start = false}},
       0.05},
      {"power_sgd_rank_4_fp16",
       {.type = kPowerSgd, .wrapper = kFp16, .power_sgd = low_rank(4)},
       0.05},
      {"power_sgd_rank_4_bf16",
       {.type = kPowerSgd, .wrapper = kBf16, .power_sgd = low_rank(4)},
       0.05},
      {"batched_power_sgd", {.type = kBatchedPowerSgd, .power_sgd = low_rank(4)}, 0.05},
  };
  return cases;
}

struct Place {
  int size;
  const char* transport;
};

using BandParam = std::tuple<size_t, Place>;

class CommHookBand : public ::testing::TestWithParam<BandParam> {};

std::string band_name(const ::testing::TestParamInfo<BandParam>& param) {
  const Place place = std::get<1>(param.param);
  return std::string(hook_cases()[std::get<0>(param.param)].name) + "_" +
         std::to_string(place.size) + "_" + place.transport;
}

INSTANTIATE_TEST_SUITE_P(
    Hooks,
    CommHookBand,
    ::testing::Combine(
        ::testing::Range(size_t{0}, hook_cases().size()),
        ::testing::Values(Place{2, "thread"}, Place{3, "thread"}, Place{2, "gloo"})),
    band_name);

TEST_P(CommHookBand, loss_stays_near_that_of_uncompressed_training) {
  const HookCase& c = hook_cases()[std::get<0>(GetParam())];
  const auto& [size, transport] = std::get<1>(GetParam());
  static std::map<int, double> uncompressed;
  if (!uncompressed.contains(size)) {
    uncompressed[size] = train(runner("thread"), size, {});
  }
  const double expected = uncompressed[size];
  const double start = Mlp().total_loss(size);
  ASSERT_LT(expected, start / 4);
  const double loss = train(runner(transport), size, c.options);
  RecordProperty("relative", std::to_string(std::abs(loss - expected) / expected));
  EXPECT_LE(std::abs(loss - expected), c.band * expected) << "uncompressed " << expected;
}

TEST(CommHook, continues_bit_for_bit_from_its_state) {
  for (const HookCase& c : hook_cases()) {
    ranks(2, [&](Group group) {
      const auto options =
          DataParallelOptions{.cap_bytes = 4096, .first_cap_bytes = 2048, .comm_hook = c.options};
      const Mlp straight;
      DataParallel parallel(straight.named(), {}, group, options);
      const int steps = 16;
      const int saved_at = 13;
      std::vector<at::Tensor> saved;
      CommHookState state;
      for (int step = 0; step < steps; ++step) {
        if (step == saved_at) {
          state = parallel.hook_state();
          for (NamedTensor& item : state.tensors) {
            item.tensor = item.tensor.clone();
          }
          for (const at::Tensor& parameter : straight.all()) {
            saved.push_back(parameter.detach().clone());
          }
        }
        straight.step(parallel, group.rank(), step);
      }
      EXPECT_EQ(state.iteration, saved_at);
      const Mlp resumed;
      for (size_t i = 0; i < saved.size(); ++i) {
        resumed.all()[i].data().copy_(saved[i]);
      }
      DataParallel again(resumed.named(), {}, group, options);
      again.load_hook_state(state);
      for (int step = saved_at; step < steps; ++step) {
        resumed.step(again, group.rank(), step);
      }
      for (size_t i = 0; i < saved.size(); ++i) {
        EXPECT_TRUE(at::equal(resumed.all()[i].data(), straight.all()[i].data())) << c.name;
      }
    });
  }
}

TEST(CommHook, flags_survive_every_hook) {
  for (const HookCase& c : hook_cases()) {
    CommHookOptions options = c.options;
    options.power_sgd.start_iter = 0;
    if (options.type == CommHookType::kFp16 || options.type == CommHookType::kBf16) {
      options.power_sgd = {};
    }
    ranks(3, [&](Group group) {
      const Mlp net;
      DataParallel parallel(net.named(), {}, group, {.comm_hook = options});
      // b2 takes part on rank 2 alone, b1 nowhere.
      const at::Tensor x = Mlp::inputs(group.rank(), 0);
      at::Tensor y = at::tanh(x.matmul(net.w1)).matmul(net.w2);
      if (group.rank() == 2) {
        y = y + net.b2;
      }
      y.pow(2).mean().backward();
      EXPECT_TRUE(net.b2.grad().defined()) << c.name;
      EXPECT_FALSE(net.b1.grad().defined()) << c.name;
    });
  }
}

/// One parameter whose gradient on each rank is what the test says, again and again.
at::Tensor sum_of_averages(
    Group group, const CommHookOptions& hook, const at::Tensor& gradient, int steps) {
  const at::Tensor weight = at::zeros_like(gradient).requires_grad_();
  DataParallel parallel({{"weight", weight}}, {}, std::move(group), {.comm_hook = hook});
  at::Tensor sum = at::zeros_like(gradient, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    parallel.zero_grad({weight});
    (weight * gradient).sum().backward();
    sum += weight.grad();
  }
  return sum / steps;
}

TEST(CommHook, error_feedback_delivers_what_16_bits_cannot_hold) {
  // Far below float16's smallest number, and between two neighbours in bfloat16.
  struct Case {
    CommHookType type;
    float gradient;
  };
  for (const auto& [type, value] :
       {Case{CommHookType::kFp16, 3e-9F}, Case{CommHookType::kBf16, 1.003F}}) {
    for (const bool feedback : {false, true}) {
      ranks(2, [&, type = type, value = value](Group group) {
        const at::Tensor gradient = at::full({8}, value);
        const double mean =
            sum_of_averages(group, {.type = type, .use_error_feedback = feedback}, gradient, 200)
                .mean()
                .item<double>();
        EXPECT_EQ(std::abs(mean / value - 1) < (type == CommHookType::kFp16 ? 0.1 : 1e-4), feedback)
            << name_of(type) << " " << mean;
      });
    }
  }
}

TEST(CommHook, fp16_divides_before_it_sums) {
  for (const std::string transport : {"thread", "gloo"}) {
    runner(transport)(3, [](Group group) {
      const at::Tensor mean =
          sum_of_averages(group, {.type = CommHookType::kFp16}, at::full({4}, 60000.0), 1);
      EXPECT_LT(std::abs(mean[0].item<double>() / 60000 - 1), 1e-3);
    });
  }
}

TEST(CommHook, what_float16_cannot_hold_is_inf_everywhere_and_leaves_the_error_finite) {
  ranks(2, [](Group group) {
    const at::Tensor weight = at::zeros({4}).requires_grad_();
    DataParallel parallel(
        {{"weight", weight}},
        {},
        group,
        {.comm_hook = {.type = CommHookType::kFp16, .use_error_feedback = true}});
    for (const double value : {1e6, 1.0}) {
      parallel.zero_grad({weight});
      (weight * (group.rank() == 0 ? value : 1.0)).sum().backward();
      EXPECT_EQ(at::isfinite(weight.grad()).all().item<bool>(), value == 1.0);
    }
    EXPECT_FLOAT_EQ(weight.grad()[0].item<float>(), 1);
  });
}

TEST(CommHook, an_unspent_error_waits_for_a_parameter_that_takes_no_part) {
  ranks(2, [](Group group) {
    const at::Tensor a = at::zeros({4}).requires_grad_();
    const at::Tensor b = at::zeros({4}).requires_grad_();
    DataParallel parallel(
        {{"a", a}, {"b", b}},
        {},
        group,
        {.comm_hook = {.type = CommHookType::kBf16, .use_error_feedback = true}});
    const auto error_of_a = [&] {
      for (const NamedTensor& item : parallel.hook_state().tensors) {
        if (item.name == "error/a") {
          return item.tensor.clone();
        }
      }
      return at::Tensor();
    };
    ((a + b) * 1.003).sum().backward();
    const at::Tensor before = error_of_a();
    EXPECT_GT(before.abs().max().item<double>(), 0);
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    b.sum().backward();
    EXPECT_FALSE(a.grad().defined());
    EXPECT_TRUE(at::equal(error_of_a(), before));
  });
}

TEST(CommHook, sixteen_bit_gradients_travel_as_they_are) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    ranks(2, [&](Group group) {
      const at::Tensor weight = at::zeros({4}, dtype).requires_grad_();
      DataParallel parallel(
          {{"weight", weight}},
          {},
          group,
          {.comm_hook = {.type = CommHookType::kFp16, .use_error_feedback = true}});
      (weight * (group.rank() + 1)).sum().backward();
      EXPECT_EQ(weight.grad()[0].item<float>(), 1.5F);
      EXPECT_TRUE(parallel.hook_state().tensors.empty());
    });
  }
}

TEST(CommHook, refuses_options_that_do_not_go_together) {
  using enum CommHookType;
  struct Case {
    CommHookOptions options;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {{.type = kFp16, .wrapper = kBf16}, "wrapper"},
      {{.type = kNone, .wrapper = kFp16}, "wrapper"},
      {{.type = kPowerSgd, .wrapper = kPowerSgd}, "a wrapper is a cast"},
      {{.type = kNone, .use_error_feedback = true}, "no error to feed back"},
      {{.type = kBf16, .power_sgd = {.seed = 1}}, "no effect on bf16"},
      {{.type = kPowerSgd, .power_sgd = {.matrix_approximation_rank = 0}}, "rank of at least 1"},
      {{.type = kPowerSgd, .power_sgd = {.start_iter = -1}}, "start_iter"},
      {{.type = kPowerSgd, .power_sgd = {.min_compression_rate = 0}}, "min_compression_rate"},
      {{.type = kPowerSgd,
        .power_sgd = {.orthogonalization_epsilon = std::numeric_limits<double>::quiet_NaN()}},
       "epsilon"},
  };
  for (const Case& c : cases) {
    try {
      // In a group of one too: a program is right or wrong whatever it is started with.
      const DataParallel parallel({}, {}, Group(), {.comm_hook = c.options});
      ADD_FAILURE() << c.reason;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.reason));
    }
  }
}

TEST(CommHook, refuses_the_state_of_another_model_and_changes_nothing) {
  ranks(2, [](Group group) {
    const Mlp net;
    DataParallel parallel(
        net.named(),
        {},
        group,
        {.comm_hook = {.type = CommHookType::kFp16, .use_error_feedback = true}});
    net.step(parallel, group.rank(), 0);
    const at::Tensor before = parallel.hook_state().tensors[0].tensor.clone();
    const std::string name = parallel.hook_state().tensors[0].name;
    EXPECT_THROW(
        parallel.load_hook_state(
            {.iteration = 7,
             .tensors = {{name, at::zeros_like(before)}, {"error/other", at::zeros({2})}}}),
        ConfigError);
    EXPECT_THROW(
        parallel.load_hook_state({.iteration = 7, .tensors = {{name, at::zeros({2})}}}),
        ConfigError);
    EXPECT_TRUE(at::equal(parallel.hook_state().tensors[0].tensor, before));
    EXPECT_EQ(parallel.hook_state().iteration, 1);
  });
}

}  // namespace
}  // namespace lockstep
