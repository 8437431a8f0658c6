// SPDX-License-Identifier: Apache-2.0
// What load_state and resume_latest refuse, and go on from.
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/checkpointing/parts/random_states.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/schedule/reduce_on_plateau.h"
#include "lockstep/schedule/warmup_schedules.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::edit_manifest;
using storage::flip_bit;
using storage::names_in;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

struct LinearTraining {
  Linear net{2, 2};
  Optimizer optimizer;

  explicit LinearTraining(Accelerator& accelerator)
      : optimizer(
            std::get<1>(accelerator.prepare(net, optim::Adam(net->parameters(), {.lr = 0.01})))) {}
  void update(Accelerator& accelerator) {
    accelerator.backward(net->forward(at::ones({1, 2})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
};

// --- the same on all ranks

class SameSave : public ::testing::Test {
 protected:
  SameSave() {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      run.update(accelerator);
      accelerator.save_state(folder_ / "one");
      accelerator.save_state(folder_ / "one_again");
      run.update(accelerator);
      accelerator.save_state(folder_ / "two");
    });
  }

  void expect_refused(
      const std::string& first,
      const std::string& second,
      const testing::Matcher<std::string>& says) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      const at::Tensor before = run.net->weight.detach().clone();
      EXPECT_THAT(
          load_error(accelerator, folder_ / (accelerator.is_main_process() ? first : second)),
          says);
      EXPECT_TRUE(at::equal(run.net->weight.detach(), before));
      EXPECT_EQ(run.optimizer.steps(), 0);
    });
  }
  void expect_loaded(const std::string& first, const std::string& second) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      EXPECT_EQ(
          load_error(accelerator, folder_ / (accelerator.is_main_process() ? first : second)),
          "no error");
    });
  }
  void forget_id(const std::string& name) {
    edit_manifest(folder_ / name, [](json& manifest) { manifest["meta"].erase("save_id"); });
  }

  TestFolder folder_;
};

TEST_F(SameSave, RanksThatLoadDifferentCheckpointsAllGetAnErrorAndNothingChanges) {
  expect_refused(
      "one",
      "two",
      AllOf(
          HasSubstr("ranks would load different checkpoints"),
          HasSubstr("rank 1 has \"" + (folder_ / "two").string() + "\" (2 updates)"),
          HasSubstr("rank 0 has \"" + (folder_ / "one").string() + "\" (1 updates);")));
  expect_refused("one", "one_again", HasSubstr("rank 1 has"));
}

TEST_F(SameSave, CopiesOfOneOnSeveralDisksAreTheSame) {
  fs::copy(folder_ / "one", folder_ / "copy", fs::copy_options::recursive);
  expect_loaded("one", "copy");
}

TEST_F(SameSave, WithoutAnIdComparesTheUpdates) {
  for (const char* name : {"one", "one_again", "two"}) {
    forget_id(name);
  }
  expect_loaded("one", "one_again");
  expect_refused("one", "two", HasSubstr("(2 updates)"));
}

TEST_F(SameSave, IsNotMadeByRanksThatHaveDoneUnequallyManyUpdates) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    LinearTraining run(accelerator);
    run.update(accelerator);
    if (!accelerator.is_main_process()) {
      run.optimizer.step();
    }
    for (const bool async : {false, true}) {
      EXPECT_THAT(
          [&] { accelerator.save_state(folder_ / "new", {.async = async}); },
          ThrowsMessage<CheckpointError>(
              HasSubstr("is not saved; rank 1 has done 2 updates, rank 0 1; save after")));
    }
  });
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("one", "one_again", "two"));
}

// --- beginning anew

class ResumeLatest : public ::testing::Test {
 protected:
  ResumeLatest() {
    accelerated_ranks(2, options_, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      accelerator.save_state();
      accelerator.save_state();
    });
  }
  void expect_refused(const testing::Matcher<std::string>& says) {
    accelerated_ranks(2, options_, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      EXPECT_THAT([&] { accelerator.resume_latest(); }, ThrowsMessage<CheckpointError>(says));
      EXPECT_THAT([&] { accelerator.load_state(); }, ThrowsMessage<CheckpointError>(says));
    });
  }
  void expect_resumes_from(const std::string& name) {
    accelerated_ranks(2, options_, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      const auto from = accelerator.resume_latest();
      EXPECT_EQ(from ? from->filename().string() : "nothing", name);
    });
  }

  TestFolder folder_;
  AcceleratorOptions options_{.project_dir = folder_.path()};
  fs::path checkpoints_ = folder_ / "checkpoints";
  fs::path first_ = checkpoints_ / "checkpoint_0";
  fs::path second_ = checkpoints_ / "checkpoint_1";
};

TEST_F(ResumeLatest, RefusesToStartFromScratchIfNoCheckpointIsUsableAndSaysWhy) {
  fs::remove(first_ / "manifest.json");
  const fs::path model = second_ / "model.safetensors";
  flip_bit(model, fs::file_size(model) - 1);
  expect_refused(AllOf(
      HasSubstr("holds 2 checkpoints, of which none can be used"),
      HasSubstr("checkpoint_0] is not a checkpoint; it has no manifest.json"),
      HasSubstr("checkpoint_1/model.safetensors: \"weight\"] is damaged"),
      HasSubstr("to start again, remove them, or set another project_dir")));
  fs::remove_all(first_);
  fs::resize_file(model, 10);
  expect_refused(
      AllOf(HasSubstr("holds a checkpoint, of which none can be used"), HasSubstr("got 10 bytes")));
}

TEST_F(ResumeLatest, StartsFromScratchIfOnlyAnUnfinishedSaveExists) {
  fs::remove_all(first_);
  fs::rename(second_, storage::temporary_name(second_));
  fs::create_directory(checkpoints_ / "plots");
  expect_resumes_from("nothing");
}

TEST_F(ResumeLatest, RefusesToSkipCheckpointsOfANewerLockstep) {
  expect_resumes_from("checkpoint_1");
  edit_manifest(second_, [](json& manifest) { manifest["version"] = 9; });
  expect_refused(AllOf(HasSubstr("checkpoint_1"), HasSubstr("got \"9\", expected 1")));
}

TEST_F(ResumeLatest, SkippedCheckpointsDoNotCountForRetention) {
  const fs::path model = second_ / "model.safetensors";
  flip_bit(model, fs::file_size(model) - 1);
  const auto save_two = [&](int limit) {
    options_.project_config.total_limit = limit;
    accelerated_ranks(2, options_, [&](Accelerator& accelerator) {
      LinearTraining run(accelerator);
      EXPECT_EQ(accelerator.resume_latest()->filename(), "checkpoint_0");
      accelerator.save_state();
      accelerator.save_state({.async = true});
    });
  };
  save_two(3);
  EXPECT_THAT(
      names_in(checkpoints_),
      ElementsAre(
          ".lockstep_lock",
          "checkpoint_0",
          "checkpoint_1",
          "checkpoint_2",
          "checkpoint_3",
          "latest"));
}

TEST(LoadState, ALoaderWithoutASavedPositionBeginsItsFirstEpochIfThatIsAllowed) {
  const TestFolder folder;
  {
    Accelerator without({}, WorldSpec{}, Group());
    Linear net(3, 1);
    without.prepare(net);
    without.save_state(folder / "c");
  }
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(3, 1);
  auto [model, loader] = accelerator.prepare(
      net,
      data::Loader(
          data::TensorDataset(at::rand({16, 3}), at::arange(16)),
          {.batch_size = 2, .shuffle = true}));
  const auto order = [&loader = loader] {
    std::vector<at::Tensor> targets;
    for (auto& batch : loader) {
      targets.push_back(batch.target);
    }
    return at::cat(targets);
  };
  const at::Tensor first = order();
  EXPECT_FALSE(at::equal(order(), first));
  EXPECT_THAT(
      [&] { accelerator.load_state(folder / "c"); },
      ThrowsMessage<CheckpointError>(HasSubstr("loaders")));
  accelerator.load_state(folder / "c", {.may_lack_positions = true});
  EXPECT_TRUE(at::equal(order(), first));
}

// --- what a manifest may say

using Edit = std::function<void(json& meta)>;

TEST(SavedMetaValues, ThatNoSaveWritesAreRefusedWithFileAndKey) {
  const TestFolder folder;
  const auto prepare_and = [](const std::function<void(Accelerator&)>& body) {
    Accelerator accelerator({}, WorldSpec{}, Group());
    Linear net(2, 2);
    accelerator.prepare(
        net,
        optim::Adam(net->parameters(), {.lr = 0.01}),
        schedule::warmup_cosine({.warmup_steps = 2, .total_steps = 20}),
        data::Loader(data::TensorDataset(at::zeros({6, 2}), at::arange(6)), {.batch_size = 2}));
    body(accelerator);
  };
  prepare_and([&](Accelerator& accelerator) { accelerator.save_state(folder / "good"); });
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](json& meta) { meta.clear(); }, "meta.processes is missing"},
      {[](json& meta) { meta["processes"] = 0; },
       "got \"0\" for meta.processes, expected a whole number from 1"},
      {[](json& meta) { meta["processes"] = "many"; }, "for meta.processes"},
      {[](json& meta) { meta["processes"] = 1e18; }, "for meta.processes"},
      {[](json& meta) { meta.erase("models"); }, "meta.models is missing"},
      {[](json& meta) { meta["models"] = -1; }, "got \"-1\" for meta.models"},
      {[](json& meta) { meta["models"] = int64_t{1} << 60; }, "for meta.models, expected a whole"},
      {[](json& meta) { meta["step"] = "x"; }, "for meta.step, expected a whole number from 0 on"},
      {[](json& meta) { meta["step"] = -5; }, "got \"-5\" for meta.step"},
      {[](json& meta) { meta["models_taken_over"] = {7}; }, "for meta.models_taken_over[0]"},
      {[](json& meta) { meta["loaders"] = nullptr; }, "for meta.loaders"},
      {[](json& meta) { meta["optimizer_steps"] = {-5}; },
       "got \"-5\" for meta.optimizer_steps[0], expected a whole number from 0 on"},
      {[](json& meta) { meta["optimizer_steps"] = {1.5}; }, "for meta.optimizer_steps[0]"},
      {[](json& meta) { meta["optimizer_steps"] = 3; },
       "for meta.optimizer_steps, expected a list"},
      {[](json& meta) { meta["custom_objects"] = {"none"}; }, "for meta.custom_objects"},
      {[](json& meta) { meta["local_sgd_steps"] = {"x"}; }, "for meta.local_sgd_steps[0]"},
      {[](json& meta) { meta["save_id"] = 5; }, "for meta.save_id, expected a text"},
      {[](json& meta) { meta["schedulers"] = {3}; }, "for meta.schedulers[0], expected an object"},
      {[](json& meta) { meta["schedulers"][0]["steps"] = -1; }, "for meta.schedulers[0].steps"},
      {[](json& meta) { meta["schedulers"][0].erase("counted"); },
       "meta.schedulers[0].counted is missing"},
      {[](json& meta) { meta["schedulers"][0]["base_rates"] = {{"x"}}; },
       "for meta.schedulers[0].base_rates[0].rates, expected a list of numbers"}};
  for (const auto& [edit, expected] : cases) {
    fs::remove_all(folder / "bad");
    fs::copy(folder / "good", folder / "bad", fs::copy_options::recursive);
    edit_manifest(
        folder / "bad", [&, &change = edit](json& manifest) { change(manifest["meta"]); });
    prepare_and([&, &says = expected](Accelerator& accelerator) {
      EXPECT_THAT(
          load_error(accelerator, folder / "bad"),
          AllOf(HasSubstr((folder / "bad" / "manifest.json").string()), HasSubstr(says)));
    });
  }
  prepare_and([&](Accelerator& accelerator) {
    EXPECT_EQ(load_error(accelerator, folder / "good"), "no error");
  });
}

TEST(SavedMetaValues, OfAPlateauAndALossScaleAreCheckedBeforeAnythingChanges) {
  const TestFolder folder;
  const auto prepare_and = [](const std::function<void(Accelerator&, Linear&)>& body) {
    Accelerator accelerator({.mixed_precision = Precision::kFP16}, WorldSpec{}, Group());
    Linear net(2, 2);
    accelerator.prepare(
        net, optim::Adam(net->parameters(), {.lr = 0.01}), schedule::reduce_on_plateau({}));
    body(accelerator, net);
  };
  prepare_and([&](Accelerator& accelerator, Linear&) { accelerator.save_state(folder / "c"); });
  const auto expect_refused = [&](const Edit& edit, const std::string& says) {
    edit_manifest(folder / "c", [&](json& manifest) { edit(manifest["meta"]); });
    prepare_and([&](Accelerator& accelerator, Linear& net) {
      const at::Tensor before = net->weight.detach().clone();
      EXPECT_THAT(
          load_error(accelerator, folder / "c"),
          AllOf(HasSubstr("c/manifest.json"), HasSubstr(says), HasSubstr("cannot load it")));
      EXPECT_TRUE(at::equal(net->weight.detach(), before));
    });
  };
  expect_refused(
      [](json& meta) { meta["schedulers"][0]["plateau"]["bad_steps"] = -3; },
      "meta.schedulers[0].plateau");
  expect_refused([](json& meta) { meta["scaler"]["growth_tracker"] = -3; }, "meta.scaler");
}

// --- numbers JSON has not

TEST(NonFiniteJson, ComesBackAsTheSameNumbersAndTextAsText) {
  constexpr double kPlusInfinity = std::numeric_limits<double>::infinity();
  const json value{
      {"best", kPlusInfinity},
      {"worst", {1.5, -kPlusInfinity, {{"deep", kPlusInfinity}}}},
      {"text", {"inf", "-inf", "nan", nullptr}},
      {"ours", {{"lockstep.non_finite", "inf"}}},
      {"nested", {{"lockstep.non_finite", {{"lockstep.non_finite", kPlusInfinity}}}}},
      {"list", {{"lockstep.non_finite", {1, 2}}}}};
  const json plain = internal::without_non_finite(value);
  EXPECT_EQ(plain["best"], json({{"lockstep.non_finite", "inf"}}));
  const json stored = storage::parse_json("x", storage::render_json("x", plain));
  EXPECT_EQ(internal::with_non_finite(stored), value);
  const json nan = internal::with_non_finite(
      internal::without_non_finite(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(std::isnan(nan.get<double>()));
  EXPECT_EQ(internal::with_non_finite(json{{"best", 0.5}}), json({{"best", 0.5}}));
}

struct Best {
  double loss = std::numeric_limits<double>::infinity();
  json state_dict() const { return {{"loss", loss}}; }
  void load_state_dict(const json& state) { loss = state.at("loss").get<double>(); }
};

TEST(RegisterForCheckpointing, NonFiniteNumbersAreRestored) {
  for (const double loss : {Best().loss, -Best().loss, std::nan("")}) {
    const TestFolder folder;
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Best best{.loss = loss};
      accelerator.register_for_checkpointing(best);
      accelerator.save_state(folder / "c");
      best.loss = 3;
      accelerator.load_state(folder / "c");
      EXPECT_TRUE(best.loss == loss || (std::isnan(best.loss) && std::isnan(loss))) << best.loss;
    });
    EXPECT_TRUE(fs::exists(folder / "c" / "custom_checkpoint_0.json"));
  }
}

TEST(RegisterForCheckpointing, InfinitiesThatDifferBetweenProcessesAreKeptForEach) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Best best;
    best.loss *= accelerator.is_main_process() ? 1 : -1;
    const double own = best.loss;
    accelerator.register_for_checkpointing(best);
    accelerator.save_state(folder / "c");
    best.loss = 3;
    accelerator.load_state(folder / "c");
    EXPECT_EQ(best.loss, own);
  });
}

// --- random numbers

TEST(RandomState, OfAMissingDeviceIsSkipped) {
  NamedTensors saved = internal::random_states(at::kCPU);
  ASSERT_EQ(saved.size(), 1U);
  saved.insert(saved.begin(), {"cuda", at::zeros({16}, at::kByte)});
  const at::Tensor expected = at::rand({4});
  internal::check_random_state(saved, 0, "file", at::kCPU)();
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
  EXPECT_THROW(
      internal::check_random_state({{"cuda", saved[0].tensor}}, 0, "file"), CheckpointError);
}

// --- from Accelerate

/// The model of make_accelerate_state.py.
class NormedNetImpl : public torch::nn::Module {
 public:
  NormedNetImpl()
      : fc_(register_module("fc", Linear(3, 4))),
        norm_(register_module("norm", torch::nn::BatchNorm1d(4))),
        out_(register_module("out", Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return out_->forward(norm_->forward(fc_->forward(x))); }

 private:
  Linear fc_;
  torch::nn::BatchNorm1d norm_;
  Linear out_;
};
TORCH_MODULE(NormedNet);

/// A folder that Accelerate saved after two updates, with its pickles converted.
fs::path accelerate_folder(const fs::path& folder) {
  const fs::path golden = LOCKSTEP_SOURCE_DIR "/tests/golden/accelerate_state/adam";
  fs::copy(golden, folder);
  fs::copy(golden / "converted", folder);
  fs::remove(folder / "after.safetensors");
  storage::write_bytes(folder / "random_states_0.pkl", "never read");
  return folder;
}

TEST(ImportedByAccelerator, TheFirstBatchAfterItDoesNotSave) {
  const TestFolder folder;
  const fs::path imported = accelerate_folder(folder / "theirs");
  Accelerator accelerator(
      {.project_config = {.project_dir = folder.path(), .checkpointing_steps = 2}},
      WorldSpec{},
      Group());
  NormedNet net;
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net,
      optim::Adam(net->parameters(), {.lr = 0.1}),
      schedule::step_decay({.step_size = 1, .gamma = 0.5}),
      data::Loader(data::TensorDataset(at::rand({8, 3}), at::arange(8)), {.batch_size = 2}));
  accelerator.load_state(imported);
  EXPECT_EQ(optimizer.steps(), 2);
  std::vector<int64_t> saved;
  for (auto& batch : loader) {
    saved.push_back(storage::next_sequence(folder / "checkpoints") - 1);
    accelerator.backward(model->forward(batch.data).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_THAT(saved, ElementsAre(0, 0, 1, 1)) << "after the fourth update of all";
}

TEST(ImportedByAccelerator, RanksOfOneHostImportOneFolder) {
  const TestFolder folder;
  accelerate_folder(folder / "a");
  accelerate_folder(folder / "b");
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    NormedNet net;
    accelerator.prepare(
        net,
        optim::Adam(net->parameters(), {.lr = 0.1}),
        schedule::step_decay({.step_size = 1, .gamma = 0.5}));
    EXPECT_EQ(load_error(accelerator, folder / "a"), "no error");
    EXPECT_THAT(
        load_error(accelerator, folder / (accelerator.is_main_process() ? "a" : "b")),
        HasSubstr("ranks would load different checkpoints"));
  });
}

}  // namespace
}  // namespace lockstep
