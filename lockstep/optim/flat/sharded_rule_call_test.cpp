// SPDX-License-Identifier: Apache-2.0
// Rules that need full parameters, on ranks that have slices of them: against one process.
#include "lockstep/optim/flat/sharded_rule_call.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/muon.h"
#include "lockstep/optim/test_training.h"

namespace lockstep::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Sizes = std::vector<int64_t>;

/// Matrices, long, wide and square, kernels, one without elements, and what is no matrix.
const std::vector<Sizes> kBatchMatrices = {
    {40, 13}, {7, 90}, {8, 3, 5, 5}, {1, 1}, {0, 4}, {33, 33}};
const std::vector<Sizes> kOthers = {{5}, {}, {301}, {2, 3, 4}, {6, 1}};

at::Tensor start(size_t k, const Sizes& sizes, at::ScalarType type) {
  return numbers(sizes, 3 * static_cast<int64_t>(k), 5, 11, 4).to(type).clone();
}

/// Undefined: what has none in a step.
at::Tensor gradient_of(size_t k, const Sizes& sizes, int64_t t, at::ScalarType type) {
  if (k == 1 && t % 3 == 1) {
    return {};
  }
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (index * 0.7 + static_cast<double>(t + 5 * static_cast<int64_t>(k)))
      .cos()
      .reshape(sizes)
      .to(type);
}

/// Parameters in two flat buffers, each cut into equal parts, and one rank's slices of them.
class Slices {
 public:
  Slices(const std::vector<Sizes>& shapes, size_t first, const Group& group, at::ScalarType type)
      : shapes_(shapes), first_(first), rank_(group.rank()) {
    const size_t half = shapes.size() / 2;
    for (const auto& [begin, end] : {std::pair(size_t{0}, half), std::pair(half, shapes.size())}) {
      cut(begin, end, group.size(), type);
    }
  }

  const std::vector<FlatOptimizer::BufferSlices>& buffer_slices() const { return slices_; }

  void put_gradients(int64_t t) const {
    for (size_t k = 0; k < shapes_.size(); ++k) {
      if (own_[k].defined()) {
        const at::Tensor full = gradient_of(first_ + k, shapes_[k], t, own_[k].scalar_type());
        own_[k].mutable_grad() = full.defined() ? part_of(k, full).clone() : at::Tensor();
      }
    }
  }
  /// Undefined if others have all of it.
  const at::Tensor& own(size_t k) const { return own_[k]; }
  at::Tensor part_of(size_t k, const at::Tensor& full) const {
    return full.detach().reshape({-1}).narrow(0, bounds_[k].begin(rank_), bounds_[k].length(rank_));
  }

 private:
  void cut(size_t begin, size_t end, int size, at::ScalarType type) {
    constexpr int64_t kGap = 3;
    int64_t total = 0;
    for (size_t k = begin; k < end; ++k) {
      total += c10::multiply_integers(shapes_[k]) + kGap;
    }
    const int64_t each = (total + size - 1) / size;
    FlatOptimizer::BufferSlices buffer_slices{.buffer = at::zeros({each}, type), .tensors = {}};
    int64_t offset = 0;
    for (size_t k = begin; k < end; ++k) {
      const int64_t numel = c10::multiply_integers(shapes_[k]);
      flat::ShardBounds bounds{.sizes = shapes_[k], .bounds = {}};
      for (int rank = 0; rank <= size; ++rank) {
        bounds.bounds.push_back(std::clamp(each * rank - offset, int64_t{0}, numel));
      }
      bounds_.push_back(bounds);
      own_.emplace_back();
      if (const int64_t length = bounds.length(rank_); length > 0) {
        const int64_t at = offset + bounds.begin(rank_) - each * rank_;
        buffer_slices.buffer.narrow(0, at, length)
            .copy_(part_of(k, start(first_ + k, shapes_[k], type)));
        own_[k] =
            buffer_slices.buffer.narrow(0, at, length).variable_data().set_requires_grad(true);
        buffer_slices.tensors.push_back(own_[k]);
      }
      buffer_slices.full_parameters.push_back(bounds);
      offset += numel + kGap;
    }
    slices_.push_back(std::move(buffer_slices));
  }

  std::vector<Sizes> shapes_;
  size_t first_;  ///< Number of the first one.
  int rank_;
  std::vector<flat::ShardBounds> bounds_;
  std::vector<at::Tensor> own_;
  std::vector<FlatOptimizer::BufferSlices> slices_;
};

/// The initial parameters of one process.
Parameters full_parameters_of(const std::vector<Sizes>& shapes, size_t first, at::ScalarType type) {
  Parameters parameters;
  for (size_t k = 0; k < shapes.size(); ++k) {
    parameters.push_back(start(first + k, shapes[k], type).requires_grad_());
  }
  return parameters;
}

/// `tolerance` 0: bit-exact.
template <typename Optimizer>
void expect_slices_equal_full(
    const std::vector<std::vector<Sizes>>& shapes,
    const std::vector<typename Optimizer::Options>& options,
    at::ScalarType type,
    double tolerance) {
  constexpr int64_t kUpdates = 7;
  const auto make = [&] {
    std::vector<typename Optimizer::Group> groups;
    for (size_t g = 0; g < shapes.size(); ++g) {
      groups.push_back({full_parameters_of(shapes[g], 10 * g, type), options[g]});
    }
    return groups;
  };
  const auto alone = make();
  Optimizer one(alone);
  for (int64_t t = 0; t < kUpdates; ++t) {
    for (size_t g = 0; g < shapes.size(); ++g) {
      for (size_t k = 0; k < shapes[g].size(); ++k) {
        alone[g].parameters[k].mutable_grad() = gradient_of(10 * g + k, shapes[g][k], t, type);
      }
    }
    one.step();
  }
  for (const int size : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    ranks(size, [&](Group group) {
      Optimizer optimizer(make());
      std::vector<Slices> slices;
      std::vector<std::vector<FlatOptimizer::BufferSlices>> buffer_slices;
      for (size_t g = 0; g < shapes.size(); ++g) {
        slices.emplace_back(shapes[g], 10 * g, group, type);
        buffer_slices.push_back(slices.back().buffer_slices());
      }
      optimizer.update_shards(buffer_slices, {}, group);
      for (int64_t t = 0; t < kUpdates; ++t) {
        for (const Slices& each : slices) {
          each.put_gradients(t);
        }
        optimizer.step();
      }
      for (size_t g = 0; g < shapes.size(); ++g) {
        for (size_t k = 0; k < shapes[g].size(); ++k) {
          if (!slices[g].own(k).defined()) {
            continue;
          }
          SCOPED_TRACE("group " + std::to_string(g) + ", parameter " + std::to_string(k));
          const at::Tensor& full = alone[g].parameters[k];
          expect_near(slices[g].own(k), slices[g].part_of(k, full), tolerance);
          const auto got = optimizer.state_of(slices[g].own(k));
          const auto expected = one.state_of(full);
          EXPECT_EQ(got.step, expected.step);
          for (size_t field = 0; field < expected.fields.size(); ++field) {
            const at::Tensor& state = expected.fields[field];
            const bool shaped =
                state.defined() && state.sizes() == full.sizes() && got.fields[field].dim() == 1;
            expect_near(got.fields[field], shaped ? slices[g].part_of(k, state) : state, tolerance);
          }
        }
      }
    });
  }
}

TEST(Sharded, MuonHasTheBitsOfOneProcess) {
  for (const bool gram : {false, true}) {
    for (const bool nesterov : {false, true}) {
      expect_slices_equal_full<Muon>(
          {kBatchMatrices, kOthers},
          {{.lr = 0.02, .nesterov = nesterov, .match_rms_adamw = gram, .gram = gram},
           {.lr = 0.003, .use_muon = false}},
          gram && nesterov ? at::kDouble : at::kFloat,
          0);
    }
  }
}

TEST(Sharded, LambHasTheNumbersOfOneProcess) {
  for (const bool capturable : {false, true}) {
    for (const bool decays : {false, true}) {
      expect_slices_equal_full<LAMB>(
          {kBatchMatrices, kOthers},
          {{.lr = 0.02, .weight_decay = decays ? 0.1 : 0, .capturable = capturable},
           {.lr = 0.003, .bias_correction = false, .capturable = capturable}},
          at::kDouble,
          1e-13);
    }
  }
  expect_slices_equal_full<LAMB>({kBatchMatrices, kOthers}, {{}, {.lr = 0.1}}, at::kFloat, 1e-5);
}

TEST(Sharded, AdafactorHasTheNumbersOfOneProcess) {
  for (const bool maximize : {false, true}) {
    expect_slices_equal_full<Adafactor>(
        {kBatchMatrices, kOthers},
        {{.weight_decay = 0.1, .maximize = maximize}, {.lr = 0.3, .d = 2}},
        at::kDouble,
        1e-13);
  }
  expect_slices_equal_full<Adafactor>({kBatchMatrices, kOthers}, {{}, {}}, at::kFloat, 1e-5);
}

TEST(Sharded, OwnersHaveEqualWorkAndKeepTheirOwnMatrices) {
  const flat::ShardBounds first{.sizes = {10}, .bounds = {0, 10, 10, 10}};
  const flat::ShardBounds last{.sizes = {10}, .bounds = {0, 0, 0, 10}};
  EXPECT_THAT(owners_of({&last, &first, &last}, {1, 1, 1}, 3), ElementsAre(2, 0, 1));
  EXPECT_THAT(
      owners_of({&first, &first, &first, &first}, {1, 1, 5, 2}, 2), ElementsAre(1, 1, 0, 1));
}

TEST(Sharded, ManyMatricesAreGatheredInRounds) {
  constexpr int64_t kBig = 1500;  // 9 MB each, so that two ranks' 50 MiB are several rounds.
  ranks(2, [&](Group group) {
    const flat::ShardBounds bounds{
        .sizes = {kBig, kBig}, .bounds = {0, kBig * 700 + 11, kBig * kBig}};
    ShardedRuleCall call{
        .ranks = group,
        .full_parameters = {},
        .full_index = {},
        .slices = {},
        .options = at::kFloat};
    constexpr size_t kCount = 9;
    for (size_t i = 0; i < kCount; ++i) {
      call.full_index.push_back(i);
      call.full_parameters.push_back(&bounds);
    }
    int64_t worked = 0;
    const auto values = [&](size_t i) {
      return (at::arange(kBig * kBig, at::kInt) % 1000 + static_cast<int64_t>(i))
          .to(at::kFloat)
          .narrow(0, bounds.begin(group.rank()), bounds.length(group.rank()));
    };
    std::vector<bool> taken(kCount);
    update_on_owners(
        call,
        {.costs = std::vector<double>(kCount, 1),
         .result = at::kDouble,
         .input = values,
         .compute =
             [&](const at::Tensor& full) {
               ++worked;
               EXPECT_EQ(full[0][1].item<double>() - full[0][0].item<double>(), 1);
               return full * 3;
             },
         .apply =
             [&](size_t i, const at::Tensor& result) {
               taken[i] = at::equal(result, (values(i) * 3).to(at::kDouble));
             }});
    EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](bool good) { return good; }));
    EXPECT_GE(worked, 4);
    EXPECT_LE(worked, 5);
  });
}

TEST(Sharded, GradientsOnSomeRanksAloneAreRefusedOnAll) {
  ranks(3, [](Group group) {
    Muon optimizer(full_parameters_of({{40, 13}}, 0, at::kFloat));
    const Slices slices({{40, 13}}, 0, group, at::kFloat);
    optimizer.update_shards({slices.buffer_slices()}, {}, group);
    slices.put_gradients(0);
    if (group.rank() == 1) {
      slices.own(0).mutable_grad().reset();
    }
    EXPECT_THAT(
        error_of([&] { optimizer.step(); }),
        HasSubstr("a parameter of shape [40, 13] in group 0 has a gradient on some ranks"));
  });
}

TEST(Sharded, UnsupportedShardedUpdatesAreRefused) {
  ranks(2, [](Group group) {
    const Slices slices({{40, 13}}, 0, group, at::kFloat);
    LAMB alone(full_parameters_of({{40, 13}}, 0, at::kFloat));
    EXPECT_THAT(
        error_of([&] { alone.update_shards({slices.buffer_slices()}); }),
        HasSubstr("LAMB needs full parameters; got shard slices"));
    EXPECT_THAT(
        error_of([&] {
          alone.update_shards({slices.buffer_slices()}, {.device = OffloadDevice::kCpu}, group);
        }),
        HasSubstr("LAMB cannot be combined with offload_optimizer"));
    alone.update_shards({slices.buffer_slices()}, {}, group);
    alone.param_groups()[0].params().push_back(at::zeros({3}).requires_grad_());
    EXPECT_THAT(error_of([&] { alone.step(); }), HasSubstr("was added to a sharded optimizer"));
  });
}

}  // namespace
}  // namespace lockstep::optim
