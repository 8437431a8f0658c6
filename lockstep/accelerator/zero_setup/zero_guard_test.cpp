// SPDX-License-Identifier: Apache-2.0
// ZeRO, as who writes a training loop meets it: what is refused with what to do instead, and what
// must not be lost.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A layer, a buffer large enough to be built in parts, and a small one.
struct WithBuffersImpl : torch::nn::Module {
  WithBuffersImpl() {
    positions = register_buffer("positions", torch::full({128, 64}, 0.5));
    scale = register_buffer("scale", torch::tensor(std::vector<float>{2, 2}));
    linear = register_module("linear", torch::nn::Linear(64, 64));
    test::fill_with_sines(*this, {.scale = 1.0 / 4});
  }
  at::Tensor forward(const at::Tensor& x) {
    return linear(x + positions.slice(0, 0, x.size(0))) * scale[1];
  }
  at::Tensor positions, scale;
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(WithBuffers);

TEST(ZeroGuard, ABufferBuiltInShardsIsFullAfterPrepare) {
  accelerated_ranks(2, stage(3), [](Accelerator& accelerator) {
    auto net = accelerator.zero_init([] { return WithBuffers(); });
    EXPECT_TRUE(comm::is_sharded_param(net->positions));
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.01}));
    EXPECT_FALSE(comm::is_sharded_param(net->positions));
    EXPECT_TRUE(comm::is_sharded_param(net->linear->weight));
    const at::Tensor x = at::ones({2, 64});
    const at::Tensor y = model->forward(x);
    EXPECT_TRUE(at::equal(y, WithBuffers()->forward(x)));
    accelerator.backward(y.sum());
    optimizer.step();
  });
}

TEST(ZeroGuard, AnUnshardedFrozenParameterIsFullAfterPrepare) {
  AcceleratorOptions options = stage(3);
  options.zero->stage3_param_persistence_threshold = 4096;
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    auto net = accelerator.zero_init([] { return sine_layers(2, 64); });
    at::Tensor frozen = net->parameters()[0].set_requires_grad(false);
    EXPECT_TRUE(comm::is_sharded_param(frozen));
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.01}));
    EXPECT_FALSE(comm::is_sharded_param(frozen));
    EXPECT_FALSE(frozen.requires_grad());
    EXPECT_TRUE(at::equal(frozen, sine_layers(1, 64)->parameters()[0]));
    accelerator.backward(model->forward(at::ones({2, 64})).sum());
    optimizer.step();
  });
}

TEST(ZeroGuard, ATeacherBuiltInShardsWorksBesideTheTrainedModel) {
  const at::Tensor x = at::ones({2, 64});
  accelerated_ranks(2, stage(3), [&](Accelerator& accelerator) {
    auto teacher = accelerator.zero_init([] { return sine_layers(3, 64); });
    auto net = accelerator.zero_init([] { return sine_layers(1, 64); });
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.01}));
    const at::Tensor expected = sine_layers(3, 64)->forward(x);
    for (int step = 0; step < 3; ++step) {
      at::Tensor target;
      {
        const torch::NoGradGuard no_grad;
        target = teacher->forward(x);
      }
      EXPECT_TRUE(at::equal(target, expected));
      accelerator.backward((model->forward(x) - target).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(ZeroGuard, AModelThatOutlivesItsAcceleratorThrows) {
  ranks(2, [](Group group) {
    torch::nn::Sequential kept{nullptr};
    {
      WorldSpec world;
      world.rank = world.local_rank = group.rank();
      world.size = world.local_size = group.size();
      Accelerator accelerator(stage(3), world, group);
      auto net = sine_layers(2, 16);
      accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.01}));
      kept = net;
    }
    EXPECT_THAT(
        [&] {
          kept->forward(at::ones({2, 16}));
        },
        ThrowsMessage<c10::Error>(AllOf(HasSubstr("keep the Accelerator"), HasSubstr("clone()"))));
  });
}

TEST(ZeroGuard, GradientsFromBeforeALoadDoNotCountAfterIt) {
  for (const int number : {0, 1, 2, 3}) {
    const TestFolder folder;
    const AcceleratorOptions options = stage(number);
    accelerated_ranks(2, options, [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 16);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      const auto backward = [&, &net = model](double factor) {
        accelerator.backward(net->forward(at::ones({2, 16})).sum() * factor);
      };
      accelerator.save_state(folder.path() / "state");
      backward(1);
      optimizer.step();
      optimizer.zero_grad();
      const at::Tensor expected = model->parameters()[2].detach().clone();
      accelerator.load_state(folder.path() / "state");
      backward(100);
      accelerator.load_state(folder.path() / "state");
      for (const at::Tensor& parameter : optimizer.parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
      backward(1);
      optimizer.step();
      EXPECT_TRUE(at::equal(model->parameters()[2], expected)) << "stage " << number;
    });
  }
}

TEST(ZeroGuard, AModelThatMovesAfterPrepareIsRefusedAtTheUpdate) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 16);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.01}));
      model->parameters()[2].set_data(at::ones({16, 16}));
      accelerator.backward(model->forward(at::ones({2, 16})).sum());
      Optimizer& updated = optimizer;
      EXPECT_THAT(
          [&] { updated.step(); },
          ThrowsMessage<ConfigError>(
              AllOf(HasSubstr("1.weight"), HasSubstr("set_data"), HasSubstr("copy_"))));
    });
  }
}

TEST(ZeroGuard, ParametersInAnyMemoryFormatAreBroadcast) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    torch::nn::Conv2d conv(4, 8, 3);
    test::fill_with_sines(*conv, {.scale = 1.0 / 4});
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    const at::Tensor expected = conv->weight.detach() * 3;
    accelerator.with_gathered_parameters(
        {conv->weight},
        [&] {
          if (accelerator.process_index() == 1) {
            conv->weight.detach().mul_(3);
          }
        },
        1);
    EXPECT_TRUE(at::equal(conv->weight, expected));
    EXPECT_TRUE(conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

TEST(ZeroGuard, AnAccelerateCheckpointIsRefusedWithTheRemedy) {
  const TestFolder folder;
  fs::copy(
      fs::path(LOCKSTEP_SOURCE_DIR "/tests/golden/accelerate_state/adamw"),
      folder.path() / "saved",
      fs::copy_options::recursive);
  std::ofstream(folder.path() / "saved/random_states_0.pkl") << "never read";
  for (const int number : {2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 16);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      EXPECT_THAT(
          [&] { accelerator.load_state(folder.path() / "saved"); },
          ThrowsMessage<CheckpointError>(AllOf(
              HasSubstr("cannot be combined with ZeRO"),
              HasSubstr("without ZeRO"),
              HasSubstr("save_state"))));
    });
  }
}

TEST(ZeroGuard, SavedOptimizerStateOfAFrozenParameterIsRefusedByName) {
  const TestFolder folder;
  for (const bool frozen : {false, true}) {
    accelerated_ranks(2, stage(3), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 16);
      net->parameters()[0].set_requires_grad(!frozen);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      if (!frozen) {
        accelerator.backward(model->forward(at::ones({2, 16})).sum());
        optimizer.step();
        optimizer.zero_grad();
        accelerator.save_state(folder.path() / "state");
        return;
      }
      EXPECT_THAT(
          [&] { accelerator.load_state(folder.path() / "state"); },
          ThrowsMessage<CheckpointError>(HasSubstr("0.weight")));
    });
  }
}

}  // namespace
}  // namespace lockstep
