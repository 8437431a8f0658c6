// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/sync/comm_hook/test_hooks.h"

namespace lockstep {
namespace {

constexpr int kSteps = 100;

/// The loss after kSteps, the same on every rank.
double final_loss(const Runner& run, int size, const CommHookOptions& hook) {
  std::vector<double> losses(static_cast<size_t>(size));
  run(size, [&](Group group) {
    const Mlp net;
    DataParallel parallel(
        net.named(), {}, group, {.cap_bytes = 4096, .first_cap_bytes = 2048, .comm_hook = hook});
    for (int step = 0; step < kSteps; ++step) {
      net.step(group.rank(), step);
    }
    EXPECT_TRUE(has_compressed(parallel) || !is_power_sgd(hook));
    losses[static_cast<size_t>(group.rank())] = net.total_loss(size);
  });
  for (double loss : losses) {
    EXPECT_EQ(loss, losses[0]);
  }
  return losses[0];
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

TEST_P(CommHookBand, LossStaysNearThatOfUncompressedTraining) {
  const HookCase& c = hook_cases()[std::get<0>(GetParam())];
  const auto& [size, transport] = std::get<1>(GetParam());
  static std::map<int, double> uncompressed;
  if (!uncompressed.contains(size)) {
    uncompressed[size] = final_loss(runner("thread"), size, {});
  }
  const double expected = uncompressed[size];
  const double start = Mlp().total_loss(size);
  ASSERT_LT(expected, start / 4);
  const double loss = final_loss(runner(transport), size, c.options);
  RecordProperty("relative", std::to_string(std::abs(loss - expected) / expected));
  EXPECT_LE(std::abs(loss - expected), c.band * expected) << "uncompressed " << expected;
}

}  // namespace
}  // namespace lockstep
