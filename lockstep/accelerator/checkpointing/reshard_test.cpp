// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "lockstep/accelerator/checkpointing/parts/random_states.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using torch::nn::Linear;

constexpr int64_t kSamples = 60;
constexpr int64_t kGlobalBatch = 12;  // Of any number of processes up to four.

/// A run whose updates each see the same 12 samples, however many processes share them.
struct SharedRun {
  torch::nn::Sequential net{Linear(3, 5), Linear(5, 1)};
  data::Loader<data::TensorDataset> loader;
  Optimizer optimizer;
  std::map<int64_t, std::multiset<int64_t>> samples;  ///< This process's, by update.

  explicit SharedRun(Accelerator& accelerator)
      : loader(
            data::TensorDataset(inputs(), at::arange(kSamples)),
            {.batch_size = kGlobalBatch / accelerator.num_processes(), .shuffle = true, .seed = 3}),
        optimizer(std::get<1>(
            accelerator.prepare(net, optim::Adam(net->parameters(), {.lr = 0.02}), loader))) {
    torch::NoGradGuard no_grad;
    double value = 0.1;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_(at::linspace(-value, value, parameter.numel()).view(parameter.sizes()));
      value += 0.1;
    }
  }
  static at::Tensor inputs() { return at::arange(kSamples * 3, at::kFloat).view({-1, 3}) / 90; }

  void train(
      Accelerator& accelerator,
      int64_t micro_steps,
      int64_t save_at = -1,
      const fs::path& to = {}) {
    int64_t done = accelerated_micro_steps_;
    for (const int64_t epoch : accelerator.epochs(1000)) {
      (void)epoch;
      for (auto& batch : loader) {
        auto micro_step = accelerator.accumulate(net);
        const at::Tensor y = net->forward(batch.data);
        accelerator.backward((y - batch.target.unsqueeze(1) / 60).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
        ++done;
        for (int64_t i = 0; i < batch.target.numel(); ++i) {
          samples[done].insert(batch.target[i].item<int64_t>());
        }
        if (done == save_at) {
          accelerator.save_state(to);
        }
        if (done == micro_steps) {
          accelerated_micro_steps_ = done;
          return;
        }
      }
    }
  }
  void go_on_from(int64_t micro_steps) { accelerated_micro_steps_ = micro_steps; }

 private:
  int64_t accelerated_micro_steps_ = 0;
};

struct Result {
  std::map<int64_t, std::multiset<int64_t>> samples;
  std::vector<at::Tensor> weights;
};

AcceleratorOptions accumulating(int64_t steps) {
  return {
      .gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = steps, .sync_with_dataloader = false}};
}

/// `micro_steps` in all, of which the first `resume_at` are in the checkpoint at `from`, if any.
Result run(
    int ranks,
    int64_t accumulation,
    int64_t micro_steps,
    int64_t resume_at,
    const fs::path& from,
    int64_t save_at = -1,
    const fs::path& to = {}) {
  Result result;
  std::mutex mutex;
  accelerated_ranks(ranks, accumulating(accumulation), [&](Accelerator& accelerator) {
    SharedRun training(accelerator);
    if (!from.empty()) {
      accelerator.load_state(from);
      training.go_on_from(resume_at);
    }
    training.train(accelerator, micro_steps, save_at, to);
    const std::lock_guard<std::mutex> guard(mutex);
    for (const auto& [step, samples] : training.samples) {
      result.samples[step].insert(samples.begin(), samples.end());
    }
    if (accelerator.is_main_process()) {
      for (const auto& parameter : training.net->parameters()) {
        result.weights.push_back(parameter.detach().clone());
      }
    }
  });
  return result;
}

class Reshard : public ::testing::TestWithParam<int64_t> {
 protected:
  TestFolder folder;
};

TEST_P(Reshard, SavedByAnyNumberOfProcessesItResumesWithAnyOther) {
  const int64_t accumulation = GetParam();
  constexpr int64_t kTotal = 13;
  const Result unbroken = run(1, accumulation, kTotal, 0, {});
  for (int64_t save_at : {3, 5, 7}) {  // Within the first epoch of 5 rounds, at its end, after it.
    for (int saving = 1; saving <= 4; ++saving) {
      const fs::path path = folder / (std::to_string(saving) + "_" + std::to_string(save_at));
      run(saving, accumulation, save_at, 0, {}, save_at, path);
      for (int loading = 1; loading <= 4; ++loading) {
        const Result resumed = run(loading, accumulation, kTotal, save_at, path);
        for (int64_t step = save_at + 1; step <= kTotal; ++step) {
          EXPECT_EQ(resumed.samples.at(step), unbroken.samples.at(step))
              << saving << " to " << loading << ", saved at " << save_at << ", step " << step;
        }
        for (size_t i = 0; i < unbroken.weights.size(); ++i) {
          // Sums of other orders, through Adam's division by small numbers.
          EXPECT_TRUE(at::allclose(resumed.weights[i], unbroken.weights[i], 1e-4, 1e-5))
              << saving << " to " << loading << ", saved at " << save_at;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Accumulation,
    Reshard,
    ::testing::Values(1, 2),  // With 2, an odd save is within a group: its gradients go along.
    [](const auto& tested) { return std::to_string(tested.param); });

TEST(ReshardLocalSgd, OptimizerStatesBecomeTheirMean) {
  const TestFolder folder;
  const auto with_local_sgd = [&](Accelerator& accelerator,
                                  const std::function<void(SharedRun&, LocalSgd&)>& body) {
    SharedRun training(accelerator);
    LocalSgd local(accelerator, training.net, {.local_sgd_steps = 4});
    body(training, local);
    local.finish();
  };
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    with_local_sgd(accelerator, [&](SharedRun& training, LocalSgd& local) {
      for (int64_t updates = 1; updates <= 3; ++updates) {
        training.train(accelerator, updates);
        local.step();
      }
      accelerator.save_state(folder / "two");
    });
  });
  const checkpoint::Reader reader(folder / "two");
  const auto moment = [&](int rank) {
    for (const NamedTensor& item :
         reader.tensors("optimizer_of_rank_" + std::to_string(rank) + ".safetensors")) {
      if (item.name == "0.weight.exp_avg") {
        return item.tensor;
      }
    }
    throw std::runtime_error("no moment");
  };
  const at::Tensor mean = (moment(0) + moment(1)) / 2;
  EXPECT_FALSE(at::equal(moment(0), moment(1)));
  accelerated_ranks(3, {}, [&](Accelerator& accelerator) {
    with_local_sgd(accelerator, [&](SharedRun&, LocalSgd&) {
      accelerator.load_state(folder / "two");
      accelerator.save_state(folder / "three");
    });
  });
  const checkpoint::Reader three(folder / "three");
  for (const NamedTensor& item : three.tensors("optimizer_of_rank_2.safetensors")) {
    if (item.name == "0.weight.exp_avg") {
      EXPECT_TRUE(at::allclose(item.tensor, mean));
    }
  }
}

TEST(RandomState, OfANewProcessIsUniqueAndReproducible) {
  torch::manual_seed(7);
  const NamedTensors saved{{"cpu", internal::random_state().clone()}};
  std::vector<at::Tensor> drawn;
  for (int stream = 0; stream < 4; ++stream) {
    internal::check_random_state(saved, stream, "file")();
    drawn.push_back(at::rand({4}));
    internal::check_random_state(saved, stream, "file")();
    EXPECT_TRUE(at::equal(at::rand({4}), drawn.back()));
  }
  torch::manual_seed(7);
  EXPECT_TRUE(at::equal(at::rand({4}), drawn[0]));
  for (size_t i = 0; i < drawn.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(at::equal(drawn[i], drawn[j])) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace lockstep
