// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

struct Loop {
  Linear net{1, 1};
  data::Loader<data::TensorDataset> loader{
      data::TensorDataset(at::arange(24, at::kFloat).view({24, 1}) / 24, at::arange(24)),
      {.batch_size = 3, .shuffle = true, .seed = 5}};
  Optimizer optimizer;
  std::vector<int64_t> samples;

  explicit Loop(Accelerator& accelerator)
      : optimizer(std::get<1>(
            accelerator.prepare(net, optim::Adam(net->parameters(), {.lr = 0.01}), loader))) {}

  void train(
      Accelerator& accelerator,
      int64_t epochs,
      const std::function<void(int64_t step)>& each = nullptr) {
    for (const int64_t epoch : accelerator.epochs(epochs)) {
      (void)epoch;
      for (auto& batch : loader) {
        accelerator.backward((net->forward(batch.data) - batch.target).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
        for (int64_t i = 0; i < batch.target.numel(); ++i) {
          samples.push_back(batch.target[i].item<int64_t>());
        }
        if (each) {
          each(optimizer.steps());
        }
      }
    }
  }
};

TEST(CheckpointingSteps, SavesAutomaticallyEveryNUpdates) {
  for (const bool async : {false, true}) {
    const TestFolder folder;
    const AcceleratorOptions options{
        .project_config = {
            .project_dir = folder.path(), .checkpointing_steps = 3, .async_checkpointing = async}};
    accelerated_ranks(2, options, [&](Accelerator& accelerator) {
      Loop loop(accelerator);
      loop.train(accelerator, 2);  // Two epochs of 4 rounds.
      accelerator.end_training();
      const std::vector<int64_t> all = loop.samples;
      const at::Tensor weight = loop.net->weight.detach().clone();

      Accelerator fresh(options, accelerator.world(), accelerator.group().split(0));
      Loop again(fresh);
      EXPECT_EQ(fresh.resume_latest()->filename(), "checkpoint_1");
      EXPECT_EQ(again.optimizer.steps(), 6);
      again.train(fresh, 2);
      EXPECT_EQ(again.samples, std::vector<int64_t>(all.begin() + 18, all.end()));
      EXPECT_TRUE(at::equal(again.net->weight.detach(), weight));
    });
  }
}

TEST(CheckpointingSteps, CountsUpdatesAndNotBatchesBeforeTheFirstOrAfterALoad) {
  const TestFolder folder;
  const AcceleratorOptions options{
      .gradient_accumulation_steps = 2,
      .project_config = {.project_dir = folder.path(), .checkpointing_steps = 2}};
  Accelerator accelerator(options, WorldSpec{}, Group());
  Loop loop(accelerator);
  const auto saved = [&] { return storage::next_sequence(folder / "checkpoints") - 1; };
  std::vector<int64_t> counts;
  for (const int64_t epoch : accelerator.epochs(1)) {
    (void)epoch;
    for (auto& batch : loop.loader) {
      counts.push_back(saved());
      auto micro_step = accelerator.accumulate(loop.net);
      accelerator.backward((loop.net->forward(batch.data) - batch.target).pow(2).mean());
      loop.optimizer.step();
      loop.optimizer.zero_grad();
    }
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(saved(), 2);
  accelerator.load_state(folder / "checkpoints" / "checkpoint_0");  // Two updates.
  EXPECT_EQ(loop.optimizer.steps(), 2);
  for (const int64_t epoch : accelerator.epochs(1)) {
    (void)epoch;
    for (auto& batch : loop.loader) {
      auto micro_step = accelerator.accumulate(loop.net);
      accelerator.backward((loop.net->forward(batch.data) - batch.target).pow(2).mean());
      loop.optimizer.step();
      loop.optimizer.zero_grad();
    }
  }
  EXPECT_EQ(saved(), 3) << "the fourth update of this life is saved, too";
}

TEST(CheckpointingSteps, GradientsThatNoUpdateHasUsedAreAPartOfTheState) {
  for (int size : {1, 2}) {
    const TestFolder folder;
    // By hand: an update every other batch, and none of accumulate().
    const auto train = [](Accelerator& accelerator, Loop& loop, int64_t from, int64_t batches) {
      int64_t i = from;
      for (const int64_t epoch : accelerator.epochs(9)) {
        (void)epoch;
        for (auto& batch : loop.loader) {
          accelerator.backward((loop.net->forward(batch.data) - batch.target).pow(2).mean());
          if (++i % 2 == 0) {
            loop.optimizer.step();
            loop.optimizer.zero_grad();
          }
          if (i == batches) {
            return;
          }
        }
      }
    };
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      Loop loop(accelerator);
      train(accelerator, loop, 0, 3);
      accelerator.save_state(folder / "c");
      Accelerator fresh({}, accelerator.world(), accelerator.group().split(0));
      Loop again(fresh);
      fresh.load_state(folder / "c");

      Accelerator third({}, accelerator.world(), accelerator.group().split(0));
      Loop unbroken(third);
      third.load_state(folder / "c");
      // What was loaded is saved again as it was.
      third.save_state(folder / "d");
      fresh.load_state(folder / "d");
      EXPECT_TRUE(loop.net->weight.grad().abs().sum().item<float>() > 0);
      EXPECT_TRUE(at::equal(again.net->weight.grad(), loop.net->weight.grad()));
      EXPECT_TRUE(at::equal(unbroken.net->weight.grad(), loop.net->weight.grad()));
    });
  }
}

TEST(Resume, ADamagedNewestCheckpointIsSkippedAndAWrongProgramIsNot) {
  const TestFolder folder;
  accelerated_ranks(2, {.project_dir = folder.path()}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    accelerator.save_state();
    accelerator.save_state();
    accelerator.on_main_process([&] {
      storage::flip_bit(
          folder / "checkpoints" / "checkpoint_1" / "model.safetensors",
          fs::file_size(folder / "checkpoints" / "checkpoint_1" / "model.safetensors") - 1);
    });
    accelerator.wait_for_everyone();
    EXPECT_THROW(accelerator.load_state(folder / "checkpoints" / "checkpoint_1"), CheckpointError);
    EXPECT_EQ(accelerator.resume_latest()->filename(), "checkpoint_0");

    Accelerator other(
        {.project_dir = folder.path()}, accelerator.world(), accelerator.group().split(0));
    Linear wider(2, 3);
    other.prepare(wider);
    accelerator.on_main_process([&] { fs::remove_all(folder / "checkpoints" / "checkpoint_1"); });
    accelerator.wait_for_everyone();
    EXPECT_THAT(
        [&] { other.resume_latest(); },
        ThrowsMessage<CheckpointError>(HasSubstr("this program's model has")));
  });
}

TEST(Resume, AnEvaluationThatEndedEarlyRestartsNextTime) {
  const TestFolder folder;
  const auto look = [](Loop& loop) {
    std::vector<int64_t> seen;
    for (auto& batch : loop.loader) {
      seen.push_back(batch.target[0].item<int64_t>());
      if (seen.size() == 2) {
        break;
      }
    }
    return seen;
  };
  Accelerator accelerator({}, WorldSpec{}, Group());
  Loop loop(accelerator);
  look(loop);
  accelerator.save_state(folder / "c");
  const std::vector<int64_t> unbroken = look(loop);
  Accelerator fresh({}, WorldSpec{}, Group());
  Loop again(fresh);
  fresh.load_state(folder / "c");
  EXPECT_EQ(look(again), unbroken);
}

struct Left : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Preemption, ASignalToOneProcessMakesAllSaveAfterTheSameBatch) {
  for (int size : {1, 2, 3}) {
    for (int64_t told_at : {1, 4, 5}) {
      const TestFolder folder;
      const AcceleratorOptions options{
          .project_dir = folder.path(),
          .on_preempted = [](const fs::path& path) { throw Left(path.filename().string()); }};
      accelerated_ranks(size, options, [&](Accelerator& accelerator) {
        Loop unbroken(accelerator);
        unbroken.train(accelerator, 8);

        Accelerator second(options, accelerator.world(), accelerator.group().split(0));
        Loop told(second);
        EXPECT_THROW(
            told.train(
                second,
                1000,
                [&](int64_t step) {
                  if (step == told_at && second.is_last_process()) {
                    second.request_preemption();
                  }
                }),
            Left);
        const int64_t left_at = told.optimizer.steps();
        EXPECT_GE(left_at, told_at);

        Accelerator third(options, accelerator.world(), accelerator.group().split(0));
        Loop resumed(third);
        third.load_state();
        EXPECT_EQ(resumed.optimizer.steps(), left_at);
        ASSERT_LT(left_at, unbroken.optimizer.steps());
        resumed.train(third, 8);
        std::vector<int64_t> seen = told.samples;
        seen.insert(seen.end(), resumed.samples.begin(), resumed.samples.end());
        EXPECT_EQ(seen, unbroken.samples);
      });
    }
  }
}

TEST(Preemption, AnEvaluationLoopContinuesToItsEnd) {
  const TestFolder folder;
  Accelerator accelerator(
      {.project_dir = folder.path(), .on_preempted = [](const fs::path&) { throw Left("left"); }},
      WorldSpec{},
      Group());
  Loop loop(accelerator);
  accelerator.request_preemption();
  int64_t batches = 0;
  for (auto& batch : loop.loader) {
    batches += batch.data.numel() > 0 ? 1 : 0;
  }
  EXPECT_EQ(batches, 8);
  EXPECT_THROW(loop.train(accelerator, 2), Left);
}

}  // namespace
}  // namespace lockstep
