// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/collectives.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace lockstep::internal {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace lockstep::internal
