// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/grad_scaler.h"

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void set_gradient(at::Tensor& parameter, float last) {
  parameter.mutable_grad() = at::tensor({1.0F, last});
}

/// One optimizer, as its key, and what it would update.
struct Model {
  Tensors parameters = {at::zeros({2}).requires_grad_()};
  int updates = 0;

  bool step(GradScaler& scaler) {
    return scaler.step(this, parameters, [this] { ++updates; });
  }
  bool iterate(GradScaler& scaler, float gradient) {
    scaler.scale(at::zeros({}));
    set_gradient(parameters[0], gradient);
    const bool stepped = step(scaler);
    scaler.update();
    return stepped;
  }
};

GradScalerOptions options_of(const nlohmann::json& json) {
  GradScalerOptions options;
  options.init_scale = json.value("init_scale", options.init_scale);
  options.growth_factor = json.value("growth_factor", options.growth_factor);
  options.backoff_factor = json.value("backoff_factor", options.backoff_factor);
  options.growth_interval = json.value("growth_interval", options.growth_interval);
  return options;
}

TEST(GradScaler, EqualsTorchsExactlyAlsoWhenResumedAtEachStep) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/grad_scaler.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.at("cases").size(), 6U);
  for (const auto& entry : golden.at("cases")) {
    const std::string steps = entry.at("steps");
    GradScaler unbroken(options_of(entry.at("options")));
    nlohmann::json saved = unbroken.state();
    for (size_t i = 0; i < steps.size(); ++i) {
      GradScaler resumed;
      resumed.load_state(nlohmann::json::parse(saved.dump()));
      for (GradScaler* scaler : {&unbroken, &resumed}) {
        Model model;
        scaler->scale(at::zeros({}));
        set_gradient(
            model.parameters[0],
            steps[i] == 'i'   ? kInfinity
            : steps[i] == 'n' ? kNaN
                              : 1.0F);
        const bool stepped = model.step(*scaler);
        scaler->update(steps[i] == '=' ? std::optional(1000.0) : std::nullopt);
        const nlohmann::json trace = {scaler->get_scale(), scaler->growth_tracker(), stepped};
        EXPECT_EQ(trace, entry.at("trace")[i]) << entry.at("name") << ", step " << i;
      }
      saved = resumed.state();
    }
  }
}

TEST(GradScaler, ScalesTheLossAndItsGradientsAndUnscalesThemExactly) {
  GradScaler scaler({.init_scale = 1024});
  const at::Tensor weight = at::tensor({0.5F, -3.0F}).requires_grad_();
  scaler.scale((weight * weight).sum()).backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::tensor({1024.0F, -6144.0F})));
  bool updated = false;
  EXPECT_TRUE(scaler.step(&scaler, {weight}, [&] {
    updated = true;
    EXPECT_TRUE(at::equal(weight.grad(), at::tensor({1.0F, -6.0F})));
  }));
  EXPECT_TRUE(updated);
}

TEST(GradScaler, UnscalesOnceUntilUpdate) {
  GradScaler scaler({.init_scale = 4});
  Model model;
  scaler.scale(at::zeros({}));
  model.parameters[0].mutable_grad() = at::full({2}, 64.0F);
  scaler.unscale_(&model, model.parameters);
  scaler.unscale_(&model, model.parameters);
  model.step(scaler);
  scaler.unscale_(&model, model.parameters);
  EXPECT_EQ(model.parameters[0].grad()[0].item<float>(), 16.0F);
  scaler.update();
  scaler.unscale_(&model, model.parameters);
  EXPECT_EQ(model.parameters[0].grad()[0].item<float>(), 4.0F);
}

TEST(GradScaler, AnInfSkipsOnlyItsOwnOptimizerButShrinksTheScale) {
  GradScaler scaler({.init_scale = 8});
  Model good;
  Model bad;
  scaler.scale(at::zeros({}));
  set_gradient(good.parameters[0], 1);
  set_gradient(bad.parameters[0], kNaN);
  EXPECT_FALSE(bad.step(scaler));
  EXPECT_TRUE(good.step(scaler));
  EXPECT_TRUE(scaler.found_inf());
  scaler.update();
  EXPECT_TRUE(scaler.found_inf()) << "of the iteration that ended";
  EXPECT_EQ(bad.updates, 0);
  EXPECT_EQ(good.updates, 1);
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_TRUE(bad.iterate(scaler, 1));
  EXPECT_FALSE(scaler.found_inf());
}

TEST(GradScaler, SeesAnInfAmongSeveralDtypesAndSparseGradients) {
  for (const int infinite : {-1, 0, 1, 2}) {
    GradScaler scaler({.init_scale = 2});
    scaler.scale(at::zeros({}));
    Model model;
    model.parameters = {
        at::zeros({2}).requires_grad_(),
        at::zeros({2}, at::kDouble).requires_grad_(),
        at::zeros({2}).requires_grad_(),
        at::zeros({2}).requires_grad_()};  // Without a gradient.
    for (int i = 0; i < 3; ++i) {
      const at::Tensor gradient = at::full({2}, i == infinite ? kInfinity : 6.0F);
      at::Tensor& parameter = model.parameters[static_cast<size_t>(i)];
      parameter.mutable_grad() =
          i == 2 ? gradient.to_sparse() : gradient.to(parameter.scalar_type());
    }
    EXPECT_EQ(model.step(scaler), infinite < 0) << infinite;
    if (infinite < 0) {
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(model.parameters[i].grad().to_dense()[1].item<double>(), 3.0);
      }
    }
  }
}

TEST(GradScaler, CountsAParameterGivenTwiceOnce) {
  GradScaler scaler({.init_scale = 2});
  const at::Tensor weight = at::zeros({2}).requires_grad_();
  scaler.scale(at::zeros({}));
  weight.mutable_grad() = at::full({2}, 8.0F);
  scaler.unscale_(&scaler, {weight, weight});
  EXPECT_EQ(weight.grad()[0].item<float>(), 4.0F);
}

TEST(GradScaler, DisabledPassesEverythingThrough) {
  GradScaler scaler({.enabled = false});
  const at::Tensor loss = at::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  Model model;
  set_gradient(model.parameters[0], kInfinity);
  EXPECT_TRUE(model.step(scaler));
  scaler.unscale_(&model, model.parameters);
  scaler.update();
  EXPECT_EQ(model.updates, 1);
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.state(), nlohmann::json::object());
  EXPECT_NO_THROW(scaler.load_state({}));
}

TEST(GradScaler, AnUpdateThatThrowsLeavesTheStepDone) {
  GradScaler scaler;
  Model model;
  scaler.scale(at::zeros({}));
  set_gradient(model.parameters[0], 1);
  const auto fail = [] { throw std::runtime_error("no memory"); };
  EXPECT_THROW(scaler.step(&model, model.parameters, fail), std::runtime_error);
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 1);
}

TEST(GradScaler, RefusesCallsOutOfOrder) {
  Model model;
  set_gradient(model.parameters[0], 1);
  GradScaler scaler;
  EXPECT_THROW(model.step(scaler), ConfigError) << "nothing was scaled";
  EXPECT_THROW(scaler.unscale_(&model, model.parameters), ConfigError);
  EXPECT_THROW(scaler.update(), ConfigError);
  EXPECT_EQ(model.parameters[0].grad()[0].item<float>(), 1.0F) << "nothing was divided";
  scaler.scale(at::zeros({}));
  EXPECT_THROW(scaler.update(), ConfigError) << "no optimizer";
  EXPECT_TRUE(model.step(scaler));
  EXPECT_THROW(model.step(scaler), ConfigError) << "twice";
  EXPECT_THROW(scaler.update(0.0), ConfigError);
}

TEST(GradScaler, RefusesFp16Gradients) {
  GradScaler scaler;
  scaler.scale(at::zeros({}));
  at::Tensor weight = at::zeros({2}, at::kHalf).requires_grad_();
  weight.mutable_grad() = at::ones({2}, at::kHalf);
  EXPECT_THROW(scaler.unscale_(&scaler, {weight}), ConfigError);
}

TEST(GradScaler, RefusesOptionsAndStatesWithoutSense) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), ConfigError);
  EXPECT_THROW(GradScaler({.init_scale = 1e39}), ConfigError);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), ConfigError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), ConfigError);
  EXPECT_THROW(GradScaler({.backoff_factor = 0}), ConfigError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), ConfigError);
  GradScaler scaler;
  const nlohmann::json before = scaler.state();
  EXPECT_THROW(scaler.load_state(nlohmann::json::object()), ConfigError);
  nlohmann::json bad = before;
  bad["backoff_factor"] = 2;
  EXPECT_THROW(scaler.load_state(bad), ConfigError);
  bad = before;
  bad["scale"] = "high";
  EXPECT_THROW(scaler.load_state(bad), ConfigError);
  bad = before;
  bad["growth_tracker"] = -1;
  EXPECT_THROW(scaler.load_state(bad), ConfigError);
  EXPECT_EQ(scaler.state(), before);
}

TEST(GradScaler, RefusesANewScaleThatFp32CannotHold) {
  for (const double scale : {1e300, 1e-60, -1.0, double{kNaN}, double{kInfinity}}) {
    GradScaler scaler;
    scaler.scale(at::zeros({}));
    EXPECT_THROW(scaler.update(scale), ConfigError) << scale;
    EXPECT_EQ(scaler.get_scale(), 65536) << scale;
    EXPECT_THROW(GradScaler({.init_scale = scale}), ConfigError) << scale;
  }
}

TEST(GradScaler, LoadsAScaleOfZeroWithAWarning) {
  GradScaler scaler({.init_scale = 1, .backoff_factor = 1e-30});
  Model model;
  model.iterate(scaler, kNaN);
  model.iterate(scaler, kNaN);
  ASSERT_EQ(scaler.get_scale(), 0);
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  GradScaler loaded;
  EXPECT_NO_THROW(loaded.check_state(scaler.state()));
  EXPECT_TRUE(lines.empty());
  loaded.load_state(scaler.state());
  set_log_sink({});
  EXPECT_EQ(loaded.state(), scaler.state());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("diverged"));
}

TEST(GradScaler, CheckStateRefusesTheSameStatesAsLoadStateAndChangesNothing) {
  const GradScaler scaler;
  const nlohmann::json before = scaler.state();
  nlohmann::json other = before;
  other["scale"] = 2.0;
  EXPECT_NO_THROW(scaler.check_state(other));
  EXPECT_EQ(scaler.state(), before);
  other["growth_interval"] = 0;
  EXPECT_THROW(scaler.check_state(other), ConfigError);
  EXPECT_THROW(scaler.check_state(nullptr), ConfigError);
  EXPECT_NO_THROW(GradScaler({.enabled = false}).check_state(nullptr));
}

TEST(GradScaler, ForgetsOptimizersOfTheRunningIteration) {
  GradScaler scaler;
  Model model;
  scaler.scale(at::zeros({}));
  set_gradient(model.parameters[0], kNaN);
  EXPECT_FALSE(model.step(scaler));
  scaler.forget_optimizers();
  set_gradient(model.parameters[0], 1);
  EXPECT_TRUE(model.step(scaler)) << "a new optimizer at the old one's address";
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 65536);
}

TEST(GradScaler, UnscalesAGradientThatWasExpanded) {
  GradScaler scaler({.init_scale = 2});
  at::Tensor weight = at::zeros({3}).requires_grad_();
  scaler.scale(at::zeros({}));
  weight.mutable_grad() = at::full({1}, 8.0F).expand({3});
  scaler.unscale_(&scaler, {weight});
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 4.0F)));
}

TEST(GradScaler, RanksAgreeWhenOneAloneSeesAnInf) {
  ranks(3, [](Group group) {
    const int rank = group.rank();
    GradScaler scaler({.init_scale = 16, .growth_interval = 2}, group);
    Model model;
    for (int i = 0; i < 6; ++i) {
      const bool bad = i == 1 || i == 4;
      const bool here = rank == i % 3;
      EXPECT_EQ(model.iterate(scaler, bad && here ? kInfinity : 1.0F), !bad);
    }
    // 16, inf: 8, two clean: 16, inf: 8, clean.
    EXPECT_EQ(scaler.get_scale(), 8.0) << "rank " << rank;
    EXPECT_EQ(scaler.growth_tracker(), 1);
    EXPECT_EQ(model.updates, 4);
  });
}

TEST(GradScaler, RanksAgreeIfOneHasNoGradientOrTheStepIsSkipped) {
  ranks(2, [](Group group) {
    GradScaler scaler({.init_scale = 16}, group);
    Model model;
    scaler.scale(at::zeros({}));
    if (group.rank() == 1) {
      set_gradient(model.parameters[0], kNaN);
    }
    EXPECT_FALSE(model.step(scaler));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 8.0);
    // Unscaled, looked at, and the step left out: update() still hears of it, on both.
    scaler.unscale_(&model, model.parameters);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 4.0);
    EXPECT_EQ(model.updates, 0);
  });
}

}  // namespace
}  // namespace lockstep
