// SPDX-License-Identifier: Apache-2.0
// Training on a device that is not the CPU, see comm/device/test_device.h: the loop is the same,
// and so are the numbers.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// `./dev test` keeps all other tests on the CPU by it.
[[maybe_unused]] const int kCleared = ::unsetenv("LOCKSTEP_USE_CPU");

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    running = register_buffer("running", torch::zeros({8}));
    second = register_module("second", torch::nn::Linear(8, 8));
    tied = register_parameter("tied", second->weight);
    last = register_module("last", torch::nn::Linear(8, 1));
    test::fill_with_sines(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first(x));
    running.mul_(0.9).add_(h.detach().mean(0), 0.1);
    h = torch::tanh(second(h - running));
    return last(h + torch::matmul(h, tied));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  torch::Tensor tied, running;
};
TORCH_MODULE(Net);

data::TensorDataset samples() {
  const at::Tensor x = at::sin(at::arange(160, at::kFloat)).reshape({40, 4});
  return data::TensorDataset(x, x.sum(1, true));
}

/// Runs `body` on two ranks over shared memory, on the devices that the options give them.
void two_ranks(const AcceleratorOptions& options, const std::function<void(Accelerator&)>& body) {
  shm_ranks(2, [&](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(options, world, std::move(group));
    body(accelerator);
  });
}

/// All that a training leaves, on the host.
struct Left {
  std::vector<at::Tensor> tensors;
  std::vector<double> losses;
};

void expect_equal(const Left& a, const Left& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(a.tensors[i], b.tensors[i])) << i;
  }
}

/// A loop with most of what an Accelerator does in one.
template <typename MakeOptimizer>
void train(
    Accelerator& accelerator,
    const MakeOptimizer& make_optimizer,
    Left& left,
    const std::filesystem::path& folder = {},
    at::ScalarType dtype = at::kFloat) {
  Net net;
  net->to(dtype);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, make_optimizer(net->parameters()), data::Loader(samples(), {.batch_size = 5}));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const auto& [x, y] : loader) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss = (model->forward(x.to(dtype)) - y).square().mean();
      EXPECT_EQ(loss.device(), accelerator.device());
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model->parameters(), 0.1);
      optimizer.step();
      optimizer.zero_grad();
      const at::Tensor all = accelerator.gather_for_metrics(loss.detach().reshape({1}));
      EXPECT_EQ(all.device(), accelerator.device());
      left.losses.push_back(all.sum().item<double>());
    }
    if (epoch == 1 && !folder.empty()) {
      accelerator.save_state(folder);
    }
  }
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.device(), accelerator.device());
    left.tensors.push_back(parameter.detach().cpu().clone());
  }
  for (const at::Tensor& buffer : model->buffers()) {
    EXPECT_EQ(buffer.device(), accelerator.device());
    left.tensors.push_back(buffer.cpu());
  }
}

template <typename MakeOptimizer>
void expect_as_on_the_cpu(const MakeOptimizer& make_optimizer) {
  test_device();
  std::vector<Left> cpu(2);
  std::vector<Left> device(2);
  const auto run = [&](bool on_cpu, std::vector<Left>& all) {
    two_ranks({.cpu = on_cpu, .gradient_accumulation_steps = 2}, [&](Accelerator& accelerator) {
      const auto rank = static_cast<size_t>(accelerator.process_index());
      EXPECT_EQ(accelerator.device().is_cpu(), on_cpu);
      train(accelerator, make_optimizer, all[rank]);
    });
  };
  run(true, cpu);
  run(false, device);
  expect_equal(cpu[0], device[0]);
  expect_equal(device[0], device[1]);
}

const auto adamw = [](const auto& parameters) { return optim::AdamW(parameters, {.lr = 0.01}); };

TEST(Device, ATrainingLoopGivesTheNumbersOfTheCpu) {
  expect_as_on_the_cpu(adamw);
}

TEST(Device, ACapturableOptimizerGivesTheNumbersOfTheCpu) {
  // A rate that float32 has.
  expect_as_on_the_cpu([](const auto& parameters) {
    return optim::AdamW(parameters, {.lr = 0.0078125, .capturable = true});
  });
}

TEST(Device, BatchesThatAreCopiedAheadAreThereWhenTheLoopHasThem) {
  test_device();
  hold_test_device_streams(true);
  expect_as_on_the_cpu(adamw);
  hold_test_device_streams(false);
}

TEST(Device, InitialOptimizerStateMovesWithTheModel) {
  expect_as_on_the_cpu(
      [](const auto& parameters) { return optim::Adagrad(parameters, {.lr = 0.01}); });
  expect_as_on_the_cpu([](const auto& parameters) {
    return torch::optim::Adagrad(parameters, torch::optim::AdagradOptions(0.01));
  });
  expect_as_on_the_cpu([](const auto& parameters) {
    return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.01));
  });
}

TEST(Device, EachProcessOfAHostUsesTheDeviceOfItsLocalRank) {
  test_device();
  two_ranks({}, [](Accelerator& accelerator) {
    EXPECT_EQ(accelerator.device(), test_device(accelerator.process_index()));
    EXPECT_EQ(accelerator.distributed_type(), "MULTI_GPU");
  });
}

TEST(Device, MoreProcessesThanDevicesBeginAgainAtTheFirst) {
  test_device();
  shm_ranks(3, [](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    const Accelerator accelerator({}, world, std::move(group));
    EXPECT_EQ(accelerator.device(), test_device(world.rank % 2));
  });
}

TEST(Device, TheEnvironmentMayKeepAProgramOnTheCpu) {
  test_device();
  for (const char* name : {"LOCKSTEP_USE_CPU", "ACCELERATE_USE_CPU"}) {
    ::setenv(name, "true", 1);
    EXPECT_TRUE(Accelerator().device().is_cpu()) << name;
    EXPECT_FALSE(Accelerator({.cpu = false}).device().is_cpu());
    ::unsetenv(name);
  }
  EXPECT_EQ(Accelerator().device(), test_device());
}

TEST(Device, WithoutPlacementAllStaysWhereItIs) {
  test_device();
  Accelerator accelerator({.device_placement = false});
  Net net;
  auto [model, loader] = accelerator.prepare(net, data::Loader(samples(), {.batch_size = 5}));
  EXPECT_TRUE(model->parameters()[0].is_cpu());
  for (const auto& [x, y] : loader) {
    EXPECT_TRUE(x.is_cpu());
  }
}

TEST(Device, ALoaderKeepsTheDeviceItWasGiven) {
  test_device();
  Accelerator accelerator;
  auto loader = accelerator.prepare(data::Loader(samples(), {.batch_size = 5, .device = at::kCPU}));
  for (const auto& [x, y] : loader) {
    EXPECT_TRUE(x.is_cpu());
  }
}

TEST(Device, TheMemoryOfHostAndDeviceIsFreed) {
  test_device();
  const int64_t before = test_device_bytes();
  {
    Accelerator accelerator;
    torch::nn::Linear net(1000, 1000);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    const double parameters = 1001 * 1000 * 4;
    const auto taken = [&] { return static_cast<double>(test_device_bytes() - before); };
    EXPECT_NEAR(taken(), parameters, parameters / 100);
    accelerator.backward(model->forward(at::ones({2, 1000}, accelerator.device())).sum());
    optimizer.step();
    EXPECT_NEAR(taken(), 4 * parameters, parameters / 50);
  }
  EXPECT_EQ(test_device_bytes(), before);
}

TEST(Device, ACheckpointLoadsOnAnotherDeviceAndOnTheCpu) {
  test_device();
  const TestFolder folder;
  std::vector<Left> unbroken(2);
  const auto on = [&](bool cpu, const std::function<void(Accelerator&, size_t)>& body) {
    two_ranks({.cpu = cpu}, [&](Accelerator& accelerator) {
      body(accelerator, static_cast<size_t>(accelerator.process_index()));
    });
  };
  on(false, [&](Accelerator& accelerator, size_t rank) {
    train(accelerator, adamw, unbroken[rank], folder.path() / "saved");
  });
  for (const bool cpu : {false, true}) {
    std::vector<Left> resumed(2);
    on(cpu, [&](Accelerator& accelerator, size_t rank) {
      Net net;
      auto [model, optimizer, loader] = accelerator.prepare(
          net, adamw(net->parameters()), data::Loader(samples(), {.batch_size = 5}));
      accelerator.load_state(folder.path() / "saved");
      for (const auto& [x, y] : loader) {
        accelerator.backward((model->forward(x) - y).square().mean());
        accelerator.clip_grad_norm_(model->parameters(), 0.1);
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const at::Tensor& parameter : model->parameters()) {
        resumed[rank].tensors.push_back(parameter.detach().cpu());
      }
    });
    for (size_t i = 0; i < resumed[0].tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(resumed[0].tensors[i], unbroken[0].tensors[i])) << cpu << i;
    }
  }
}

/// Stages and what they may have elsewhere than on the device.
std::vector<ZeroPlugin> offloading(const std::filesystem::path& folder) {
  std::vector<ZeroPlugin> all;
  for (const int stage : {1, 2, 3}) {
    for (const OffloadDevice state : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      for (const OffloadDevice parameters :
           {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
        ZeroPlugin plugin{.stage = stage, .bucket_cap_bytes = 200};
        plugin.offload_optimizer.device = state;
        plugin.offload_param = {.device = parameters, .max_in_cpu = 0};
        if (state == OffloadDevice::kNvme) {
          plugin.offload_optimizer.nvme_path = folder;
        }
        if (parameters == OffloadDevice::kNvme) {
          plugin.offload_param.nvme_path = folder;
        }
        if (stage == 3 || parameters == OffloadDevice::kNone) {
          all.push_back(plugin);
        }
      }
    }
  }
  all.push_back(all.front());
  all.back().offload_optimizer.ratio = 0.5;
  return all;
}

void expect_offloaded_as_on_the_cpu(at::ScalarType dtype) {
  test_device();
  const TestFolder folder;
  for (const ZeroPlugin& plugin : offloading(folder.path())) {
    SCOPED_TRACE(plugin.stage);
    std::vector<Left> cpu(2);
    std::vector<Left> device(2);
    const auto run = [&](const AcceleratorOptions& options, std::vector<Left>& all) {
      two_ranks(options, [&](Accelerator& accelerator) {
        train(accelerator, adamw, all[static_cast<size_t>(accelerator.process_index())], {}, dtype);
      });
    };
    run({.cpu = true, .zero = ZeroPlugin{.stage = plugin.stage, .bucket_cap_bytes = 200}}, cpu);
    run({.cpu = false, .zero = plugin}, device);
    expect_equal(cpu[0], device[0]);
    expect_equal(cpu[1], device[1]);
  }
}

TEST(Device, AnUpdateOnTheHostGivesTheNumbersOfTheCpu) {
  expect_offloaded_as_on_the_cpu(at::kFloat);
}

TEST(Device, MastersOnTheHostGiveTheNumbersOfTheCpu) {
  expect_offloaded_as_on_the_cpu(at::kBFloat16);
}

/// Whether one process can train a million parameters on a device with room for `bytes`.
bool fits(const ZeroPlugin& plugin, int64_t bytes) {
  Accelerator accelerator({.zero = plugin});
  torch::nn::Sequential net;
  for (int i = 0; i < 16; ++i) {
    net->push_back(torch::nn::Linear(256, 256));
  }
  const int64_t before = test_device_bytes();
  auto [model, optimizer] = accelerator.prepare(net, optim::AdamW(net->parameters()));
  limit_test_device(before + bytes);
  bool fitted = true;
  try {
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model->forward(at::ones({2, 256}, accelerator.device())).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  } catch (const c10::OutOfMemoryError&) {
    fitted = false;
  }
  limit_test_device(std::nullopt);
  return fitted;
}

TEST(Device, OffloadedStatesUseNoDeviceMemory) {
  test_device();
  const TestFolder folder;
  const int64_t parameters = int64_t{16} * 256 * 257 * 4;
  const int64_t bucket = parameters / 16;
  ZeroPlugin plugin{.stage = 2, .bucket_cap_bytes = bucket};
  // As much as a bucket's gradients, three times, and what one operation makes.
  const int64_t under_way = 5 * bucket;
  EXPECT_TRUE(fits({}, 4 * parameters + under_way)) << "parameters, gradients, twice the state";
  plugin.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_TRUE(fits(plugin, 2 * parameters + under_way)) << "parameters, gradients";
  EXPECT_FALSE(fits(plugin, 2 * parameters - bucket));
  plugin.offload_optimizer.ratio = 0.5;
  EXPECT_FALSE(fits(plugin, 2 * parameters + under_way));
  EXPECT_TRUE(fits(plugin, 3 * parameters + under_way));
  plugin.offload_optimizer.ratio = 1;
  plugin.stage = 3;
  plugin.offload_param.device = OffloadDevice::kCpu;
  EXPECT_TRUE(fits(plugin, parameters + 4 * bucket + under_way)) << "gradients, what is in use";
  plugin.offload_param = {
      .device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0};
  EXPECT_TRUE(fits(plugin, parameters + 4 * bucket + under_way));
}

TEST(Device, ParametersInMemoryOfTheHostAreRefused) {
  test_device();
  EXPECT_THAT(
      [] { Accelerator({.shared_parameters = true}); },
      ::testing::ThrowsMessage<ConfigError>(HasSubstr("shared_parameters needs processes")));
}

/// Parameters large enough to be built in parts, others, and small buffers, one filled through a
/// pointer.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    linear = register_module("linear", torch::nn::Linear(64, 64));
    scale = register_buffer("scale", torch::tensor(std::vector<float>{2, 3}));
    order = register_buffer("order", torch::tensor(std::vector<int64_t>{1, 0}));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.fill_(0.25);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return linear(x) * scale.index_select(0, order).unsqueeze(1);
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor scale, order;
};
TORCH_MODULE(Mixed);

TEST(DeviceZero, AnUnpreparedModelBuiltInShardsIsOnTheDevice) {
  two_ranks({.zero = ZeroPlugin{.stage = 3}}, [](Accelerator& accelerator) {
    auto teacher = accelerator.zero_init([] { return Mixed(); });
    for (const at::Tensor& tensor : teacher->parameters()) {
      EXPECT_EQ(tensor.device(), accelerator.device());
    }
    for (const at::Tensor& tensor : teacher->buffers()) {
      EXPECT_EQ(tensor.device(), accelerator.device());
    }
    const torch::NoGradGuard no_grad;
    const at::Tensor x = at::ones({2, 64});
    const at::Tensor y = teacher->forward(x.to(accelerator.device()));
    EXPECT_TRUE(at::equal(y.cpu(), Mixed()->forward(x)));
  });
}

}  // namespace
}  // namespace lockstep
