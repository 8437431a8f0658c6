// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/comm_hook.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/comm_hook/test_hooks.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(CommHook, ContinuesBitForBitFromItsState) {
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
          EXPECT_TRUE(has_compressed(parallel) || !is_power_sgd(c.options)) << c.name;
          for (NamedTensor& item : state.tensors) {
            item.tensor = item.tensor.clone();
          }
          for (const at::Tensor& parameter : straight.all()) {
            saved.push_back(parameter.detach().clone());
          }
        }
        straight.step(group.rank(), step);
      }
      EXPECT_EQ(state.iteration, saved_at);
      const Mlp resumed;
      for (size_t i = 0; i < saved.size(); ++i) {
        resumed.all()[i].data().copy_(saved[i]);
      }
      DataParallel again(resumed.named(), {}, group, options);
      again.load_hook_state(state);
      for (int step = saved_at; step < steps; ++step) {
        resumed.step(group.rank(), step);
      }
      for (size_t i = 0; i < saved.size(); ++i) {
        EXPECT_TRUE(at::equal(resumed.all()[i].data(), straight.all()[i].data())) << c.name;
      }
    });
  }
}

TEST(CommHook, FlagsSurviveEveryHook) {
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
      EXPECT_TRUE(has_compressed(parallel) || !is_power_sgd(options)) << c.name;
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
    zero_grad({weight});
    (weight * gradient).sum().backward();
    sum += weight.grad();
  }
  return sum / steps;
}

TEST(CommHook, ErrorFeedbackDeliversWhat16BitsCannotHold) {
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

TEST(CommHook, Fp16ScalesBeforeItSums) {
  for (const std::string transport : {"thread", "gloo"}) {
    runner(transport)(3, [](Group group) {
      const at::Tensor mean =
          sum_of_averages(group, {.type = CommHookType::kFp16}, at::full({4}, 60000.0), 1);
      EXPECT_LT(std::abs(mean[0].item<double>() / 60000 - 1), 1e-3);
    });
  }
}

TEST(CommHook, ValuesBeyondFloat16AreInfEverywhereAndLeaveTheErrorFinite) {
  ranks(2, [](Group group) {
    const at::Tensor weight = at::zeros({4}).requires_grad_();
    DataParallel parallel(
        {{"weight", weight}},
        {},
        group,
        {.comm_hook = {.type = CommHookType::kFp16, .use_error_feedback = true}});
    for (const double value : {1e6, 1.0}) {
      zero_grad({weight});
      (weight * (group.rank() == 0 ? value : 1.0)).sum().backward();
      EXPECT_EQ(at::isfinite(weight.grad()).all().item<bool>(), value == 1.0);
    }
    EXPECT_FLOAT_EQ(weight.grad()[0].item<float>(), 1);
  });
}

TEST(CommHook, AnUnspentErrorWaitsForAParameterThatTakesNoPart) {
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

TEST(CommHook, SixteenBitGradientsAreSentUnchanged) {
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

TEST(CommHook, IsNotNeededToSendSomeParametersIn16Bits) {
  const auto log = std::make_shared<CommsLog>(CommsLogOptions{.with_shapes = true});
  ranks(2, [&](Group group) {
    const Mlp net;
    const flat::CommDtypes narrow{
        .parameters = {net.w1.unsafeGetTensorImpl(), net.w2.unsafeGetTensorImpl()}};
    const DataParallel parallel(net.named(), {}, logged(group, log), {}, narrow);
    EXPECT_EQ(parallel.bucket_count(), 2U);
    // 1 and 1 + 2^-7 of rank 1: a mean that fp32 holds, and bf16 rounds to the even 1.
    const double factor = group.rank() == 0 ? 1 : 1 + 1.0 / 128;
    ((net.w1.sum() + net.b1.sum() + net.w2.sum()) * factor).backward();
    EXPECT_TRUE(at::equal(net.w1.grad(), at::ones({24, 32})));
    EXPECT_TRUE(at::equal(net.w2.grad(), at::ones({32, 16})));
    EXPECT_TRUE(at::equal(net.b1.grad(), at::full({32}, 1 + 1.0 / 256)));
    EXPECT_FALSE(net.b2.grad().defined()) << "flags survive";
    EXPECT_EQ(parallel.hook_state().iteration, 0) << "nothing is to be saved";
  });
  std::map<std::string, int64_t> bytes;
  for (const CommsLogRow& row : log->rows()) {
    bytes[row.operation] = row.bytes;
  }
  // Each with a flag a parameter, the last one with those that compare the ranks.
  EXPECT_EQ(
      bytes["all_reduce(sum) of bfloat16[1347]"],
      2 * (24 * 32 + 32 * 16 + 2 + DigestFlags::kCount));
  EXPECT_EQ(bytes["all_reduce(avg) of float[50]"], 4 * (32 + 16 + 2));
}

TEST(CommHook, AppliesToAllParametersOrToNone) {
  ranks(2, [](Group group) {
    const Mlp net;
    const flat::CommDtypes narrow{.parameters = {net.w1.unsafeGetTensorImpl()}};
    EXPECT_THAT(
        [&] {
          DataParallel(
              net.named(), {}, group, {.comm_hook = {.type = CommHookType::kFp16}}, narrow);
        },
        ThrowsMessage<ConfigError>(
            HasSubstr("communication dtype BFloat16, too; remove one of them")));
  });
}

TEST(CommHook, RefusesOptionsThatDoNotGoTogether) {
  using enum CommHookType;
  struct Case {
    CommHookOptions options;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {{.type = kFp16, .wrapper = kBf16}, "wrapper"},
      {{.type = kNone, .wrapper = kFp16}, "wrapper"},
      {{.type = kPowerSgd, .wrapper = kPowerSgd}, "invalid wrapper"},
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

TEST(CommHook, RefusesTheStateOfAnotherModelAndChangesNothing) {
  ranks(2, [](Group group) {
    const Mlp net;
    DataParallel parallel(
        net.named(),
        {},
        group,
        {.comm_hook = {.type = CommHookType::kFp16, .use_error_feedback = true}});
    net.step(group.rank(), 0);
    const at::Tensor before = parallel.hook_state().tensors[0].tensor.clone();
    const std::string name = parallel.hook_state().tensors[0].name;
    const CommHookState unknown{
        .iteration = 7,
        .tensors = {{name, at::zeros_like(before)}, {"error/other", at::zeros({2})}}};
    const CommHookState misshapen{.iteration = 7, .tensors = {{name, at::zeros({2})}}};
    for (const CommHookState& state : {unknown, misshapen}) {
      EXPECT_THROW(parallel.check_hook_state(state), ConfigError);
      EXPECT_THROW(parallel.load_hook_state(state), ConfigError);
    }
    EXPECT_TRUE(at::equal(parallel.hook_state().tensors[0].tensor, before));
    EXPECT_EQ(parallel.hook_state().iteration, 1);
  });
}

TEST(CommHook, CheckingAStateChangesNothing) {
  for (const HookCase& c : hook_cases()) {
    ranks(2, [&](Group group) {
      const Mlp net;
      DataParallel parallel(net.named(), {}, group, {.comm_hook = c.options});
      for (int step = 0; step < 12; ++step) {
        net.step(group.rank(), step);
      }
      CommHookState other{.iteration = 3, .tensors = {}};
      std::vector<at::Tensor> before;
      for (const NamedTensor& item : parallel.hook_state().tensors) {
        other.tensors.push_back({item.name, item.tensor + 1});
        before.push_back(item.tensor.clone());
      }
      EXPECT_NO_THROW(parallel.check_hook_state(other));
      const CommHookState after = parallel.hook_state();
      EXPECT_EQ(after.iteration, 12) << c.name;
      ASSERT_EQ(after.tensors.size(), before.size());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(after.tensors[i].tensor, before[i])) << c.name;
      }
      other.tensors.push_back({"error/other", at::zeros({2})});
      EXPECT_THROW(parallel.check_hook_state(other), ConfigError) << c.name;
    });
  }
}

TEST(CommHook, WithoutCompressionHasNoState) {
  for (const int size : {1, 2}) {
    ranks(size, [](Group group) {
      const Mlp net;
      DataParallel parallel(net.named(), {}, group);
      parallel.begin_backward();
      net.loss(Mlp::inputs(group.rank(), 0)).backward();
      parallel.finish_backward();
      EXPECT_EQ(parallel.hook_state().iteration, 0);
      EXPECT_TRUE(parallel.hook_state().tensors.empty());
      EXPECT_NO_THROW(parallel.check_hook_state(parallel.hook_state()));
    });
  }
}

}  // namespace
}  // namespace lockstep
