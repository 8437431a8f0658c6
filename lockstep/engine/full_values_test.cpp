// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/full_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// What an engine of one stage has after two updates and a backward, on rank 0, and after edits.
struct Seen {
  at::Tensor parameter, gradient, exp_avg, step, edited_parameter, edited_state, after_step;
};

Seen seen_in_stage(int stage, int world) {
  Seen seen;
  on_engine_ranks(world, simple_config(1, stage), [&](InitializeOptions options) {
    EngineNet net;
    const bool first = options.connected->group.rank() == 0;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    const at::Tensor weight = net->fc->weight;
    EXPECT_FALSE(engine.safe_get_full_grad(weight).defined());
    for (int step = 0; step < 2; ++step) {
      engine.backward(engine(engine_batch(step)).square().mean());
      engine.step();
    }
    engine.backward(engine(engine_batch(2)).square().mean());
    Seen here{
        engine.safe_get_full_fp32_param(weight),
        engine.safe_get_full_grad(weight),
        engine.safe_get_full_optimizer_state(weight, "exp_avg"),
        engine.safe_get_full_optimizer_state(weight, "step")};
    engine.safe_set_full_fp32_param(weight, at::full_like(here.parameter, 2));
    engine.safe_set_full_optimizer_state(weight, at::full_like(here.exp_avg, 3), "exp_avg");
    engine.safe_set_full_grad(weight, at::full_like(here.gradient, 0.5));
    here.edited_parameter = engine.safe_get_full_fp32_param(weight);
    here.edited_state = engine.safe_get_full_optimizer_state(weight, "exp_avg");
    engine.step();
    here.after_step = engine.safe_get_full_fp32_param(weight);
    if (first) {
      seen = here;
    }
  });
  return seen;
}

TEST(FullValues, are_those_of_one_process_in_every_stage_and_so_is_what_follows_an_edit) {
  const Seen alone = seen_in_stage(0, 1);
  EXPECT_EQ(alone.step.item<double>(), 2);
  EXPECT_TRUE(at::equal(alone.edited_parameter, at::full({16, 6}, 2.0)));
  EXPECT_FALSE(at::equal(alone.after_step, alone.edited_parameter));
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : {2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " of " + std::to_string(world));
      const Seen seen = seen_in_stage(stage, world);
      EXPECT_TRUE(at::allclose(seen.parameter, alone.parameter));
      EXPECT_TRUE(at::allclose(seen.gradient, alone.gradient));
      EXPECT_TRUE(at::allclose(seen.exp_avg, alone.exp_avg));
      EXPECT_EQ(seen.step.item<double>(), 2);
      EXPECT_TRUE(at::equal(seen.edited_parameter, alone.edited_parameter));
      EXPECT_TRUE(at::equal(seen.edited_state, at::full({16, 6}, 3.0)));
      EXPECT_TRUE(at::allclose(seen.after_step, alone.after_step));
    }
  }
}

TEST(FullValues, refuse_what_nobody_has_on_all_ranks) {
  on_engine_ranks(2, simple_config(1, 2), [](InitializeOptions options) {
    EngineNet net;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    auto& ours = engine;
    EXPECT_THAT(
        [&] { ours.safe_get_full_fp32_param(at::ones({3})); },
        ThrowsMessage<ConfigError>(HasSubstr("got a tensor that it does not")));
    EXPECT_THAT(
        [&] { ours.safe_get_full_optimizer_state(net->fc->weight, "exp_avg"); },
        ThrowsMessage<ConfigError>(HasSubstr("state is there after the first step")));
    EXPECT_THAT(
        [&] { ours.safe_set_full_grad(net->fc->weight, at::ones({16, 6})); },
        ThrowsMessage<ConfigError>(HasSubstr("call it between backward and step")));
    EXPECT_THAT(
        [&] { ours.safe_set_full_fp32_param(net->fc->weight, at::ones({6, 16})); },
        ThrowsMessage<ConfigError>(HasSubstr("got [6, 16], expected [16, 6]")));
  });
}

}  // namespace
}  // namespace lockstep
