// SPDX-License-Identifier: Apache-2.0
// `lockstep merge-weights` of a checkpoint with 16-bit parameters writes the fp32 masters.
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

std::string config(const std::string& dtype, int stage) {
  const std::string scale = dtype == "fp16" ? R"(, "loss_scale": 128)" : "";
  return R"({"train_micro_batch_size_per_gpu": 4, ")" + dtype + R"(": {"enabled": true)" + scale +
         R"(}, "data_types": {"param_dtype": ")" + dtype +
         R"("}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

/// Trains on two ranks with frozen parameters, saves `folder`/tag, and returns the masters of the
/// first layer's weight.
at::Tensor masters_saved(const std::string& config, const std::filesystem::path& folder) {
  at::Tensor masters;
  on_engine_ranks(2, config, [&](InitializeOptions options) {
    EngineNet net;
    net->head->weight.set_requires_grad(false);
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    for (int step = 0; step < 3; ++step) {
      engine.backward(engine(engine_batch(step)).square().mean());
      engine.step();
    }
    engine.save_checkpoint(folder, "tag");
    const at::Tensor all = engine.safe_get_full_fp32_param(engine.module()->fc->weight);
    if (engine.accelerator().is_main_process()) {
      masters = all.detach().clone();
    }
  });
  return masters;
}

TEST(MergeWeightsOfTraining, In16BitsGivesTheMastersAndWidensFrozenParameters) {
  for (const auto& [word, dtype] :
       {std::pair("bf16", at::kBFloat16), std::pair("fp16", at::kHalf)}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(std::string(word) + ", stage " + std::to_string(stage));
      const TestFolder folder;
      const at::Tensor masters = masters_saved(config(word, stage), folder.path());
      ASSERT_FALSE(at::equal(masters, masters.to(dtype).to(at::kFloat))) << "else it shows nothing";
      const std::filesystem::path out = folder / "out";
      const Outcome merged =
          run_lockstep({"merge-weights", (folder / "tag").string(), out.string()});
      ASSERT_EQ(merged.code, 0) << merged.err;
      const storage::SafetensorsMap file(out / "model.safetensors");
      const at::Tensor trained = checkpoint::tensor_of(file, "fc.weight");
      ASSERT_EQ(trained.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(trained, masters));
      const at::Tensor frozen = checkpoint::tensor_of(file, "head.weight");
      ASSERT_EQ(frozen.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(frozen, EngineNet()->head->weight.detach().to(dtype).to(at::kFloat)));
    }
  }
}

}  // namespace
}  // namespace lockstep::e2e
