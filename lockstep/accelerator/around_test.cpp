// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/executable_batch_size.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Linear;

TEST(Trigger, RaisedByOneIsSeenByAllAndLowered) {
  accelerated_ranks(3, {}, [](Accelerator& accelerator) {
    EXPECT_FALSE(accelerator.check_trigger());
    if (accelerator.process_index() == 1) {
      accelerator.set_trigger();
    }
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(SplitBetweenProcesses, IsThisProcesssShare) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    const auto mine = accelerator.split_between_processes(std::vector<int>{1, 2, 3});
    EXPECT_EQ(mine.size(), accelerator.is_main_process() ? 2U : 1U);
  });
}

TEST(GatherObjectForMetrics, LeavesRepeatsOut) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    const at::Tensor rows = at::arange(5, at::kFloat);
    auto loader =
        accelerator.prepare(data::Loader(data::TensorDataset(rows, rows), {.batch_size = 2}));
    std::vector<int> seen;
    for (auto& batch : loader) {
      nlohmann::json names = nlohmann::json::array();
      for (int64_t i = 0; i < batch.data.size(0); ++i) {
        names.push_back(batch.data[i].item<int>());
      }
      for (const nlohmann::json& name : accelerator.gather_object_for_metrics(names)) {
        seen.push_back(name.get<int>());
      }
    }
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4));
  });
}

TEST(FreeMemory, EmptiesWhatItIsGivenAndStartsAnew) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    Linear net(2, 1);
    std::weak_ptr<torch::nn::LinearImpl> alive = net.ptr();
    auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
    accelerator.prepare(net);
    {
      auto micro_step = accelerator.accumulate(net);
      accelerator.backward(net->forward(at::ones({1, 2})).sum());
    }
    accelerator.free_memory(net, optimizer);
    EXPECT_TRUE(net.is_empty());
    EXPECT_TRUE(alive.expired());
    EXPECT_TRUE(accelerator.sync_gradients());
    Linear again(2, 1);
    accelerator.prepare(again);
    accelerator.backward(again->forward(at::ones({1, 2})).sum());
    EXPECT_EQ(again->weight.grad()[0][0].item<float>(), 0.5);
  });
}

struct CountedDataset {
  std::shared_ptr<int> alive;
  int64_t size() const { return 8; }
  data::Batch get(int64_t /*index*/) const { return {at::ones({2}), at::ones({1})}; }
};

TEST(FreeMemory, ReleasesTheDataSetOfALoader) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    const auto alive = std::make_shared<int>(0);
    auto loader =
        accelerator.prepare(data::Loader(data::collated(CountedDataset{alive}), {.batch_size = 2}));
    EXPECT_GT(alive.use_count(), 1);
    accelerator.free_memory(loader);
    EXPECT_EQ(alive.use_count(), 1);
    try {
      loader.begin();
      FAIL() << "an empty loader was used";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("free_memory() has released its dataset"));
    }
  });
}

TEST(ExecutableBatchSize, ShrinksUntilItFitsAndRemembers) {
  std::vector<int64_t> tried;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size, int factor) {
        tried.push_back(batch_size);
        if (batch_size > 80) {
          throw std::bad_alloc();
        }
        return batch_size * factor;
      },
      100);
  EXPECT_EQ(train(2), 144);
  EXPECT_THAT(tried, ElementsAre(100, 90, 81, 72));
  EXPECT_EQ(train.batch_size(), 72);
  tried.clear();
  train(1);
  EXPECT_THAT(tried, ElementsAre(72));
}

TEST(ExecutableBatchSize, KnowsTheHostAllocatorsErrorAndNoOther) {
  auto allocate = find_executable_batch_size(
      [](int64_t batch_size) { return at::empty({batch_size > 1 ? int64_t{1} << 50 : 1}).numel(); },
      4,
      [](int64_t size) { return size / 2; });
  EXPECT_EQ(allocate(), 1);
  auto broken = find_executable_batch_size([](int64_t) -> int { throw Error("a", "bug"); });
  EXPECT_THROW(broken(), Error);
  auto hopeless = find_executable_batch_size([](int64_t) -> int { throw std::bad_alloc(); }, 3);
  try {
    hopeless();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no executable batch size"));
  }
}

TEST(ExecutableBatchSize, TakesTheAcceleratorOfOneProcess) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(1, 1);
  auto train = find_executable_batch_size(
      accelerator,
      [&](int64_t batch_size) {
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
        accelerator.backward(net->forward(at::ones({1, 1})).sum());
        if (batch_size > 8) {
          throw std::bad_alloc();
        }
        return batch_size;
      },
      10);
  EXPECT_EQ(train(), 8);
  EXPECT_EQ(train.batch_size(), 8);
}

TEST(ExecutableBatchSize, NeedsAConnectionOfTheAcceleratorsOwn) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto train = find_executable_batch_size(accelerator, [](int64_t) {});
    EXPECT_THAT(
        [&] { train(); },
        ::testing::ThrowsMessage<ConfigError>(HasSubstr("construct it without a group")));
  });
}

nlohmann::json read_trace(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

bool mentions(const nlohmann::json& trace, const std::string& name) {
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == name) {
      return true;
    }
  }
  return false;
}

TEST(Profile, WritesAChromeTraceWithWhatRan) {
  const TestFolder folder;
  Accelerator accelerator({.project_dir = folder.path()}, WorldSpec{}, Group());
  auto profile = accelerator.profile({.record_shapes = true});
  EXPECT_THROW(accelerator.profile(), ConfigError) << "a second profiler";
  at::mm(at::ones({4, 4}), at::ones({4, 4}));
  const auto traces = profile->finish();
  ASSERT_THAT(traces, ElementsAre(folder.path() / "profile" / "profile_0.json"));
  const nlohmann::json trace = read_trace(traces[0]);
  EXPECT_TRUE(mentions(trace, "aten::mm"));
  EXPECT_THAT(trace.dump(), HasSubstr("Input Dims"));
  EXPECT_EQ(profile->finish(), traces);
}

TEST(Profile, RecordsOnlyTheActiveStepsOfEachCycle) {
  const TestFolder folder;
  std::vector<std::filesystem::path> ready;
  Profile profile(
      {.output_trace_dir = folder.path(),
       .skip_first = 1,
       .wait = 1,
       .warmup = 1,
       .active = 1,
       .repeat = 2,
       .on_trace_ready = [&](const std::filesystem::path& trace) { ready.push_back(trace); }},
      3);
  for (int step = 0; step < 10; ++step) {
    // Steps 3 and 6 are active.
    step == 3 || step == 6 ? at::sin(at::ones({2})) : at::cos(at::ones({2}));
    profile.step();
  }
  EXPECT_EQ(profile.finish(), ready);
  ASSERT_THAT(
      ready, ElementsAre(folder.path() / "profile_3_0.json", folder.path() / "profile_3_1.json"));
  for (const auto& path : ready) {
    EXPECT_TRUE(mentions(read_trace(path), "aten::sin"));
    EXPECT_FALSE(mentions(read_trace(path), "aten::cos"));
  }
}

TEST(Profile, RefusesOptionsThatMakeNoSense) {
  const TestFolder folder;
  EXPECT_THROW(Profile({}, 0), ConfigError);
  EXPECT_THROW(Profile({.output_trace_dir = folder.path(), .wait = 1}, 0), ConfigError);
  EXPECT_THROW(Profile({.output_trace_dir = folder.path(), .active = -1}, 0), ConfigError);
  Profile profile({.output_trace_dir = folder.path()}, 0);
  EXPECT_THROW(profile.step(), ConfigError);
}

TEST(RngTypes, RefuseAGeneratorThatLoadersDoNotHave) {
  EXPECT_THROW(
      Accelerator({.rng_types = {data::RngType::kGenerator}}, WorldSpec{}, Group()), ConfigError);
}

TEST(ExecutableBatchSize, ARetryWithFp16BeginsWithACleanScaler) {
  Accelerator accelerator(
      {.mixed_precision = Precision::kFP16, .grad_scaler = {.init_scale = 4}},
      WorldSpec{},
      Group());
  std::optional<torch::optim::SGD> kept;  // Both attempts' optimizers lie at one address.
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        accelerator.free_memory();
        Linear net(1, 1);
        torch::nn::init::zeros_(net->weight);
        kept.emplace(net->parameters(), 1.0);
        auto [model, optimizer] = accelerator.prepare(net, *kept);
        accelerator.backward(model->forward(at::ones({1, 1})).sum());
        accelerator.clip_grad_norm_(model->parameters(), 100);
        if (batch_size > 3) {
          throw std::bad_alloc();
        }
        optimizer.step();
        return model->weight.item<float>();
      },
      4);
  EXPECT_EQ(train(), -1);
}

}  // namespace
}  // namespace lockstep
