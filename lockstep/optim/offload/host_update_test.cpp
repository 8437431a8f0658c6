// SPDX-License-Identifier: Apache-2.0
// Offloaded state: its location, and numbers equal to those of state on the device.
#include "lockstep/optim/offload/host_update.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr size_t kBuffers = 5;
constexpr int64_t kSlices = 3;
constexpr int64_t kSlice = 1000;  // No multiple of what a vector holds.

using Make = std::function<std::shared_ptr<FlatOptimizer>(const std::vector<at::Tensor>&)>;

template <typename Optimizer>
Make making(typename Optimizer::Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<Optimizer>(parameters, options);
  };
}

/// An optimizer of slices of flat buffers, as ZeRO has them.
struct Sharded {
  Sharded(const Make& make, const OffloadOptimizer& offload, at::ScalarType type = at::kFloat) {
    std::vector<FlatOptimizer::BufferSlices> all;
    for (size_t b = 0; b < kBuffers; ++b) {
      const at::Tensor buffer =
          at::sin(at::arange(kSlices * kSlice + 7) + static_cast<double>(b)).to(type);
      all.push_back({.buffer = buffer, .tensors = {}});
      for (int64_t p = 0; p < kSlices; ++p) {
        slices.push_back(buffer.narrow(0, p * kSlice, kSlice).variable_data());
        slices.back().set_requires_grad(true);
        all.back().tensors.push_back(slices.back());
      }
    }
    optimizer = make({at::zeros({3}, type).requires_grad_()});
    optimizer->update_shards({all}, offload);
  }

  /// Some slices take no part in some steps.
  void step(int64_t t) {
    for (size_t i = 0; i < slices.size(); ++i) {
      slices[i].mutable_grad().reset();
      if ((static_cast<int64_t>(i) + t) % 4 != 0 && (i / kSlices != 2 || t > 1)) {
        slices[i].mutable_grad() =
            at::cos(at::arange(kSlice) * static_cast<double>(i + 1) + static_cast<double>(t))
                .to(slices[i].scalar_type());
      }
    }
    optimizer->step();
  }

  NamedTensors state() {
    return optimizer_tensors(*optimizer, [this](const at::Tensor& slice) { return name(slice); });
  }
  std::string name(const at::Tensor& slice) const {
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].is_same(slice)) {
        return "p" + std::to_string(i);
      }
    }
    return "?";
  }

  std::vector<at::Tensor> slices;
  std::shared_ptr<FlatOptimizer> optimizer;
};

void expect_same_sharded(Sharded& a, Sharded& b, const std::string& what) {
  for (size_t i = 0; i < a.slices.size(); ++i) {
    EXPECT_TRUE(at::equal(a.slices[i], b.slices[i])) << what << i;
  }
  const NamedTensors of_a = a.state();
  const NamedTensors of_b = b.state();
  ASSERT_EQ(of_a.size(), of_b.size()) << what;
  for (size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_EQ(of_a[i].name, of_b[i].name) << what;
    EXPECT_TRUE(at::equal(of_a[i].tensor, of_b[i].tensor)) << what << of_a[i].name;
  }
}

OffloadOptimizer nvme(const TestFolder& folder) {
  return {.device = OffloadDevice::kNvme, .nvme_path = folder.path()};
}

const std::vector<std::pair<std::string, Make>> kRules = {
    {"AdamW", making<AdamW>({.lr = 0.01})},
    {"AdamW, amsgrad", making<AdamW>({.lr = 0.01, .amsgrad = true})},
    {"Adam", making<Adam>({.lr = 0.01, .weight_decay = 0.1})},
    {"SGD", making<SGD>({.lr = 0.01})},
    {"SGD, momentum", making<SGD>({.lr = 0.01, .momentum = 0.9, .nesterov = true})},
    {"Lion", making<Lion>({.lr = 0.01})},
    {"Adagrad", making<Adagrad>({.lr = 0.01, .initial_accumulator_value = 0.5})},
    {"RMSprop", making<RMSprop>({.lr = 0.01, .momentum = 0.5, .centered = true})},
    {"Adadelta", making<Adadelta>({})},
    {"Adamax", making<Adamax>({.lr = 0.01})},
    {"NAdam", making<NAdam>({.lr = 0.01})},
    {"RAdam", making<RAdam>({.lr = 0.01})},
    {"ASGD", making<ASGD>({.lr = 0.01, .t0 = 2})},
    {"Rprop", making<Rprop>({.lr = 0.01})}};

TEST(HostUpdate, OffloadedStateGivesTheSameBits) {
  const TestFolder folder;
  for (const auto& [name, make] : kRules) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      OffloadOptimizer cpu{.device = OffloadDevice::kCpu};
      OffloadOptimizer few = nvme(folder);
      few.buffer_count = 3;
      few.pipeline_read = few.pipeline_write = false;
      OffloadOptimizer half = nvme(folder);
      half.ratio = 0.5;
      for (const OffloadOptimizer& offload : {cpu, nvme(folder), few, half}) {
        Sharded plain(make, {}, type);
        Sharded offloaded(make, offload, type);
        EXPECT_EQ(plain.optimizer->host_update(), nullptr);
        EXPECT_NE(offloaded.optimizer->host_update(), nullptr);
        for (int64_t t = 0; t < 5; ++t) {
          plain.step(t);
          offloaded.step(t);
        }
        expect_same_sharded(plain, offloaded, name + " " + c10::toString(type));
      }
    }
  }
}

TEST(HostUpdate, StateInFilesTakesTheMemoryOfItsBuffers) {
  const TestFolder folder;
  const auto with = [&](int64_t buffer_count, double ratio) {
    OffloadOptimizer offload = nvme(folder);
    offload.buffer_count = buffer_count;
    offload.ratio = ratio;
    auto sharded = std::make_unique<Sharded>(making<AdamW>({}), offload);
    for (int64_t t = 0; t < 4; ++t) {
      sharded->step(t);
    }
    return sharded;
  };
  const int64_t field = (kSlices * kSlice + 7) * 4;
  for (const int64_t count : {2, 4, 6}) {
    const auto sharded = with(count, 1);
    const HostUpdate& update = *sharded->optimizer->host_update();
    EXPECT_GE(update.memory_bytes(), count * field);
    EXPECT_LE(update.memory_bytes(), count * (field + 64)) << "whatever the number of buckets";
  }
  const auto all = with(6, 1);
  const auto half = with(6, 0.5);
  // Steps 0 and 1 leave the third buffer out.
  EXPECT_EQ(all->optimizer->host_update()->bytes_written(), (2 * 4 + 2 * 5) * 2 * field);
  EXPECT_EQ(half->optimizer->host_update()->bytes_written(), (2 * 2 + 2 * 3) * 2 * field);
}

TEST(HostUpdate, FewerBuffersThanFieldsAreRefused) {
  const TestFolder folder;
  OffloadOptimizer offload = nvme(folder);
  offload.buffer_count = 1;
  EXPECT_THAT(
      [&] { Sharded(making<AdamW>({}), offload); },
      ThrowsMessage<ConfigError>(
          HasSubstr("got offload_optimizer.buffer_count=1, expected at least 2; use 6 to overlap "
                    "reading")));
  offload.buffer_count = 2;
  EXPECT_THAT(
      [&] { Sharded(making<AdamW>({.amsgrad = true}), offload); },
      ThrowsMessage<ConfigError>(HasSubstr("expected at least 3")));
}

TEST(HostUpdate, AnOptimizerThatCannotBeOffloadedIsRefused) {
  for (const double ratio : {0.0, -1.0, 1.5}) {
    EXPECT_THAT(
        [&] { Sharded(making<AdamW>({}), {.device = OffloadDevice::kCpu, .ratio = ratio}); },
        ThrowsMessage<ConfigError>(HasSubstr("expected above 0, at most 1")));
  }
  EXPECT_THAT(
      [] { Sharded(making<AdamW>({}), {.device = OffloadDevice::kNvme, .nvme_path = "/no/such"}); },
      ThrowsMessage<ConfigError>(HasSubstr("/no/such")));
  for (const Make& full : {making<LAMB>({}), making<Adafactor>({})}) {
    EXPECT_THAT(
        [&] { Sharded(full, {.device = OffloadDevice::kCpu}); },
        ThrowsMessage<ConfigError>(HasSubstr("needs full parameters")));
  }
}

TEST(HostUpdate, StateIsMovedFromFilesToMemoryAndBack) {
  const TestFolder folder;
  for (const auto& [name, make] : kRules) {
    Sharded unbroken(make, {});
    Sharded saved(make, nvme(folder));
    for (int64_t t = 0; t < 3; ++t) {
      unbroken.step(t);
      saved.step(t);
    }
    for (const OffloadOptimizer& offload : {OffloadOptimizer(), nvme(folder)}) {
      Sharded resumed(make, offload);
      resumed.step(7);  // State of another life.
      check_optimizer(
          *resumed.optimizer,
          [&](const at::Tensor& slice) { return resumed.name(slice); },
          saved.state(),
          optimizer_settings(*saved.optimizer),
          "file")();
      for (size_t i = 0; i < resumed.slices.size(); ++i) {
        const c10::AutoGradMode no_grad(false);
        resumed.slices[i].copy_(saved.slices[i]);
      }
      Sharded further(make, {});
      for (int64_t t = 0; t < 5; ++t) {
        further.step(t);
      }
      resumed.step(3);
      resumed.step(4);
      expect_same_sharded(further, resumed, name);
    }
    expect_same_sharded(unbroken, saved, name);
  }
}

TEST(HostUpdate, OptionsThatWantMoreStateGetIt) {
  const TestFolder folder;
  Sharded plain(making<AdamW>({}), {});
  Sharded offloaded(making<AdamW>({}), nvme(folder));
  for (int64_t t = 0; t < 4; ++t) {
    for (Sharded* each : {&plain, &offloaded}) {
      dynamic_cast<AdamW&>(*each->optimizer).options().amsgrad = t >= 2;
      each->step(t);
    }
  }
  expect_same_sharded(plain, offloaded, "amsgrad");
}

}  // namespace
}  // namespace lockstep::optim
