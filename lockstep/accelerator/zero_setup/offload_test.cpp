// SPDX-License-Identifier: Apache-2.0
// ZeRO with what the device has no room for elsewhere, as who writes a training loop meets it.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/offload/test_scratch.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/offload/host_update.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/lamb.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kOffloadWidth = 24;

torch::nn::Sequential partly_frozen_net() {
  torch::nn::Sequential net = sine_layers(4, kOffloadWidth);
  net->parameters()[2].set_requires_grad(false);
  return net;
}

std::vector<at::Tensor> trainable_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

/// A few clipped updates; the weights after them.
class ClippedTraining {
 public:
  explicit ClippedTraining(Accelerator& accelerator)
      : accelerator_(accelerator), net_(partly_frozen_net()) {
    optimizer_ = std::get<1>(accelerator.prepare(
        net_, optim::AdamW(trainable_of(net_), {.lr = 0.01, .weight_decay = 0.1})));
  }

  void train(int64_t first, int64_t end) {
    for (int64_t step = first; step < end; ++step) {
      const auto rank = static_cast<double>(accelerator_.process_index());
      const at::Tensor x = at::sin(at::arange(3 * kOffloadWidth, at::kFloat) * (1 + rank) + step);
      const at::Tensor y = net_->forward(x.reshape({3, kOffloadWidth}).to(accelerator_.device()));
      accelerator_.backward(y.square().mean());
      accelerator_.clip_grad_norm_(net_->parameters(), 0.1);
      optimizer_.step();
      optimizer_.zero_grad();
    }
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : net_->parameters()) {
      weights.push_back(parameter.detach().clone());
    }
    return weights;
  }
  const optim::FlatOptimizer& optimizer() const {
    return dynamic_cast<optim::FlatOptimizer&>(optimizer_.inner());
  }
  torch::nn::Sequential& net() { return net_; }

 private:
  Accelerator& accelerator_;
  torch::nn::Sequential net_;
  Optimizer optimizer_;
};

/// Name and plugin of each way to offload.
struct NamedPlugin {
  std::string name;
  ZeroPlugin plugin;
};

std::vector<NamedPlugin> offload_plugins(const std::filesystem::path& folder) {
  const OffloadOptimizer cpu{.device = OffloadDevice::kCpu};
  const OffloadOptimizer nvme{.device = OffloadDevice::kNvme, .nvme_path = folder};
  OffloadOptimizer half = nvme;
  half.ratio = 0.5;
  std::vector<NamedPlugin> all;
  for (const int stage : {1, 2, 3}) {
    const ZeroPlugin plain{.stage = stage, .bucket_cap_bytes = 4000};
    for (const auto& [name, optimizer] :
         {std::pair("cpu", cpu), std::pair("nvme", nvme), std::pair("half", half)}) {
      all.push_back({std::to_string(stage) + name, plain});
      all.back().plugin.offload_optimizer = optimizer;
    }
    if (stage < 3) {
      continue;
    }
    const OffloadParam param_cpu{.device = OffloadDevice::kCpu};
    const OffloadParam param_nvme{
        .device = OffloadDevice::kNvme, .nvme_path = folder, .max_in_cpu = 0};
    OffloadParam some = param_nvme;
    some.max_in_cpu = 700;
    for (const auto& [name, param] :
         {std::pair("cpu", param_cpu), std::pair("nvme", param_nvme), std::pair("some", some)}) {
      for (const auto& [of_state, optimizer] : {std::pair("cpu", cpu), std::pair("nvme", nvme)}) {
        all.push_back({std::string("3") + of_state + ", parameters " + name, plain});
        all.back().plugin.offload_optimizer = optimizer;
        all.back().plugin.offload_param = param;
      }
    }
  }
  return all;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  }
}

std::vector<at::Tensor> weights_with(
    const AcceleratorOptions& options,
    int world,
    const std::function<void(ClippedTraining&)>& body) {
  std::vector<std::vector<at::Tensor>> all(static_cast<size_t>(world));
  accelerated_ranks(world, options, [&](Accelerator& accelerator) {
    ClippedTraining training(accelerator);
    body(training);
    all[static_cast<size_t>(accelerator.process_index())] = training.weights();
  });
  for (const auto& weights : all) {
    expect_equal(weights, all[0]);
  }
  return all[0];
}

TEST(ZeroOffload, TrainsTheSameAsWithoutOffloading) {
  const TestFolder folder;
  const auto train = [](ClippedTraining& training) { training.train(0, 6); };
  for (const int world : {1, 2, 3}) {
    for (const NamedPlugin& offload : offload_plugins(folder.path())) {
      SCOPED_TRACE(offload.name + ", ranks " + std::to_string(world));
      AcceleratorOptions plain{.zero = ZeroPlugin{.stage = offload.plugin.stage}};
      plain.zero->bucket_cap_bytes = 4000;
      expect_equal(
          weights_with({.zero = offload.plugin}, world, train), weights_with(plain, world, train));
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ZeroOffload, TrainsTheSameOverSharedMemoryAndWithQuantizedWeights) {
  const TestFolder folder;
  for (const bool rounded : {false, true}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool offloaded : {false, true}) {
      ZeroPlugin plugin{.stage = 3, .bucket_cap_bytes = 4000, .zero_quantized_weights = rounded};
      if (offloaded) {
        plugin.offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = folder.path()};
        plugin.offload_param = {
            .device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0};
      }
      std::vector<at::Tensor> weights;
      shm_ranks(2, [&](Group group) {
        WorldSpec world;
        world.rank = world.local_rank = group.rank();
        world.size = world.local_size = group.size();
        Accelerator accelerator({.zero = plugin}, world, std::move(group));
        ClippedTraining training(accelerator);
        training.train(0, 4);
        accelerator.with_gathered_parameters(training.net()->parameters(), [&] {
          const std::vector<at::Tensor> own = training.weights();
          if (accelerator.is_main_process()) {
            weights = own;
          }
        });
      });
      results.push_back(weights);
    }
    expect_equal(results[0], results[1]);
  }
}

TEST(ZeroOffload, ACheckpointIsTheSameAndResumesAnywhere) {
  const TestFolder folder;
  const auto unbroken = weights_with(
      {.zero = ZeroPlugin{.stage = 2, .bucket_cap_bytes = 4000}}, 2, [](ClippedTraining& training) {
        training.train(0, 6);
      });
  const std::filesystem::path plain = folder / "plain";
  std::filesystem::create_directory(folder / "scratch");
  const auto save_with = [&](const ZeroPlugin& plugin, const std::filesystem::path& path) {
    accelerated_ranks(2, {.zero = plugin}, [&](Accelerator& accelerator) {
      ClippedTraining training(accelerator);
      training.train(0, 3);
      accelerator.save_state(path);
    });
  };
  const auto resume_with = [&](const ZeroPlugin& plugin, const std::filesystem::path& path) {
    std::vector<at::Tensor> weights;
    accelerated_ranks(2, {.zero = plugin}, [&](Accelerator& accelerator) {
      ClippedTraining training(accelerator);
      training.train(0, 1);
      accelerator.load_state(path);
      training.train(3, 6);
      const std::vector<at::Tensor> own = training.weights();
      if (accelerator.is_main_process()) {
        weights = own;
      }
    });
    return weights;
  };
  save_with({.stage = 2, .bucket_cap_bytes = 4000}, plain);
  for (const NamedPlugin& offload : offload_plugins(folder / "scratch")) {
    SCOPED_TRACE(offload.name);
    const std::filesystem::path path = folder / offload.name;
    save_with(offload.plugin, path);
    if (offload.plugin.stage == 2) {
      for (const char* file : {"optimizer-00001-of-00002.safetensors", "optimizer.json"}) {
        ASSERT_FALSE(contents(plain / file).empty());
        EXPECT_EQ(contents(path / file), contents(plain / file)) << file;
      }
    }
    expect_equal(resume_with({.stage = 2, .bucket_cap_bytes = 4000}, path), unbroken);
    expect_equal(resume_with(offload.plugin, plain), unbroken);
  }
}

TEST(ZeroOffload, ABackgroundSaveHasTheStateOfItsCall) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "scratch");
  ZeroPlugin plugin{.stage = 3, .bucket_cap_bytes = 4000};
  plugin.offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = folder / "scratch"};
  plugin.offload_param = {
      .device = OffloadDevice::kNvme, .nvme_path = folder / "scratch", .max_in_cpu = 0};
  std::vector<at::Tensor> unbroken;
  accelerated_ranks(2, {.zero = plugin}, [&](Accelerator& accelerator) {
    ClippedTraining training(accelerator);
    training.train(0, 2);
    accelerator.save_state(folder / "saved", {.async = true});
    training.train(2, 5);
    accelerator.wait_for_save();
    const std::vector<at::Tensor> own = training.weights();
    if (accelerator.is_main_process()) {
      unbroken = own;
    }
  });
  accelerated_ranks(2, {.zero = plugin}, [&](Accelerator& accelerator) {
    ClippedTraining training(accelerator);
    accelerator.load_state(folder / "saved");
    training.train(2, 5);
    const std::vector<at::Tensor> own = training.weights();
    if (accelerator.is_main_process()) {
      expect_equal(own, unbroken);
    }
  });
}

TEST(ZeroOffload, ADiskThatFailsWhileACheckpointIsSavedIsAnErrorOnAllRanks) {
  for (const bool of_parameters : {false, true}) {
    for (const bool async : {false, true}) {
      const TestFolder folder;
      std::filesystem::create_directory(folder / "scratch");
      ZeroPlugin plugin{.stage = 3, .bucket_cap_bytes = 4000};
      plugin.offload_optimizer = {.device = OffloadDevice::kCpu};
      if (of_parameters) {
        plugin.offload_param = {
            .device = OffloadDevice::kNvme, .nvme_path = folder / "scratch", .max_in_cpu = 0};
      } else {
        plugin.offload_optimizer = {
            .device = OffloadDevice::kNvme, .nvme_path = folder / "scratch"};
      }
      accelerated_ranks(2, {.zero = plugin}, [&](Accelerator& accelerator) {
        ClippedTraining training(accelerator);
        training.train(0, 1);
        accelerator.wait_for_everyone();
        if (accelerator.is_main_process()) {
          EXPECT_GE(offload::cut_off_scratch_files(folder / "scratch"), 2);
        }
        accelerator.wait_for_everyone();
        EXPECT_THAT(
            [&] {
              accelerator.save_state(folder / "saved", {.async = async});
              accelerator.wait_for_save();
            },
            ThrowsMessage<CheckpointError>(AllOf(
                HasSubstr(
                    of_parameters ? "parameters could not be read"
                                  : "the optimizer's state could not be read"),
                HasSubstr("nvme_path '" + (folder / "scratch").string()))));
        EXPECT_FALSE(std::filesystem::exists(folder / "saved"));
      });
    }
  }
}

TEST(ZeroOffload, ADiskOfOneRankThatFailsInTheUpdateIsAnErrorOnAllRanks) {
  for (const int stage : {2, 3}) {
    const TestFolder folder;
    ranks(3, [&](Group group) {
      const auto scratch = folder / ("of_rank_" + std::to_string(group.rank()));
      std::filesystem::create_directory(scratch);
      WorldSpec world;
      world.rank = world.local_rank = group.rank();
      world.size = world.local_size = group.size();
      ZeroPlugin plugin{.stage = stage, .bucket_cap_bytes = 4000};
      plugin.offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = scratch};
      Accelerator accelerator({.zero = plugin}, world, std::move(group));
      ClippedTraining training(accelerator);
      training.train(0, 1);
      if (accelerator.process_index() == 1) {
        EXPECT_GE(offload::cut_off_scratch_files(scratch), 1);
      }
      EXPECT_THAT(
          [&] { training.train(1, 2); },
          ThrowsMessage<ConfigError>(AllOf(
              HasSubstr("the update failed on rank 1"),
              HasSubstr("nvme_path '" + (folder / "of_rank_1").string()))));
    });
  }
}

TEST(ZeroOffload, WritesToParametersReachTheUpdate) {
  const TestFolder folder;
  for (const NamedPlugin& offload : offload_plugins(folder.path())) {
    SCOPED_TRACE(offload.name);
    const auto write = [](ClippedTraining& training) {
      training.train(0, 2);
      {
        const torch::NoGradGuard no_grad;
        training.net()->parameters()[0].fill_(0.25);
      }
      training.train(2, 4);
    };
    ZeroPlugin plain{.stage = offload.plugin.stage, .bucket_cap_bytes = 4000};
    expect_equal(
        weights_with({.zero = offload.plugin}, 2, write), weights_with({.zero = plain}, 2, write));
  }
}

/// Bytes of the CPU's memory that tensors of this thread take, since it lives.
class CountedMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* /*memory*/, int64_t bytes, size_t /*all*/, size_t /*kept*/, c10::Device) override {
    now_ += bytes;
    most_ = std::max(most_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  /// The most since the last call.
  int64_t most() { return std::exchange(most_, now_); }
  int64_t now() const { return now_; }

 private:
  int64_t now_ = 0;
  int64_t most_ = 0;
};

/// Of one process that trains 64 layers of `parameters` bytes in all.
struct Taken {
  double between_updates;
  double most;
};

Taken taken_with(const std::optional<ZeroPlugin>& plugin, double& parameters) {
  const auto counted = std::make_shared<CountedMemory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  torch::nn::Sequential net;
  for (int i = 0; i < 64; ++i) {
    net->push_back(torch::nn::Linear(128, 128));
  }
  parameters = static_cast<double>(counted->now());
  Accelerator accelerator({.zero = plugin});
  auto [model, optimizer] = accelerator.prepare(net, optim::AdamW(net->parameters()));
  counted->most();
  Taken taken{};
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model->forward(at::ones({1, 128})).sum());
    optimizer.step();
    optimizer.zero_grad();
    taken.between_updates = static_cast<double>(counted->now());
  }
  taken.most = static_cast<double>(counted->most());
  return taken;
}

TEST(ZeroOffload, StateInFilesUsesNoMemory) {
  const TestFolder folder;
  double parameters = 0;
  const Taken plain = taken_with(std::nullopt, parameters);
  EXPECT_NEAR(plain.between_updates / parameters, 3, 1.2) << "parameters and two fields of state";
  EXPECT_GT(plain.most / parameters, 3.9) << "and gradients";
  const auto bucket = static_cast<int64_t>(parameters / 64);
  ZeroPlugin plugin{.stage = 3, .bucket_cap_bytes = bucket};
  plugin.offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = folder.path()};
  const Taken state = taken_with(plugin, parameters);
  EXPECT_LT(state.most / parameters, 2.4) << "parameters, gradients, and what is under way";
  plugin.offload_param = {
      .device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0};
  const Taken both = taken_with(plugin, parameters);
  EXPECT_LT(both.most / parameters, 1.4) << "gradients, and what is under way";
  plugin.offload_param.max_in_cpu = static_cast<int64_t>(parameters / 4 / 2);
  const Taken some = taken_with(plugin, parameters);
  EXPECT_NEAR((some.most - both.most) / parameters, 0.5, 0.1) << "the elements that stay";
}

TEST(ZeroOffload, UnsupportedOptionsAreRefusedByName) {
  const auto expect = [](const ZeroPlugin& plugin, const char* what) {
    EXPECT_THAT(
        [&] { Accelerator({.zero = plugin}); }, ThrowsMessage<ConfigError>(HasSubstr(what)));
  };
  ZeroPlugin plugin{.stage = 3};
  plugin.offload_param.device = OffloadDevice::kCpu;
  accelerated_ranks(2, {.zero = plugin}, [](Accelerator& accelerator) {
    auto net = partly_frozen_net();
    EXPECT_THAT(
        [&] { accelerator.prepare(net, optim::AdamW(trainable_of(net))); },
        ThrowsMessage<ConfigError>(HasSubstr("offload_param needs offload_optimizer")));
  });
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu, .ratio = 0.5};
  expect(plugin, "cannot be combined with offload_param; got ratio=0.5; set it to 1");
  plugin.offload_optimizer.ratio = 1;
  plugin.stage = 2;
  expect(plugin, "got stage 2, expected 3");
  plugin.offload_param = {};
  plugin.offload_optimizer.device = OffloadDevice::kNvme;
  expect(plugin, "got no offload_optimizer.nvme_path");
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu, .nvme_path = "/x"};
  expect(plugin, "offload_optimizer.nvme_path is for the device nvme; got '/x'");
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu};
  accelerated_ranks(2, {.zero = plugin}, [](Accelerator& accelerator) {
    auto net = partly_frozen_net();
    EXPECT_THAT(
        [&] { accelerator.prepare(net, optim::LAMB(trainable_of(net))); },
        ThrowsMessage<ConfigError>(HasSubstr("LAMB cannot be combined with offload_optimizer")));
  });
}

}  // namespace
}  // namespace lockstep
