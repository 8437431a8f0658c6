// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/storage/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using storage::names_in;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

/// Best accuracy so far, say.
struct Counter {
  int64_t count = 0;
  nlohmann::json state_dict() const { return {{"count", count}}; }
  void load_state_dict(const nlohmann::json& state) {
    if (state.at("count") == 13) {
      throw std::runtime_error("thirteen is not for me");
    }
    count = state.at("count").get<int64_t>();
  }
};

/// An average of weights, say.
struct Average {
  at::Tensor value = at::zeros({3});
  ObjectState state_dict() const { return {{{"kind", "average"}}, {{"value", value}}}; }
  void load_state_dict(const ObjectState& state) { value = state.tensors.at(0).tensor.clone(); }
};

TEST(RegisterForCheckpointing, ObjectsAreRestoredWithValuesAndTensors) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Counter counter{.count = 5};
    Average average{.value = at::ones({3})};
    accelerator.register_for_checkpointing(counter, average);
    accelerator.save_state(folder / "c");
    counter.count = 0;
    average.value.zero_();
    accelerator.load_state(folder / "c");
    EXPECT_EQ(counter.count, 5);
    EXPECT_TRUE(at::equal(average.value, at::ones({3})));
    EXPECT_THROW(accelerator.register_for_checkpointing(counter), ConfigError);
  });
  const checkpoint::Reader reader(folder / "c");
  EXPECT_TRUE(reader.has("custom_checkpoint_1.safetensors"));
  EXPECT_FALSE(reader.has("custom_checkpoint_0_of_rank_1.json"));
}

TEST(RegisterForCheckpointing, StateOfEachProcessIsKeptAndNeedsTheSameNumber) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Counter counter{.count = accelerator.process_index() + 1};
    accelerator.register_for_checkpointing(counter);
    accelerator.save_state(folder / "c");
    counter.count = 0;
    accelerator.load_state(folder / "c");
    EXPECT_EQ(counter.count, accelerator.process_index() + 1);
  });
  Accelerator alone({}, WorldSpec{}, Group());
  Counter counter;
  alone.register_for_checkpointing(counter);
  EXPECT_THAT(
      [&] { alone.load_state(folder / "c"); },
      ThrowsMessage<CheckpointError>(
          HasSubstr("custom object 0 has a different state for each of 2 processes")));
}

TEST(RegisterForCheckpointing, AnotherNumberOfObjectsAndOneThatRefusesAreErrorsOnAll) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Counter counter{.count = 13};
    accelerator.register_for_checkpointing(counter);
    accelerator.save_state(folder / "c");
    EXPECT_THAT(
        [&] { accelerator.load_state(folder / "c"); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("rank 0 failed after a part of it was loaded: thirteen is not for me")));
    Counter second;
    accelerator.register_for_checkpointing(second);
    EXPECT_THAT(
        [&] { accelerator.load_state(folder / "c"); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("holds 1 custom objects, this program registered 2 for checkpointing")));
  });
}

TEST(StateHooks, AddFilesTakeModelsOverAndCanBeRemoved) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    const auto remove = accelerator.register_save_state_pre_hook([&](StateBeingSaved& state) {
      EXPECT_EQ(state.models, 1);
      state.excluded_models.insert(0);
      if (accelerator.is_main_process()) {
        state.contents.add_tensors("adapter.safetensors", {{"bias", net->bias.detach()}});
      }
    });
    bool loaded = false;
    accelerator.register_load_state_pre_hook([&](StateBeingLoaded& state) {
      if (state.checkpoint.has("adapter.safetensors")) {
        const torch::NoGradGuard no_grad;
        net->bias.copy_(state.checkpoint.tensors("adapter.safetensors").at(0).tensor);
        state.excluded_models.insert(0);
        loaded = true;
      }
    });
    const at::Tensor bias = net->bias.detach().clone();
    accelerator.save_state(folder / "c");
    net->bias.detach().zero_();
    accelerator.load_state(folder / "c");
    EXPECT_TRUE(loaded);
    EXPECT_TRUE(at::equal(net->bias.detach(), bias));
    remove();
    remove();
    accelerator.save_state(folder / "plain");
  });
  EXPECT_FALSE(checkpoint::Reader(folder / "c").has("model.safetensors"));
  EXPECT_TRUE(checkpoint::Reader(folder / "plain").has("model.safetensors"));
}

TEST(StateHooks, OneThatThrowsOnOneProcessFailsTheSaveOnAllAndLeavesNothing) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    accelerator.register_save_state_pre_hook([&](StateBeingSaved&) {
      if (accelerator.process_index() == 1) {
        throw std::runtime_error("no adapter");
      }
    });
    EXPECT_THAT(
        [&] { accelerator.save_state(folder / "c"); },
        ThrowsMessage<CheckpointError>(HasSubstr("rank 1 failed: no adapter")));
  });
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AsyncSave, ThatFailedIsReportedByTheNextSaveWhichCompletes) {
  const TestFolder folder;
  accelerated_ranks(2, {.project_dir = folder.path()}, [&](Accelerator& accelerator) {
    bool fails = true;
    accelerator.register_save_state_pre_hook([&](StateBeingSaved& state) {
      if (std::exchange(fails, false) && accelerator.process_index() == 1) {
        state.contents.fail("the disk is full");
      }
    });
    for (const bool async : {false, true}) {
      fails = true;
      accelerator.save_state({.async = true});
      EXPECT_THAT(
          [&] { accelerator.save_state({.async = async}); },
          ThrowsMessage<CheckpointError>(
              AllOf(HasSubstr("is saved"), HasSubstr("rank 1 failed: the disk is full"))));
    }
    fails = true;
    accelerator.save_state(folder / "named", {.async = true});
    EXPECT_THAT(
        [&] { accelerator.save_state(folder / "next"); },
        ThrowsMessage<CheckpointError>(HasSubstr("[" + (folder / "next").string() + "] is saved")));
    accelerator.wait_for_save();
  });
  EXPECT_EQ(
      storage::find_newest(folder / "checkpoints", storage::Verify::kFull).path,
      folder / "checkpoints" / "checkpoint_1");
  storage::StoredCheckpoint(folder / "next", storage::Verify::kFull);
  EXPECT_FALSE(fs::exists(folder / "named"));
}

TEST(ProjectConfiguration, KeepsTotalLimitCheckpointsAlsoAfterAResume) {
  const TestFolder folder;
  const AcceleratorOptions options{
      .project_config = {.project_dir = folder.path(), .total_limit = 2}};
  const auto kept = [&] {
    std::vector<std::string> names = names_in(folder / "checkpoints");
    std::erase(names, "latest");
    std::erase(names, ".lockstep_lock");
    return names;
  };
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    for (int i = 0; i < 4; ++i) {
      accelerator.save_state();
    }
  });
  EXPECT_THAT(kept(), ElementsAre("checkpoint_2", "checkpoint_3"));
  // In Accelerate the count begins anew here, and the limit then deletes what was just written.
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    accelerator.load_state();
    accelerator.save_state();
    EXPECT_EQ(accelerator.load_state().filename(), "checkpoint_4");
  });
  EXPECT_THAT(kept(), ElementsAre("checkpoint_3", "checkpoint_4"));
}

TEST(ProjectConfiguration, IterationIsTheLeastNumberAndNamingCanBeOff) {
  const TestFolder folder;
  {
    Accelerator accelerator(
        {.project_config = {.project_dir = folder.path(), .iteration = 7}}, WorldSpec{}, Group());
    EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_7");
    EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_8");
  }
  Accelerator named(
      {.project_dir = folder.path(), .project_config = {.automatic_checkpoint_naming = false}},
      WorldSpec{},
      Group());
  EXPECT_THAT(
      [&] { named.save_state(); },
      ThrowsMessage<ConfigError>(HasSubstr("automatic_checkpoint_naming is off")));
}

TEST(ProjectConfiguration, ImpossibleValuesAndFoldersAreRefusedAtConstruction) {
  const TestFolder folder;
  const auto construct = [&](const AcceleratorOptions& options) {
    const Accelerator accelerator(options, WorldSpec{}, Group());
  };
  EXPECT_THROW(
      construct({.project_config = {.project_dir = folder.path(), .total_limit = 0}}), ConfigError);
  EXPECT_THROW(construct({.project_config = {.checkpointing_steps = 5}}), ConfigError);
  EXPECT_THROW(
      construct({.project_dir = "a", .project_config = {.project_dir = "b"}}), ConfigError);
  storage::write_bytes(folder / "file", "x");
  std::atomic<int> refused = 0;
  ranks(2, [&](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    try {
      const Accelerator accelerator({.project_dir = folder / "file" / "runs"}, world, group);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is not a folder; a checkpoint is saved in a folder"));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST(SaveOnEachNode, EveryHostKeepsACompleteCheckpointOnItsOwnDisk) {
  const TestFolder folder;
  // Four ranks of two hosts, whose disks are two folders.
  const auto on_two_hosts = [&](const std::function<void(Accelerator&)>& body) {
    ranks(4, [&](Group group) {
      WorldSpec world;
      world.rank = group.rank();
      world.size = 4;
      world.local_rank = group.rank() % 2;
      world.local_size = 2;
      const std::string host = "host" + std::to_string(group.rank() / 2);
      Accelerator accelerator(
          {.project_config = {.project_dir = folder / host, .save_on_each_node = true}},
          world,
          group);
      body(accelerator);
    });
  };
  on_two_hosts([&](Accelerator& accelerator) {
    Linear net(2, 2);
    Counter counter{.count = accelerator.process_index()};
    accelerator.prepare(net);
    accelerator.register_for_checkpointing(counter);
    accelerator.save_state();
    accelerator.save_state();
    const at::Tensor saved = net->weight.detach().clone();
    net->weight.detach().zero_();
    counter.count = -1;
    accelerator.load_state();
    EXPECT_TRUE(at::equal(net->weight.detach(), saved));
    EXPECT_EQ(counter.count, accelerator.process_index());
  });
  for (const char* host : {"host0", "host1"}) {
    const checkpoint::Reader reader(folder / host / "checkpoints" / "checkpoint_1");
    EXPECT_EQ(reader.world_size(), 2);
    EXPECT_TRUE(reader.has("model.safetensors"));
  }
  const auto meta_of = [&](const char* host) {
    return checkpoint::Reader(folder / host / "checkpoints" / "checkpoint_1").meta();
  };
  EXPECT_EQ(meta_of("host0").at("save_id"), meta_of("host1").at("save_id"));
  // One host got no further than the first.
  fs::remove_all(folder / "host1" / "checkpoints" / "checkpoint_1");
  on_two_hosts([&](Accelerator& accelerator) {
    Linear net(2, 2);
    Counter counter;
    accelerator.prepare(net);
    accelerator.register_for_checkpointing(counter);
    EXPECT_EQ(accelerator.resume_latest()->filename(), "checkpoint_0");
  });
  // And here it holds that of another run.
  storage::edit_manifest(
      folder / "host1" / "checkpoints" / "checkpoint_0",
      [](nlohmann::json& manifest) { manifest["meta"]["save_id"] = "another"; });
  on_two_hosts([&](Accelerator& accelerator) {
    Linear net(2, 2);
    Counter counter;
    accelerator.prepare(net);
    accelerator.register_for_checkpointing(counter);
    EXPECT_THAT(
        [&] { accelerator.resume_latest(); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("ranks would load different checkpoints: rank 2")));
  });
}

TEST(RegisterForCheckpointing, DifferentRegistrationsAreRefusedWhenSaving) {
  const TestFolder folder;
  for (int more_on : {0, 1}) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Counter counter;
      if (accelerator.process_index() == more_on) {
        accelerator.register_for_checkpointing(counter);
      }
      EXPECT_THAT(
          [&] { accelerator.save_state(folder / "c"); },
          ThrowsMessage<CheckpointError>(HasSubstr("register the same objects on all ranks")));
    });
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(StateHooks, AModelTakenOverOnOneProcessOnlyIsRefused) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    const auto remove = accelerator.register_save_state_pre_hook([&](StateBeingSaved& state) {
      if (accelerator.is_main_process()) {
        state.excluded_models.insert(0);
      }
    });
    EXPECT_THAT(
        [&] { accelerator.save_state(folder / "c"); },
        ThrowsMessage<CheckpointError>(HasSubstr("disagree on the models that a hook saves")));
    remove();
    accelerator.register_save_state_pre_hook(
        [&](StateBeingSaved& state) { state.excluded_models.insert(0); });
    accelerator.save_state(folder / "d");
    EXPECT_THAT(
        [&] { accelerator.load_state(folder / "d"); },
        ThrowsMessage<CheckpointError>(HasSubstr("model 0 was saved by a save_state hook")));
  });
}

TEST(StateHooks, ATensorThatCannotBeCopiedFailsTheSaveOnAll) {
  const TestFolder folder;
  for (const bool async : {false, true}) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      accelerator.register_save_state_pre_hook([&](StateBeingSaved& state) {
        if (accelerator.process_index() == 1) {
          state.contents.add_tensors("extra.safetensors", {{"undefined", at::Tensor()}});
        }
      });
      EXPECT_THAT(
          [&] {
            accelerator.save_state(folder / "c", {.async = async});
            accelerator.wait_for_save();
          },
          ThrowsMessage<CheckpointError>(HasSubstr("rank 1 failed")));
    });
  }
}

TEST(SavedBuffers, ThatDoNotFollowRank0AreEachProcesssOwn) {
  const TestFolder folder;
  AcceleratorOptions options;
  options.data_parallel.broadcast_buffers = false;
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    torch::nn::BatchNorm1d net(3);
    accelerator.prepare(net);
    net->running_mean.fill_(accelerator.process_index() + 1);
    accelerator.save_state(folder / "c");
    net->running_mean.zero_();
    accelerator.load_state(folder / "c");
    EXPECT_EQ(net->running_mean.mean().item<float>(), accelerator.process_index() + 1);
  });
  accelerated_ranks(3, options, [&](Accelerator& accelerator) {
    torch::nn::BatchNorm1d net(3);
    accelerator.prepare(net);
    accelerator.load_state(folder / "c");
    EXPECT_EQ(net->running_mean.mean().item<float>(), 1.5);
  });
}

// --- asynchronous

TEST(AsyncSave, SavesTheStateOfTheCallWhileTrainingContinues) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(300, 300);
    accelerator.prepare(net);
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      net->weight.fill_(i);
      accelerator.save_state(folder / std::to_string(i), {.async = true});
      net->weight.fill_(-1);
    }
    EXPECT_TRUE(accelerator.last_save().in_flight);
    accelerator.wait_for_save();
    EXPECT_FALSE(accelerator.last_save().in_flight);
    EXPECT_GT(accelerator.last_save().write_ms, 0);
    for (int i = 0; i < 3; ++i) {
      accelerator.load_state(folder / std::to_string(i));
      EXPECT_TRUE(at::equal(net->weight, at::full({300, 300}, static_cast<float>(i))));
    }
  });
}

TEST(AsyncSave, AFailedWriteIsAnErrorOfTheNextCallOnEveryRank) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(2, 2);
    accelerator.prepare(net);
    accelerator.save_state(folder / "c");
    accelerator.save_state(folder / "c", {.async = true});  // Exists: not overwritten.
    EXPECT_THAT(
        [&] { accelerator.save_state(folder / "d"); },
        ThrowsMessage<CheckpointError>(HasSubstr("exists")));
    EXPECT_TRUE(fs::exists(folder / "d" / "manifest.json"));
    accelerator.save_state(folder / "e", {.async = true});
    accelerator.end_training();
    EXPECT_TRUE(fs::exists(folder / "e" / "manifest.json"));
  });
}

TEST(AsyncSave, IsFinishedWithoutAWaitingCaller) {
  const TestFolder folder;
  accelerated_ranks(2, {.project_dir = folder.path()}, [&](Accelerator& accelerator) {
    Linear net(100, 100);
    accelerator.prepare(net);
    accelerator.save_state({.async = true});
  });
  EXPECT_THAT(names_in(folder / "checkpoints"), ElementsAre(".lockstep_lock", "checkpoint_0", "latest"));
}

}  // namespace
}  // namespace lockstep
