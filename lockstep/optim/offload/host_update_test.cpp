// SPDX-License-Identifier: Apache-2.0
// Offloaded state: where it lies, and that the numbers are those of state that does not.
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
constexpr int64_t kPieces = 3;
constexpr int64_t kPiece = 1000;  // No multiple of what a vector holds.

using Make = std::function<std::shared_ptr<FlatOptimizer>(const std::vector<at::Tensor>&)>;

template <typename Optimizer>
Make making(typename Optimizer::Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<Optimizer>(parameters, options);
  };
}

/// An optimizer of pieces of flat buffers, as ZeRO has them.
struct Sharded {
  Sharded(const Make& make, const OffloadOptimizer& offload, at::ScalarType type = at::kFloat) {
    std::vector<FlatOptimizer::BufferSlices> all;
    for (size_t b = 0; b < kBuffers; ++b) {
      const at::Tensor buffer =
          at::sin(at::arange(kPieces * kPiece + 7) + static_cast<double>(b)).to(type);
      all.push_back({.buffer = buffer, .tensors = {}});
      for (int64_t p = 0; p < kPieces; ++p) {
        pieces.push_back(buffer.narrow(0, p * kPiece, kPiece).variable_data());
        pieces.back().set_requires_grad(true);
        all.back().tensors.push_back(pieces.back());
      }
    }
    optimizer = make({at::zeros({3}, type).requires_grad_()});
    optimizer->update_shards({all}, offload);
  }

  /// Some pieces take no part in some steps.
  void step(int64_t t) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].mutable_grad().reset();
      if ((static_cast<int64_t>(i) + t) % 4 != 0 && (i / kPieces != 2 || t > 1)) {
        pieces[i].mutable_grad() =
            at::cos(at::arange(kPiece) * static_cast<double>(i + 1) + static_cast<double>(t))
                .to(pieces[i].scalar_type());
      }
    }
    optimizer->step();
  }

  NamedTensors state() {
    return optimizer_tensors(*optimizer, [this](const at::Tensor& piece) { return name(piece); });
  }
  std::string name(const at::Tensor& piece) const {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].is_same(piece)) {
        return "p" + std::to_string(i);
      }
    }
    return "?";
  }

  std::vector<at::Tensor> pieces;
  std::shared_ptr<FlatOptimizer> optimizer;
};

void expect_same(Sharded& a, Sharded& b, const std::string& what) {
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    EXPECT_TRUE(at::equal(a.pieces[i], b.pieces[i])) << what << i;
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
        expect_same(plain, offloaded, name + " " + c10::toString(type));
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
  const int64_t field = (kPieces * kPiece + 7) * 4;
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
          HasSubstr("got offload_optimizer.buffer_count=1, expected at least 2; 6 let reading")));
  offload.buffer_count = 2;
  EXPECT_THAT(
      [&] { Sharded(making<AdamW>({.amsgrad = true}), offload); },
      ThrowsMessage<ConfigError>(HasSubstr("expected at least 3")));
}

TEST(HostUpdate, WhatCannotBeOffloadedIsRefused) {
  for (const double ratio : {0.0, -1.0, 1.5}) {
    EXPECT_THAT(
        [&] { Sharded(making<AdamW>({}), {.device = OffloadDevice::kCpu, .ratio = ratio}); },
        ThrowsMessage<ConfigError>(HasSubstr("expected more than 0, at most 1")));
  }
  EXPECT_THAT(
      [] { Sharded(making<AdamW>({}), {.device = OffloadDevice::kNvme, .nvme_path = "/no/such"}); },
      ThrowsMessage<ConfigError>(HasSubstr("/no/such")));
  for (const Make& whole : {making<LAMB>({}), making<Adafactor>({})}) {
    EXPECT_THAT(
        [&] { Sharded(whole, {.device = OffloadDevice::kCpu}); },
        ThrowsMessage<ConfigError>(HasSubstr("needs every parameter whole")));
  }
}

TEST(HostUpdate, StateGoesFromFilesToMemoryAndBack) {
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
          [&](const at::Tensor& piece) { return resumed.name(piece); },
          saved.state(),
          optimizer_settings(*saved.optimizer),
          "file")();
      for (size_t i = 0; i < resumed.pieces.size(); ++i) {
        const c10::AutoGradMode no_grad(false);
        resumed.pieces[i].copy_(saved.pieces[i]);
      }
      Sharded further(make, {});
      for (int64_t t = 0; t < 5; ++t) {
        further.step(t);
      }
      resumed.step(3);
      resumed.step(4);
      expect_same(further, resumed, name);
    }
    expect_same(unbroken, saved, name);
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
  expect_same(plain, offloaded, "amsgrad");
}

}  // namespace
}  // namespace lockstep::optim
