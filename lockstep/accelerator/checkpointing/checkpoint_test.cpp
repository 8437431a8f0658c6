// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/storage/safetensors/safetensors_map.h"
#include "lockstep/storage/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using torch::nn::Linear;

class SaveState : public ::testing::Test {
 protected:
  SaveState()
      : folder_(fs::temp_directory_path() / ("lockstep_save_state_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~SaveState() override { fs::remove_all(folder_); }
  fs::path folder_;
};

/// A run that can be stopped and taken up: its stream of samples and its final weights.
struct ResumableTraining {
  torch::nn::Sequential net{Linear(1, 6), torch::nn::BatchNorm1d(6), Linear(6, 1)};
  data::Loader<data::TensorDataset> loader{
      data::TensorDataset(at::arange(24, at::kFloat).reshape({24, 1}) / 24, at::arange(24)),
      {.batch_size = 3, .shuffle = true, .seed = 5}};
  std::optional<Optimizer> optimizer;
  std::vector<int64_t> samples;

  explicit ResumableTraining(Accelerator& accelerator) {
    optimizer =
        std::get<1>(accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.01), loader));
  }

  /// Trains until `steps` updates are done, saving to `save_to` after `save_at`.
  void train(
      Accelerator& accelerator, int64_t steps, int64_t save_at = -1, const fs::path& save_to = {}) {
    for (const int64_t epoch : accelerator.epochs(100)) {
      (void)epoch;
      for (auto& batch : loader) {
        const at::Tensor y = net->forward(batch.data);
        accelerator.backward((y - batch.target.unsqueeze(1)).pow(2).mean());
        optimizer->step();
        optimizer->zero_grad();
        for (int64_t i = 0; i < batch.target.numel(); ++i) {
          samples.push_back(batch.target[i].item<int64_t>());
        }
        if (optimizer->steps() == save_at) {
          accelerator.save_state(save_to);
        }
        if (optimizer->steps() == steps) {
          return;
        }
      }
    }
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters()) {
      all.push_back(parameter.detach());
    }
    for (const auto& buffer : net->buffers()) {
      all.push_back(buffer);
    }
    return all;
  }
};

TEST_F(SaveState, AResumedRunIsBitExactWithTheUnbrokenOne) {
  for (int size : {1, 2}) {
    for (int64_t save_at :
         {1, 4, 5, 8, 11}) {  // In the middle and at the ends of epochs of 4 or 8 steps.
      const fs::path path = folder_ / (std::to_string(size) + "_" + std::to_string(save_at));
      accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
        ResumableTraining unbroken(accelerator);
        unbroken.train(accelerator, 14, save_at, path);

        Accelerator fresh({}, accelerator.world(), accelerator.group().split(0));
        ResumableTraining resumed(fresh);
        fresh.load_state(path);
        EXPECT_EQ(resumed.optimizer->steps(), save_at);
        resumed.train(fresh, 14);

        const size_t seen = static_cast<size_t>(save_at) * 3;
        EXPECT_EQ(
            resumed.samples,
            std::vector<int64_t>(
                unbroken.samples.begin() + static_cast<ptrdiff_t>(seen), unbroken.samples.end()));
        const auto expected = unbroken.weights();
        const auto got = resumed.weights();
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::equal(got[i], expected[i]))
              << "size " << size << " save_at " << save_at << " tensor " << i;
        }
      });
    }
  }
}

TEST_F(SaveState, AtTheLastBatchWithoutEpochsContinuesWithTheNextPass) {
  const auto pass = [](ResumableTraining& training, const std::function<void(int64_t)>& after) {
    std::vector<int64_t> samples;
    int64_t batches = 0;
    for (auto& batch : training.loader) {
      for (int64_t i = 0; i < batch.target.numel(); ++i) {
        samples.push_back(batch.target[i].item<int64_t>());
      }
      after(++batches);
    }
    return samples;
  };
  for (const int size : {1, 2}) {
    const fs::path path = folder_ / std::to_string(size);
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      ResumableTraining unbroken(accelerator);
      pass(unbroken, [&](int64_t batches) {
        if (batches == unbroken.loader.size()) {
          accelerator.save_state(path);
        }
      });
      Accelerator fresh({}, accelerator.world(), accelerator.group().split(0));
      ResumableTraining resumed(fresh);
      fresh.load_state(path);
      EXPECT_EQ(resumed.loader.epoch(), 1);
      const auto nothing = [](int64_t) {};
      EXPECT_EQ(pass(resumed, nothing), pass(unbroken, nothing)) << size;
    });
  }
}

TEST_F(SaveState, BehindTheLastBodyContinuesThereIfItIsAutomatic) {
  AcceleratorOptions options{.project_dir = folder_};
  options.project_config.checkpointing_steps = 8;  // The batches of a pass.
  accelerated_ranks(1, options, [&](Accelerator& accelerator) {
    ResumableTraining training(accelerator);
    const auto pass = [&](ResumableTraining& run) {
      int64_t batches = 0;
      for (auto& batch : run.loader) {
        accelerator.backward(run.net->forward(batch.data).pow(2).mean());
        run.optimizer->step();
        run.optimizer->zero_grad();
        ++batches;
      }
      return batches;
    };
    EXPECT_EQ(pass(training), 8);
    accelerator.load_state();
    EXPECT_EQ(training.loader.epoch(), 0);
    EXPECT_EQ(pass(training), 0) << "the program goes on behind this loop";
    EXPECT_EQ(pass(training), 8);
  });
}

TEST_F(SaveState, RestoresEveryRanksRandomNumbers) {
  // One global generator, so one rank only; processes are covered end to end.
  Accelerator alone({}, WorldSpec{}, Group());
  alone.save_state(folder_ / "c");
  const at::Tensor expected = at::rand({4});
  alone.load_state(folder_ / "c");
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST_F(SaveState, WithoutAFolderNumbersItsCheckpointsAndLoadsTheNewestCompleteOne) {
  const AcceleratorOptions options{.project_dir = folder_};
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    EXPECT_EQ(accelerator.resume_latest(), std::nullopt);
    EXPECT_THROW(accelerator.load_state(), CheckpointError);
    {
      torch::NoGradGuard no_grad;
      net->weight.fill_(1);
      EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_0");
      net->weight.fill_(2);
      EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_1");
      net->weight.fill_(3);
    }
    accelerator.wait_for_everyone();
    EXPECT_EQ(accelerator.load_state().filename(), "checkpoint_1");
    EXPECT_EQ(net->weight.mean().item<float>(), 2);

    accelerator.on_main_process(
        [&] { fs::remove(folder_ / "checkpoints" / "checkpoint_1" / "manifest.json"); });
    accelerator.wait_for_everyone();
    EXPECT_EQ(accelerator.resume_latest()->filename(), "checkpoint_0");
    EXPECT_EQ(net->weight.mean().item<float>(), 1);
    EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_2")
        << "the torn folder's name is not taken again";
  });
}

TEST_F(SaveState, RefusesAnotherModelNamingTheTensorsAndChangesNothing) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(4, 2);
    accelerator.prepare(net);
    accelerator.save_state(folder_ / "c");

    Accelerator wider({}, accelerator.world(), accelerator.group().split(0));
    Linear wide(4, 3);
    wider.prepare(wide);
    const at::Tensor before = wide->weight.detach().clone();
    EXPECT_THAT(load_error(wider, folder_ / "c"), HasSubstr("weight"));
    EXPECT_TRUE(at::equal(wide->weight.detach(), before));

    Accelerator other({}, accelerator.world(), accelerator.group().split(0));
    torch::nn::Sequential nested{Linear(4, 2)};
    other.prepare(nested);
    EXPECT_THAT(
        load_error(other, folder_ / "c"),
        HasSubstr("missing: [0.weight, 0.bias], unexpected: [bias, weight]"));
  });
}

TEST_F(SaveState, RefusesAnotherSeedOrDataAndChangesNothing) {
  Accelerator alone({}, WorldSpec{}, Group());
  ResumableTraining saved(alone);
  saved.train(alone, 3, 2, folder_ / "c");
  for (const auto& [samples, seed, text] : std::vector<std::tuple<int64_t, uint64_t, std::string>>{
           {24, 6, "seed"}, {23, 5, "was saved with 24 samples, this loader has 23"}}) {
    Accelerator other({}, WorldSpec{}, Group());
    torch::nn::Sequential net{Linear(1, 6), torch::nn::BatchNorm1d(6), Linear(6, 1)};
    const at::Tensor before = net->parameters()[0].detach().clone();
    other.prepare(
        net,
        torch::optim::Adam(net->parameters(), 0.01),
        data::Loader(
            data::TensorDataset(at::zeros({samples, 1}), at::arange(samples)),
            {.batch_size = 3, .shuffle = true, .seed = seed}));
    EXPECT_THAT(load_error(other, folder_ / "c"), HasSubstr(text));
    EXPECT_TRUE(at::equal(net->parameters()[0].detach(), before));
  }
}

TEST_F(SaveState, RefusesAnotherNumberOfObjects) {
  accelerated_ranks(
      2, {}, [&](Accelerator& accelerator) { accelerator.save_state(folder_ / "two"); });
  Accelerator more({}, WorldSpec{}, Group());
  Linear net(2, 2);
  more.prepare(net);
  EXPECT_THAT(
      load_error(more, folder_ / "two"), HasSubstr("holds 0 models, this program prepared 1"));
}

TEST_F(SaveState, AFlippedBitIsRefusedOnEveryRank) {
  accelerated_ranks(
      2, {}, [&](Accelerator& accelerator) { accelerator.save_state(folder_ / "c"); });
  const fs::path file = folder_ / "c" / "random_states_1.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  const int last = stream.peek();
  stream.put(static_cast<char>(last ^ 1));
  stream.close();
  std::atomic<int> refused{0};
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    const std::string message = load_error(accelerator, folder_ / "c");
    EXPECT_THAT(message, HasSubstr("rank 1 cannot load it"));
    EXPECT_THAT(message, HasSubstr("random_states_1.safetensors"));
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

TEST_F(SaveState, AnUncheckedLoadAcceptsChangedBytesButNoOtherSize) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    accelerator.save_state(folder_ / "c");
  });
  const fs::path file = folder_ / "c" / "model.safetensors";
  storage::flip_bit(file, fs::file_size(file) - 1);  // In its last tensor.
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    EXPECT_THAT(load_error(accelerator, folder_ / "c"), HasSubstr("is damaged"));
    const storage::SafetensorsMap saved(file);
    accelerator.load_state(folder_ / "c", {.verify = false});
    for (const auto& item : net->named_parameters()) {
      const std::string_view bytes = saved.bytes(saved.entry(item.key()));
      EXPECT_EQ(
          std::string_view(
              static_cast<const char*>(item.value().const_data_ptr()), item.value().nbytes()),
          bytes);
    }
  });
  fs::resize_file(file, fs::file_size(file) - 1);
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    EXPECT_THROW(accelerator.load_state(folder_ / "c", {.verify = false}), CheckpointError);
  });
}

TEST_F(SaveState, WithoutAProjectDirIsAnError) {
  Accelerator alone({}, WorldSpec{}, Group());
  EXPECT_THROW(alone.save_state(), ConfigError);
}

TEST_F(SaveState, AnOptimizerOfNoPreparedModelIsRefusedBeforeAnythingIsWritten) {
  Accelerator alone({}, WorldSpec{}, Group());
  Linear net(2, 2);
  auto optimizer = alone.prepare(torch::optim::Adam(net->parameters()));
  net->forward(at::ones({1, 2})).sum().backward();
  optimizer.step();
  EXPECT_THAT(
      [&] {
        try {
          alone.save_state(folder_ / "c");
        } catch (const CheckpointError& error) {
          return std::string(error.what());
        }
        return std::string("no error");
      }(),
      HasSubstr("a parameter that belongs to no prepared model"));
  EXPECT_FALSE(fs::exists(folder_ / "c"));
}

}  // namespace
}  // namespace lockstep
