// SPDX-License-Identifier: Apache-2.0
// fp32 masters of 16-bit parameters in checkpoints, in host memory and files, and from zero_init.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/accelerator/zero_setup/test_masters.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::test_masters {
namespace {

struct Job {
  int world;
  int stage;
};

TEST(ZeroMastersSaved, LoadBitExactlyInAnyStageAndOnAnyNumberOfRanks) {
  const TestFolder folder;
  // The same batch on every rank: then the number of ranks does not matter.
  const auto steps = [](Training& training, int64_t from, int64_t to) {
    training.train(from, to, 0, /*same=*/true);
  };
  const at::Tensor unbroken =
      weights_after(stage(2), 1, at::kBFloat16, [&](Training& training) { steps(training, 0, 6); });
  const std::vector<Job> jobs = {{1, 2}, {2, 1}, {4, 2}, {2, 3}, {4, 3}};
  for (size_t saved = 0; saved < jobs.size(); ++saved) {
    const std::filesystem::path path = folder / std::to_string(saved);
    weights_after(
        stage(jobs[saved].stage), jobs[saved].world, at::kBFloat16, [&](Training& training) {
          steps(training, 0, 3);
          training.accelerator.save_state(path);
        });
    for (const Job& job : jobs) {
      const at::Tensor resumed =
          weights_after(stage(job.stage), job.world, at::kBFloat16, [&](Training& training) {
            training.accelerator.load_state(path);
            steps(training, 3, 6);
          });
      EXPECT_TRUE(at::equal(resumed, unbroken))
          << "saved by " << jobs[saved].world << " in stage " << jobs[saved].stage << ", to "
          << job.world << " in stage " << job.stage;
    }
  }
}

TEST(ZeroMastersSaved, LoadFromDataParallelExactlyAndIntoItRounded) {
  const TestFolder folder;
  const at::Tensor plain = weights_after(stage(0), 2, at::kBFloat16, [&](Training& training) {
    training.train(0, 3);
    training.accelerator.save_state(folder / "plain");
  });
  for (const int number : {1, 2, 3}) {
    const std::filesystem::path path = folder / std::to_string(number);
    const at::Tensor trained =
        weights_after(stage(number), 2, at::kBFloat16, [&](Training& training) {
          training.accelerator.load_state(folder / "plain");
          EXPECT_TRUE(at::equal(training.weights(), plain));
          for (const at::Tensor& shard_slice : training.optimizer.parameters()) {
            EXPECT_TRUE(at::equal(shard_slice, shard_slice.to(at::kBFloat16).to(at::kFloat)));
          }
          training.train(3, 5);
          training.accelerator.save_state(path);
        });
    const at::Tensor loaded = weights_after(stage(0), 2, at::kBFloat16, [&](Training& training) {
      training.accelerator.load_state(path);
    });
    EXPECT_TRUE(at::equal(loaded, trained));
  }
}

TEST(ZeroMastersSaved, AreFp32InACheckpointAndTheParametersDtypeInAModel) {
  const TestFolder folder;
  for (const int number : {1, 2, 3}) {
    const std::filesystem::path path = folder / std::to_string(number);
    const at::Tensor weights =
        weights_after(stage(number), 2, at::kBFloat16, [&](Training& training) {
          training.train(0, 3);
          training.accelerator.save_state(path);
          training.accelerator.save_model(training.net, path.string() + "_model");
        });
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> values;
    const storage::SafetensorsMap model(path.string() + "_model/model.safetensors");
    const checkpoint::Reader reader(path);
    const NamedTensors saved = reader.tensor_set("model");
    for (const auto& item : new_net(at::kFloat)->named_parameters()) {
      for (const NamedTensor& tensor : saved) {
        if (tensor.name == item.key()) {
          EXPECT_EQ(tensor.tensor.scalar_type(), at::kFloat);
          masters.push_back(tensor.tensor);
        }
      }
      values.push_back(checkpoint::tensor_of(model, item.key()));
    }
    EXPECT_TRUE(at::equal(flat(masters).to(at::kBFloat16), weights));
    EXPECT_FALSE(at::equal(flat(masters), weights.to(at::kFloat)));
    EXPECT_TRUE(at::equal(flat(values), weights));
    EXPECT_EQ(flat(values).scalar_type(), at::kBFloat16);
  }
}

TEST(ZeroMastersSaved, AreNotLostInAFullStateDict) {
  for (const int number : {1, 2, 3}) {
    AcceleratorOptions options = stage(number);
    options.zero->state_dict_type = StateDictType::kFullStateDict;
    accelerated_ranks(2, options, [number](Accelerator& accelerator) {
      EXPECT_THAT(
          [&] { Training(accelerator, at::kBFloat16); },
          ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("FULL_STATE_DICT")))
          << number;
    });
  }
}

struct Way {
  std::string name;
  ZeroPlugin plugin;
};

std::vector<Way> ways(const std::filesystem::path& folder) {
  std::vector<Way> all;
  const OffloadOptimizer in_files{.device = OffloadDevice::kNvme, .nvme_path = folder};
  for (const int number : {1, 2, 3}) {
    ZeroPlugin plugin{.stage = number, .bucket_cap_bytes = 1000};
    plugin.offload_optimizer.device = OffloadDevice::kCpu;
    all.push_back({std::to_string(number) + " cpu", plugin});
    plugin.offload_optimizer = in_files;
    all.push_back({std::to_string(number) + " nvme", plugin});
    plugin.offload_optimizer.ratio = 0.5;
    all.push_back({std::to_string(number) + " half of it in files", plugin});
    plugin.offload_optimizer.ratio = 1;
    if (number == 3) {
      plugin.offload_param = {.device = OffloadDevice::kNvme, .nvme_path = folder, .max_in_cpu = 0};
      plugin.stage3_param_persistence_threshold = 50;
      all.push_back({"3 all in files", plugin});
    }
  }
  return all;
}

TEST(ZeroMastersOffloaded, GiveTheSameBits) {
  const TestFolder folder;
  const auto body = [](Training& training) {
    training.train(0, 3);
    {
      const torch::NoGradGuard no_grad;
      training.net->first->weight.slice(0, 3, 5).fill_(0.25);
    }
    training.train(3, 6);
  };
  for (const int world : {1, 2}) {
    for (const Way& way : ways(folder.path())) {
      SCOPED_TRACE(way.name + ", ranks " + std::to_string(world));
      EXPECT_TRUE(at::equal(
          weights_after({.zero = way.plugin}, world, at::kBFloat16, body),
          weights_after(stage(way.plugin.stage), world, at::kBFloat16, body)));
    }
  }
}

TEST(ZeroMastersOffloaded, AreSavedFromAndLoadedIntoTheirFiles) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "scratch");
  const at::Tensor unbroken =
      weights_after(stage(2), 2, at::kBFloat16, [](Training& training) { training.train(0, 6); });
  for (const Way& way : ways(folder / "scratch")) {
    SCOPED_TRACE(way.name);
    const std::filesystem::path path = folder / way.name;
    weights_after({.zero = way.plugin}, 2, at::kBFloat16, [&](Training& training) {
      training.train(0, 3);
      training.accelerator.save_state(path);
    });
    EXPECT_TRUE(at::equal(
        weights_after(
            {.zero = way.plugin},
            2,
            at::kBFloat16,
            [&](Training& training) {
              training.train(3, 4);
              training.accelerator.load_state(path);
              training.train(3, 6);
            }),
        unbroken));
  }
}

struct LargeImpl : torch::nn::Module {
  LargeImpl()
      : weight(register_parameter(
            "weight",
            at::sin(at::arange(96 * 96, at::kFloat)).to(at::kBFloat16).reshape({96, 96}) / 8)) {}
  at::Tensor weight;
};
TORCH_MODULE(Large);

TEST(ZeroMastersBuiltInParts, AreTheValuesOfTheModel) {
  std::vector<at::Tensor> trained(2);
  for (const bool in_parts : {false, true}) {
    accelerated_ranks(2, stage(3), [&](Accelerator& accelerator) {
      Large net = in_parts ? accelerator.zero_init([] { return Large(); }) : Large();
      EXPECT_EQ(comm::is_sharded_param(net->weight), in_parts);
      auto [model, optimizer] = accelerator.prepare(net, adamw(net->parameters(), 1e-4));
      for (int step = 0; step < 20; ++step) {
        accelerator.backward(at::matmul(at::ones({1, 96}, at::kBFloat16), model->weight).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor weights = model->weight.detach().clone();
      if (accelerator.is_main_process()) {
        trained[in_parts ? 1 : 0] = weights;
      }
    });
  }
  EXPECT_TRUE(at::equal(trained[0], trained[1]));
  EXPECT_FALSE(at::equal(trained[0], Large()->weight));
}

}  // namespace
}  // namespace lockstep::test_masters
