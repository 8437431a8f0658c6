// SPDX-License-Identifier: Apache-2.0
// save_state that the main process calls alone, as programs for Accelerate do.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_log.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;

/// A training of 6 updates an epoch, in which the main process may save alone.
struct Training {
  Accelerator& accelerator;
  Linear net{2, 1};
  data::Loader<data::TensorDataset> loader;
  Optimizer optimizer;
  std::vector<int64_t> samples;

  explicit Training(Accelerator& given)
      : accelerator(given),
        loader(
            data::TensorDataset(at::arange(48, at::kFloat).reshape({24, 2}) / 48, at::arange(24)),
            {.batch_size = 4 / given.num_processes(), .shuffle = true, .seed = 5}),
        optimizer(
            std::get<1>(given.prepare(net, optim::Adam(net->parameters(), {.lr = 0.01}), loader))) {
  }

  void train(int64_t updates, int64_t save_at = -1, const fs::path& to = {}) {
    for (const int64_t epoch : accelerator.epochs(100)) {
      (void)epoch;
      for (auto& batch : loader) {
        auto micro_step = accelerator.accumulate(net);
        for (int64_t i = 0; i < batch.target.numel(); ++i) {
          samples.push_back(batch.target[i].item<int64_t>());
        }
        accelerator.backward(net->forward(batch.data).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
        if (optimizer.steps() == save_at && accelerator.is_main_process()) {
          accelerator.save_state(to, {.overwrite = true});
        }
        if (optimizer.steps() == updates) {
          return;
        }
      }
    }
  }
};

TEST(LoneSave, ARunOfAsManyProcessesContinuesExactly) {
  const TestFolder folder;
  for (const Precision precision : {Precision::kNo, Precision::kFP16}) {
    for (const int64_t save_at : {1, 4, 6, 9}) {
      const AcceleratorOptions options{.mixed_precision = precision};
      const fs::path path = folder.path() / fmt::format("{}_{}", save_at, name_of(precision));
      accelerated_ranks(2, options, [&](Accelerator& accelerator) {
        Training unbroken(accelerator);
        unbroken.train(14, save_at, path);

        Accelerator fresh(options, accelerator.world(), accelerator.group().split(0));
        Training resumed(fresh);
        fresh.load_state(path);
        EXPECT_EQ(resumed.optimizer.steps(), save_at);
        resumed.train(14);
        unbroken.samples.erase(unbroken.samples.begin(), unbroken.samples.begin() + 2 * save_at);
        EXPECT_EQ(resumed.samples, unbroken.samples) << "saved at " << save_at;
        EXPECT_TRUE(at::equal(resumed.net->weight, unbroken.net->weight)) << save_at;
      });
    }
  }
}

TEST(LoneSave, OneProcessContinuesWithTheSameNumbers) {
  const TestFolder folder;
  at::Tensor of_two;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Training unbroken(accelerator);
    unbroken.train(9, 4, folder.path() / "c");
    if (accelerator.is_main_process()) {
      of_two = unbroken.net->weight.detach().clone();
    }
  });
  accelerated_ranks(1, {}, [&](Accelerator& accelerator) {
    Training resumed(accelerator);
    accelerator.load_state(folder.path() / "c");
    resumed.train(9);
    EXPECT_TRUE(at::allclose(resumed.net->weight, of_two, 1e-6, 1e-7));
  });
}

TEST(LoneSave, TheOthersMayBeInAnyOperation) {
  const TestFolder folder;
  const std::vector<std::function<void(Accelerator&)>> operations = {
      [](Accelerator& accelerator) { accelerator.wait_for_everyone(); },
      [](Accelerator& accelerator) { (void)accelerator.gather(at::ones({2})); },
      [](Accelerator& accelerator) { accelerator.end_training(); }};
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Training training(accelerator);
    training.train(2);
    for (const auto& operation : operations) {
      if (accelerator.is_main_process()) {
        accelerator.save_state(folder.path() / "c", {.overwrite = true});
      }
      operation(accelerator);
    }
    accelerator.save_state(folder.path() / "of_all");
  });
}

TEST(LoneSave, BeforeASaveOfAllToAnotherFolderIsTakenForAMistake) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Training training(accelerator);
    training.train(1);
    EXPECT_THAT(
        error_of<CheckpointError>([&] {
          if (accelerator.is_main_process()) {
            accelerator.save_state(folder.path() / "alone");
          }
          accelerator.save_state(folder.path() / "of_all");
        }),
        AllOf(HasSubstr("alone"), HasSubstr("of_all")));
  });
}

TEST(LoneSave, SaysWhatItLacks) {
  const TestFolder folder;
  const std::vector<std::string> lines = logged_by([&] {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Training training(accelerator);
      training.train(2, 1, folder.path() / "c");
    });
  });
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("c alone: random numbers, own states")));
}

/// Returns rank 0's message after the main process has saved alone, and both went on to a barrier.
std::string error_after_lone_save(
    const AcceleratorOptions& options,
    const std::function<void(Training&, const fs::path&)>& save) {
  const TestFolder folder;
  std::string message;
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    Training training(accelerator);
    training.train(1);
    const std::string own = error_of<CommError>([&] {
      save(training, folder.path() / "c");
      accelerator.wait_for_everyone();
      accelerator.wait_for_everyone();
    });
    EXPECT_NE(own, "no error") << "rank " << accelerator.process_index();
    EXPECT_FALSE(fs::exists(folder.path() / "c"));
    if (accelerator.is_main_process()) {
      message = own;
    }
  });
  return message;
}

void save_on_main(Training& training, const fs::path& folder) {
  if (training.accelerator.is_main_process()) {
    training.accelerator.save_state(folder);
  }
}

TEST(LoneSave, IsAnErrorWhereTheOthersHaveAPart) {
  const auto names_both =
      AllOf(HasSubstr("rank 0 calls save_state ("), HasSubstr("rank 1 calls wait_for_everyone ("));
  for (const int stage : {1, 2, 3}) {
    EXPECT_THAT(
        error_after_lone_save({.zero = ZeroPlugin{.stage = stage}}, save_on_main), names_both)
        << "stage " << stage;
  }
  EXPECT_THAT(
      error_after_lone_save(
          {},
          [](Training& training, const fs::path& folder) {
            if (training.accelerator.is_main_process()) {
              training.accelerator.save_state(folder, {.async = true});
            }
          }),
      names_both);
  EXPECT_THAT(
      error_after_lone_save(
          {},
          [](Training& training, const fs::path& folder) {
            training.accelerator.backward(training.net->forward(at::ones({1, 2})).sum());
            save_on_main(training, folder);  // Gradients wait for an update.
          }),
      names_both);
  EXPECT_THAT(
      error_after_lone_save(
          {},
          [](Training& training, const fs::path& folder) {
            LocalSgd local_sgd(training.accelerator, training.net, {.local_sgd_steps = 4});
            save_on_main(training, folder);
            training.accelerator.wait_for_everyone();
          }),
      names_both);
}

TEST(LoneSave, OfAModelWhoseBuffersDifferIsAnError) {
  AcceleratorOptions options;
  options.data_parallel.broadcast_buffers = false;
  const TestFolder folder;
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    torch::nn::BatchNorm1d norm(2);
    accelerator.prepare(norm);
    EXPECT_THAT(
        error_of<CommError>([&] {
          if (accelerator.is_main_process()) {
            accelerator.save_state(folder.path() / "c");
          }
          accelerator.wait_for_everyone();
        }),
        HasSubstr("rank 0 calls save_state ("));
  });
}

TEST(LoneSave, OfAnotherProcessIsAnError) {
  EXPECT_THAT(
      error_after_lone_save(
          {},
          [](Training& training, const fs::path& folder) {
            if (!training.accelerator.is_main_process()) {
              training.accelerator.save_state(folder);
            }
          }),
      AllOf(HasSubstr("rank 0 calls wait_for_everyone ("), HasSubstr("rank 1 calls save_state (")));
}

}  // namespace
}  // namespace lockstep
