// SPDX-License-Identifier: Apache-2.0
// Parameters of fp16 and bf16, and the fp32 masters that the ranks have of them.
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/bucket/low_precision_policy.h"
#include "lockstep/zero/test_sharding.h"

namespace lockstep::zero {
namespace {

/// A parameter and one that is frozen, of more elements than come together for nothing.
struct MastersModel {
  explicit MastersModel(at::ScalarType dtype)
      : weight((at::arange(700, at::kFloat) / 100 + 1).to(dtype).set_requires_grad(true)),
        other(at::full({33}, 0.5, dtype).set_requires_grad(true)),
        frozen(at::full({40}, 2, dtype)) {}
  NamedTensors named() const { return {{"weight", weight}, {"other", other}, {"frozen", frozen}}; }
  std::vector<at::Tensor> trained() const { return {weight, other}; }

  at::Tensor weight;
  at::Tensor other;
  at::Tensor frozen;
};

struct Setup {
  std::string name;
  at::ScalarType dtype;
  ShardingOptions options;
};

std::vector<Setup> setups(const std::filesystem::path& folder) {
  const OffloadParam in_file{.device = OffloadDevice::kNvme, .nvme_path = folder, .max_in_cpu = 0};
  std::vector<Setup> all;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const ShardingOptions kept{.placement = ParamPlacement::kReplicated};
    const ShardingOptions sharded{.placement = ParamPlacement::kSharded};
    ShardingOptions partly = sharded;
    partly.param_persistence_threshold = 100;
    ShardingOptions kept_in_files = kept;
    kept_in_files.offload_masters = in_file;
    ShardingOptions masters_in_files = sharded;
    masters_in_files.offload_masters = in_file;
    ShardingOptions sharded_in_files = partly;
    sharded_in_files.offload = sharded_in_files.offload_masters = in_file;
    for (const auto& [name, options] :
         {std::pair("kept", kept),
          std::pair("sharded", sharded),
          std::pair("partly sharded", partly),
          std::pair("kept, in files", kept_in_files),
          std::pair("sharded, masters in files", masters_in_files),
          std::pair("sharded, in files", sharded_in_files)}) {
      all.push_back({std::string(c10::toString(dtype)) + " " + name, dtype, options});
    }
  }
  return all;
}

/// What all ranks' pieces have of a parameter, put together; fp32.
at::Tensor masters_of(Group& group, const Sharding& sharding, const at::Tensor& parameter) {
  at::Tensor all = at::zeros({parameter.numel()});
  for (const at::Tensor& shard_slice : sharding.slices().of({parameter})) {
    EXPECT_EQ(shard_slice.scalar_type(), at::kFloat);
    all.narrow(0, sharding.slices().find(shard_slice)->begin, shard_slice.numel())
        .copy_(shard_slice.detach());
  }
  return group.all_reduce(all).wait().reshape(parameter.sizes());
}

void on_ranks(
    const std::function<void(Group group, MastersModel& model, Sharding& sharding)>& body) {
  const TestFolder folder;
  for (const int world : {1, 2, 3}) {
    for (const Setup& setup : setups(folder.path())) {
      SCOPED_TRACE(setup.name + ", ranks " + std::to_string(world));
      ranks(world, [&](Group group) {
        MastersModel model(setup.dtype);
        const auto sharding =
            make_sharding(model.named(), group, setup.options, {}, {model.trained()});
        body(group, model, *sharding);
      });
    }
  }
}

void add_to_masters(Sharding& sharding, const std::vector<at::Tensor>& of, double value) {
  sharding.finish_parameter_use();
  {
    const c10::AutoGradMode no_grad(false);
    for (at::Tensor& shard_slice : sharding.slices().of(of)) {
      shard_slice.add_(value);
    }
  }
  sharding.gather_parameters();
}

TEST(Masters, AreFp32CopiesOfTrainedParametersOnly) {
  on_ranks([](Group group, MastersModel& model, Sharding& sharding) {
    for (const at::Tensor& parameter : model.trained()) {
      EXPECT_TRUE(
          at::equal(masters_of(group, sharding, parameter), parameter.detach().to(at::kFloat)));
    }
    for (const at::Tensor& shard_slice : sharding.slices().of({model.frozen})) {
      EXPECT_EQ(shard_slice.scalar_type(), model.frozen.scalar_type());
    }
  });
}

TEST(Masters, AccumulateUpdatesTooSmallForTheParameters) {
  on_ranks([](Group group, MastersModel& model, Sharding& sharding) {
    const at::ScalarType dtype = model.weight.scalar_type();
    const at::Tensor before = model.weight.detach().to(at::kFloat);
    const float step = 1.0F / 8192;
    ASSERT_TRUE(at::equal((before.to(dtype) + step).to(dtype), before.to(dtype)));
    at::Tensor expected = before;
    for (int i = 0; i < 200; ++i) {
      add_to_masters(sharding, model.trained(), step);
      expected = expected + step;
    }
    EXPECT_TRUE(at::equal(masters_of(group, sharding, model.weight), expected));
    EXPECT_TRUE(at::equal(model.weight.detach(), expected.to(dtype)));
    EXPECT_FALSE(at::equal(model.weight.detach(), before.to(dtype)));
  });
}

TEST(Masters, TakeWrittenValuesAndKeepThePrecisionOfOthers) {
  on_ranks([](Group group, MastersModel& model, Sharding& sharding) {
    const at::ScalarType dtype = model.weight.scalar_type();
    const float step = 1.0F / 8192;
    add_to_masters(sharding, model.trained(), step);
    at::Tensor expected = masters_of(group, sharding, model.weight);
    {
      const c10::AutoGradMode no_grad(false);
      model.weight.slice(0, 10, 400).fill_(-3.5);
      model.weight.slice(0, 500, 510).mul_(1);  // Writes what is there.
      model.weight.slice(0, 600, 601).fill_(NAN);
      expected.slice(0, 10, 400).fill_(-3.5);
      expected.slice(0, 600, 601).fill_(NAN);
    }
    sharding.write_back();
    EXPECT_TRUE(at::allclose(
        masters_of(group, sharding, model.weight), expected, 0, 0, /*equal_nan=*/true));
    add_to_masters(sharding, model.trained(), step);
    expected = expected + step;
    EXPECT_TRUE(at::allclose(
        masters_of(group, sharding, model.weight), expected, 0, 0, /*equal_nan=*/true));
    EXPECT_TRUE(at::allclose(
        model.weight.detach().to(at::kFloat),
        expected.to(dtype).to(at::kFloat),
        0,
        0,
        /*equal_nan=*/true));
  });
}

TEST(Masters, AccumulateGradientsInFp32) {
  on_ranks([](Group /*group*/, MastersModel& model, Sharding& sharding) {
    const auto backward = [&](double factor) {
      const at::Tensor each = at::full({700}, factor, model.weight.scalar_type());
      run_backward(sharding, (model.weight * each).sum() + (model.other * 0).sum());
    };
    backward(4096);
    backward(1);  // 4097 is neither an fp16 nor a bf16 number.
    backward(1);
    EXPECT_TRUE(is_gradient_placeholder(model.weight.grad()));
    for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
      ASSERT_EQ(shard_slice.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), 4098.0F)));
    }
    sharding.drop_gradients();
    backward(2);  // Nothing of before is left.
    for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
      EXPECT_TRUE(at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), 2.0F)));
    }
  });
}

/// On kept parameters, in both dtypes, by one to three ranks.
void on_kept_ranks(
    const LowPrecisionPolicy& low_precision_policy,
    const std::function<void(Group group, MastersModel& model, Sharding& sharding)>& body) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const int world : {1, 2, 3}) {
      ranks(world, [&](Group group) {
        MastersModel model(dtype);
        const ShardingOptions options{.low_precision_policy = low_precision_policy};
        const auto sharding = make_sharding(model.named(), group, options, {}, {model.trained()});
        body(group, model, *sharding);
      });
    }
  }
}

at::Tensor loss_with(const MastersModel& model, double factor) {
  const at::Tensor each = at::full({700}, factor, model.weight.scalar_type());
  return (model.weight * each).sum();
}

TEST(Masters, KeepGradientsInFp32UntilTheyAreAveragedOnRequest) {
  on_kept_ranks(
      {.fp32_gradients = true, .fp32_comm = true},
      [](Group group, MastersModel& model, Sharding& sharding) {
        sharding.set_sync(false);
        run_backward(sharding, loss_with(model, 4096));
        run_backward(sharding, loss_with(model, 1));  // 4097 is neither an fp16 nor a bf16 number.
        EXPECT_TRUE(is_gradient_placeholder(model.weight.grad()));
        ASSERT_EQ(sharding.held_gradients().size(), 1U);
        EXPECT_TRUE(at::equal(sharding.held_gradients()[0], at::full({700}, 4097.0F)));
        sharding.set_sync(true);
        // 2^-7 more in bf16, and each rank another: the average would be rounded.
        run_backward(
            sharding, loss_with(model, 1.0 / 128 * group.rank()) + (model.other * 0).sum());
        EXPECT_TRUE(sharding.held_gradients().empty());
        const double mean = 4097 + (group.size() - 1) / 256.0;
        for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
          EXPECT_TRUE(at::allclose(
              shard_slice.grad(), at::full(shard_slice.sizes(), mean, at::kFloat), 2e-7, 0));
        }
        sharding.set_sync(false);
        run_backward(sharding, loss_with(model, 8));
        sharding.drop_gradients();
        EXPECT_TRUE(sharding.held_gradients().empty());
      });
}

TEST(Masters, RoundTheAccumulatedGradientOnceToSendIt) {
  on_kept_ranks(
      {.fp32_gradients = true}, [](Group /*group*/, MastersModel& model, Sharding& sharding) {
        sharding.set_sync(false);
        run_backward(sharding, loss_with(model, 4096));
        for (int i = 0; i < 15; ++i) {
          run_backward(sharding, loss_with(model, 2));  // Each alone would be lost.
        }
        sharding.set_sync(true);
        run_backward(sharding, loss_with(model, 2) + (model.other * 0).sum());
        for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
          EXPECT_TRUE(at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), 4128.0F)));
        }
      });
}

TEST(Masters, AverageGradientsOfParametersThatTheLastBackwardDidNotReach) {
  on_kept_ranks(
      {.fp32_gradients = true}, [](Group /*group*/, MastersModel& model, Sharding& sharding) {
        sharding.set_sync(false);
        run_backward(sharding, loss_with(model, 3));
        sharding.set_sync(true);
        run_backward(sharding, model.other.sum());
        for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
          ASSERT_TRUE(shard_slice.grad().defined());
          EXPECT_TRUE(at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), 3.0F)));
        }
      });
}

TEST(Masters, AccumulateRoundedAveragesIfSumsAreRounded) {
  on_kept_ranks(
      {.rounded_sums = true}, [](Group /*group*/, MastersModel& model, Sharding& sharding) {
        for (const double factor : {4096, 1, 1, 1}) {
          run_backward(sharding, loss_with(model, factor) + (model.other * 0).sum());
        }
        for (const at::Tensor& shard_slice : sharding.slices().of({model.weight})) {
          EXPECT_EQ(shard_slice.grad().scalar_type(), at::kFloat);
          EXPECT_TRUE(at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), 4096.0F)));
        }
      });
}

TEST(Masters, DoNotExistIfDisabled) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      ranks(2, [&](Group group) {
        MastersModel model(dtype);
        const ShardingOptions options{
            .placement = placement, .low_precision_policy = {.fp32_masters = false}};
        const auto sharding = make_sharding(model.named(), group, options, {}, {model.trained()});
        EXPECT_FALSE(sharding->has_masters());
        run_backward(*sharding, loss_with(model, 2) + (model.other * 0).sum());
        for (const at::Tensor& shard_slice : sharding->slices().of({model.weight})) {
          EXPECT_EQ(shard_slice.scalar_type(), dtype);
          EXPECT_EQ(shard_slice.grad().scalar_type(), dtype);
        }
        const at::Tensor before = model.weight.detach().clone();
        add_to_masters(*sharding, model.trained(), 1);
        EXPECT_TRUE(at::equal(model.weight.detach(), before + 1));
      });
    }
  }
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

TEST(Masters, InFilesKeepA16BitShardOfShardedParameters) {
  const TestFolder folder;
  ranks(2, [&](Group group) {
    const auto memory_with = [&](const OffloadParam& masters) {
      MastersModel model(at::kBFloat16);
      const ShardingOptions options{
          .placement = ParamPlacement::kSharded, .offload_masters = masters};
      const auto sharding = make_sharding(model.named(), group, options, {}, {model.trained()});
      EXPECT_TRUE(at::equal(
          model.weight.detach(), (at::arange(700, at::kFloat) / 100 + 1).to(at::kBFloat16)));
      return sharding->memory();
    };
    const Sharding::Memory here = memory_with({});
    const Sharding::Memory away =
        memory_with({.device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0});
    EXPECT_GT(bytes_of(here.masters), 0);
    EXPECT_EQ(bytes_of(away.masters), 0);
    EXPECT_EQ(bytes_of(away.parameters), bytes_of(here.parameters) + bytes_of(here.masters) / 2);
  });
}

void expect_exact_where_parameters_travel_rounded(const OffloadParam& masters) {
  ranks(2, [&](Group group) {
    MastersModel model(at::kBFloat16);
    const ShardingOptions options{
        .placement = ParamPlacement::kSharded,
        .coordinator = {.max_live_elements = 1, .prefetch = false},
        .plus_plus = {.quantized_weights = true, .quantized_gradients = true},
        .offload_masters = masters};
    const auto sharding = make_sharding(model.named(), group, options, {}, {model.trained()});
    const float step = 1.0F / 8192;
    add_to_masters(*sharding, model.trained(), step);
    at::Tensor expected = masters_of(group, *sharding, model.weight);
    EXPECT_FALSE(at::equal(model.weight.detach().to(at::kFloat), expected));
    run_backward(*sharding, model.weight.sum() + model.other.sum());
    for (const at::Tensor& shard_slice : sharding->slices().of({model.weight})) {
      EXPECT_TRUE(at::allclose(shard_slice.grad(), at::ones(shard_slice.sizes()), 0.1));
    }
    {
      const c10::AutoGradMode no_grad(false);
      model.weight.slice(0, 10, 400).fill_(-64);
      expected.slice(0, 10, 400).fill_(-64);
    }
    sharding->finish_parameter_use();
    EXPECT_TRUE(at::equal(masters_of(group, *sharding, model.weight), expected));
  });
}

TEST(Masters, AreExactIfParametersAreSentRounded) {
  const TestFolder folder;
  expect_exact_where_parameters_travel_rounded({});
  expect_exact_where_parameters_travel_rounded(
      {.device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0});
}

TEST(Masters, UseTheAverageInTheDtypeThatIsSent) {
  ranks(2, [](Group group) {
    MastersModel model(at::kBFloat16);
    const auto sharding =
        make_sharding(model.named(), group, ShardingOptions(), {}, {model.trained()});
    // 1 and 1 + 2^-7, next to each other in bf16: the average is a tie, and goes to the even one.
    const double factor = group.rank() == 0 ? 1 : 1 + 1.0 / 128;
    const at::Tensor each = at::full({700}, factor, at::kBFloat16);
    run_backward(*sharding, (model.weight * each).sum() + (model.other * 0).sum());
    for (const at::Tensor& shard_slice : sharding->slices().of({model.weight})) {
      EXPECT_TRUE(at::equal(shard_slice.grad(), at::ones(shard_slice.sizes())));
    }
  });
}

}  // namespace
}  // namespace lockstep::zero
