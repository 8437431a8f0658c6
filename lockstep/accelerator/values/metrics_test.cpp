// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"

namespace lockstep {
namespace {

/// 0, 1, 2 ... as a stream that does not say how many there are.
struct Numbers {
  int64_t count;
  auto stream(int64_t /*epoch*/) const {
    return [next = int64_t{0}, count = count]() mutable -> std::optional<at::Tensor> {
      return next < count ? std::optional(at::full({}, next++, at::kLong)) : std::nullopt;
    };
  }
};

std::vector<int64_t> sorted(const at::Tensor& tensor) {
  const at::Tensor values = std::get<0>(tensor.sort()).contiguous();
  const auto* first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

std::vector<int64_t> up_to(int64_t count) {
  return sorted(at::arange(count));
}

TEST(GatherForMetrics, SeesEverySampleOfAStreamOnce) {
  for (const int world : {2, 3, 4}) {
    for (const bool dispatch : {false, true}) {
      for (const int64_t count : {1, 5, 6, 7, 12, 13}) {
        const AcceleratorOptions options{.dispatch_batches = dispatch};
        accelerated_ranks(world, options, [&](Accelerator& accelerator) {
          auto loader = accelerator.prepare(data::Loader(Numbers{count}, {.batch_size = 2}));
          at::Tensor seen = at::empty({0}, at::kLong);
          for (auto& batch : loader) {
            seen = at::cat({seen, accelerator.gather_for_metrics(batch)});
          }
          EXPECT_EQ(sorted(seen), up_to(count)) << world << " ranks, dispatch " << dispatch;
        });
      }
    }
  }
}

TEST(GatherForMetrics, UsesTheInnermostLoaderAndMayBeCalledSeveralTimes) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    const at::Tensor five = at::arange(5), seven = at::arange(7);
    auto [outer, inner] = accelerator.prepare(
        data::Loader(data::TensorDataset(five, five), {.batch_size = 2}),
        data::Loader(data::TensorDataset(seven, seven), {.batch_size = 3}));
    at::Tensor outside = at::empty({0}, at::kLong);
    for (auto& batch : outer) {
      at::Tensor inside = at::empty({0}, at::kLong);
      for (auto& other : inner) {
        // Twice, and with a tensor of another length in between, which is gathered whole.
        const auto [data, target] = accelerator.gather_for_metrics(other.data, other.target);
        EXPECT_EQ(accelerator.gather_for_metrics(at::ones({1})).size(0), 2);
        EXPECT_TRUE(at::equal(data, target));
        inside = at::cat({inside, data});
      }
      EXPECT_EQ(sorted(inside), up_to(7));
      outside = at::cat({outside, accelerator.gather_for_metrics(batch.data)});
    }
    EXPECT_EQ(sorted(outside), up_to(5));
  });
}

TEST(GatherForMetrics, TakesRaggedPredictionsOnceTheyArePadded) {
  accelerated_ranks(2, {.even_batches = false}, [](Accelerator& accelerator) {
    const at::Tensor rows = at::arange(7);
    auto loader =
        accelerator.prepare(data::Loader(data::TensorDataset(rows, rows), {.batch_size = 2}));
    int64_t samples = 0;
    for (auto& batch : loader) {
      const int64_t length = 1 + accelerator.process_index() * 3;
      const at::Tensor ragged = batch.data.unsqueeze(1).expand({batch.data.size(0), length});
      const at::Tensor padded = accelerator.pad_across_processes(ragged.contiguous(), 1, -1);
      const at::Tensor all = accelerator.gather_for_metrics(padded);
      EXPECT_EQ(all.size(1), 4);
      samples += all.size(0);
    }
    EXPECT_EQ(samples, 7);
  });
}

TEST(GatherForMetrics, OneValueARankIsNotASampleThoughABatchHasOneRow) {
  accelerated_ranks(2, {.even_batches = false}, [](Accelerator& accelerator) {
    const at::Tensor rows = at::arange(5);
    auto loader =
        accelerator.prepare(data::Loader(data::TensorDataset(rows, rows), {.batch_size = 4}));
    for (auto& batch : loader) {
      const at::Tensor mean = batch.data.to(at::kFloat).mean().reshape({1});
      EXPECT_EQ(accelerator.gather_for_metrics(mean).size(0), 2);
      EXPECT_EQ(accelerator.gather_for_metrics(batch.data).size(0), 5);
    }
  });
}

}  // namespace
}  // namespace lockstep
