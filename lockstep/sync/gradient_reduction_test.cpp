// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/gradient_reduction.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr int kFirst = 1;  // Numbers of backward passes.
constexpr int kSecond = 2;

/// Four parameters in three buckets; records the calls.
class FakeBuckets final : public GradientBuckets {
 public:
  explicit FakeBuckets(GradientReduction::Overlap overlap = GradientReduction::Overlap::kRefused)
      : reduction("fake", overlap, *this) {
    reduction.set_layout(4, {{3, 2}, {1}, {0}});
  }

  const std::string& parameter_name(size_t parameter) const override { return names_[parameter]; }
  bool on_gradient(size_t parameter, bool averages) override {
    record((averages ? "gradient " : "local ") + std::to_string(parameter));
    return counts;
  }
  void begin_backward() override { record("backward"); }
  void begin_reduction() override {
    record("reduction");
    fail("reduction");
  }
  void start_bucket(size_t bucket) override {
    record("start " + std::to_string(bucket));
    fail("start " + std::to_string(bucket));
  }
  void finish_buckets() override {
    record("finish");
    fail("finish");
  }
  void abandon_buckets(bool wait) override { record(wait ? "abandon after waiting" : "abandon"); }
  void finish_local_backward() override { record("local end"); }

  /// The calls since the last call of this function, without those for single gradients.
  std::vector<std::string> calls() {
    std::vector<std::string> some;
    for (std::string& call : std::exchange(calls_, {})) {
      if (!call.starts_with("gradient ")) {
        some.push_back(std::move(call));
      }
    }
    return some;
  }
  void arrive(const std::vector<size_t>& parameters, int backward = kFirst) {
    for (const size_t parameter : parameters) {
      reduction.gradient_arrived(parameter, backward);
    }
  }

  GradientReduction reduction;
  bool counts = true;
  std::string failing;  ///< The call that throws.

 private:
  void record(std::string call) {
    EXPECT_FALSE(c10::GradMode::is_enabled()) << call;
    calls_.push_back(std::move(call));
  }
  void fail(const std::string& call) const {
    if (call == failing) {
      throw std::runtime_error(call + " failed");
    }
  }

  std::vector<std::string> names_ = {"a", "b", "c", "d"};
  std::vector<std::string> calls_;
};

TEST(GradientReduction, StartsBucketsInIndexOrderForEveryOrderOfGradients) {
  FakeBuckets buckets;
  buckets.reduction.begin();
  EXPECT_THAT(buckets.calls(), IsEmpty());
  buckets.arrive({0, 1, 2});
  EXPECT_THAT(buckets.calls(), ElementsAre("backward")) << "parameter 3 of bucket 0 is missing";
  buckets.arrive({3});
  EXPECT_THAT(buckets.calls(), ElementsAre("reduction", "start 0", "start 1", "start 2"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("finish"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), IsEmpty()) << "autograd had called it already";
  EXPECT_EQ(buckets.reduction.reductions(), 1);

  buckets.arrive({3, 2}, kSecond);
  EXPECT_THAT(buckets.calls(), ElementsAre("backward", "reduction", "start 0"));
  buckets.arrive({0, 1}, kSecond);
  EXPECT_THAT(buckets.calls(), ElementsAre("start 1", "start 2"));
  buckets.reduction.finish();
  EXPECT_EQ(buckets.reduction.reductions(), 2);
}

TEST(GradientReduction, FinishStartsBucketsWithUnusedParameters) {
  FakeBuckets buckets;
  buckets.reduction.begin();
  buckets.arrive({3, 1});
  EXPECT_THAT(buckets.calls(), ElementsAre("backward"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("reduction", "start 0", "start 1", "start 2", "finish"));
}

TEST(GradientReduction, AnnouncedBackwardAveragesEvenIfItReachesNothing) {
  FakeBuckets buckets;
  buckets.reduction.begin();
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("reduction", "start 0", "start 1", "start 2", "finish"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), IsEmpty()) << "no backward was announced";
  buckets.reduction.reduce_without_backward();
  EXPECT_THAT(buckets.calls(), ElementsAre("reduction", "start 0", "start 1", "start 2", "finish"));
  buckets.reduction.begin(/*has_work=*/false);
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("local end"));
}

TEST(GradientReduction, DeferredBucketsStartAtTheEndOfBackward) {
  FakeBuckets buckets;
  buckets.reduction.set_deferred(true);
  buckets.arrive({3, 2, 1, 0});
  EXPECT_THAT(buckets.calls(), ElementsAre("backward"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("reduction", "start 0", "start 1", "start 2", "finish"));
}

TEST(GradientReduction, BackwardWithoutSyncStartsNothing) {
  FakeBuckets buckets;
  buckets.reduction.set_sync(false);
  buckets.arrive({3, 2, 1, 0});
  EXPECT_THAT(buckets.calls(), ElementsAre("local 3", "local 2", "local 1", "local 0"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), IsEmpty()) << "it was not announced";
  buckets.reduction.begin();
  buckets.arrive({1}, kSecond);
  buckets.reduction.set_sync(true);
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), ElementsAre("local 1", "local end"));
  EXPECT_EQ(buckets.reduction.reductions(), 0);
}

TEST(GradientReduction, AbandonedBackwardLeavesNothingToTheNext) {
  FakeBuckets buckets;
  buckets.reduction.begin();
  buckets.arrive({3, 2, 0});
  buckets.reduction.abandon();
  EXPECT_THAT(
      buckets.calls(), ElementsAre("backward", "reduction", "start 0", "abandon after waiting"));
  EXPECT_EQ(buckets.reduction.reductions(), 1) << "bucket 0 was reduced";
  buckets.arrive({1}, kSecond);
  buckets.reduction.abandon();
  EXPECT_EQ(buckets.reduction.reductions(), 1) << "no bucket was";
  buckets.calls();

  buckets.arrive({0, 1, 2, 3}, kSecond + 1);
  buckets.reduction.finish();
  EXPECT_THAT(
      buckets.calls(),
      ElementsAre("backward", "reduction", "start 0", "start 1", "start 2", "finish"));
}

TEST(GradientReduction, FailureAtTheEndAbandonsAndTheNextBackwardIsComplete) {
  for (const char* failing : {"reduction", "start 1", "finish"}) {
    FakeBuckets buckets;
    buckets.failing = failing;
    buckets.arrive({1});
    EXPECT_THROW(buckets.reduction.finish(), std::runtime_error);
    EXPECT_EQ(buckets.calls().back(), "abandon");
    EXPECT_EQ(buckets.reduction.reductions(), 1);
    buckets.failing.clear();
    buckets.arrive({1}, kSecond);
    buckets.reduction.finish();
    EXPECT_THAT(
        buckets.calls(),
        ElementsAre("backward", "reduction", "start 0", "start 1", "start 2", "finish"));
  }
}

TEST(GradientReduction, RefusedReductionDuringBackwardHasNotBegun) {
  FakeBuckets buckets;
  buckets.failing = "reduction";
  EXPECT_THROW(buckets.arrive({2, 3}), std::runtime_error);
  EXPECT_THAT(buckets.calls(), ElementsAre("backward", "reduction"));
  buckets.reduction.finish();
  EXPECT_THAT(buckets.calls(), IsEmpty());
}

TEST(GradientReduction, SecondBackwardBeforeTheEndIsRefused) {
  FakeBuckets buckets;
  buckets.arrive({3, 2});
  EXPECT_THAT(
      [&] { buckets.arrive({1}, kSecond); },
      ThrowsMessage<Error>(StartsWith("[fake] the previous backward has not ended")));
  buckets.reduction.abandon();
  EXPECT_NO_THROW(buckets.arrive({1}, kSecond));

  FakeBuckets nested(GradientReduction::Overlap::kAllowed);
  nested.arrive({3, 2});
  nested.arrive({1}, kSecond);
  EXPECT_THAT(nested.calls(), ElementsAre("backward", "reduction", "start 0", "start 1"));
}

TEST(GradientReduction, SecondGradientIsRefusedOnceTheFirstIsSent) {
  FakeBuckets buckets;
  EXPECT_NO_THROW(buckets.arrive({3, 3, 2}));
  EXPECT_THAT(
      [&] { buckets.arrive({3}); },
      ThrowsMessage<ConfigError>(HasSubstr("parameter d got a second gradient in one backward")));
  buckets.counts = false;
  EXPECT_NO_THROW(buckets.arrive({3})) << "it has no value";
}

}  // namespace
}  // namespace lockstep
