// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/save_model.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::checkpoint {
namespace {

namespace nn = torch::nn;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kAccelerateGolden =
    LOCKSTEP_SOURCE_DIR "/tests/golden/accelerate_model";

at::Tensor filled(const std::vector<int64_t>& shape, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return ((at::arange(count) * 37 + 11) % 256 - 128).to(dtype).view(shape);
}

/// A layer that works with weights of another.
struct Head : nn::Module {
  explicit Head(at::Tensor weight) { register_parameter("weight", std::move(weight)); }
};

/// Tied of make_accelerate_state.py.
struct Tied : nn::Module {
  Tied() {
    embed = register_module("embed", nn::Embedding(8, 4));
    embed->weight.set_data(filled({8, 4}));
    register_buffer("positions", at::arange(6));
    const auto block = register_module("block", nn::Linear(5, 4));
    block->weight.set_data(filled({5, 4}, at::kBFloat16).t());
    block->bias.set_data(filled({4}, at::kDouble));
    register_module("norm", nn::BatchNorm1d(4));
    head = register_module("head", std::make_shared<Head>(embed->weight));
  }
  nn::Embedding embed = nullptr;
  std::shared_ptr<Head> head;
};

TEST(SaveModel, WritesTheFilesOfAcceleratesSaveModel) {
  const TestFolder folder;
  EXPECT_THAT(save_model(Tied(), folder.path()), ElementsAre("model.safetensors"));
  storage::expect_same_files(folder.path(), kAccelerateGolden / "whole");
}

TEST(SaveModel, WritesTheShardsThatAcceleratesSaveModelWrites) {
  const TestFolder folder;
  EXPECT_EQ(save_model(Tied(), folder.path(), {.max_shard_size = "0.1KB"}).size(), 5U);
  storage::expect_same_files(folder.path(), kAccelerateGolden / "shards");
}

TEST(SaveModel, IsReadBackByEveryName) {
  const TestFolder folder;
  const Tied saved;
  save_model(saved, folder.path(), {.max_shard_size = "0.1KB"});
  Tied loaded;
  for (const NamedTensor& item : tensors_of(loaded)) {
    item.tensor.detach().zero_();
  }
  load_checkpoint_in_model(loaded, folder.path());
  const NamedTensors expected = tensors_of(saved);
  const NamedTensors got = tensors_of(loaded);
  ASSERT_EQ(got.size(), 10U);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i].tensor, expected[i].tensor)) << got[i].name;
  }
}

TEST(SaveModel, SavesEachViewOfOneBufferForItself) {
  const TestFolder folder;
  const at::Tensor flat = at::arange(10, at::kFloat);
  save_model(
      {{"left", flat.slice(0, 0, 6)},
       {"right", flat.slice(0, 4)},
       {"all", flat},
       {"square", flat.slice(0, 0, 4).view({2, 2})},
       {"again", flat.slice(0, 4)}},
      folder.path());
  const storage::SafetensorsMap file(folder.path() / "model.safetensors");
  EXPECT_THAT(file.names(), testing::UnorderedElementsAre("left", "right", "all", "square"));
  EXPECT_TRUE(at::equal(tensor_of(file, "left"), at::arange(6, at::kFloat)));
  EXPECT_TRUE(at::equal(tensor_of(file, "right"), at::arange(4, 10, at::kFloat)));
}

TEST(SaveModel, KeepsTensorsWithoutElementsApart) {
  const TestFolder folder;
  const at::Tensor none = at::empty({0, 3});
  save_model({{"a", none}, {"b", none}, {"c", at::empty({2, 0}, at::kLong)}}, folder.path());
  EXPECT_EQ(storage::SafetensorsMap(folder.path() / "model.safetensors").names().size(), 3U);
}

TEST(SaveModel, OmitsFrozenParametersOnRequest) {
  const TestFolder folder;
  const Tied saved;
  saved.embed->weight.set_requires_grad(false);  // And so the head's, which is it.
  save_model(saved, folder.path(), {.exclude_frozen_parameters = true});
  const storage::SafetensorsMap file(folder.path() / "model.safetensors");
  EXPECT_THAT(
      file.names(),
      testing::UnorderedElementsAre(
          "block.bias",
          "block.weight",
          "norm.bias",
          "norm.num_batches_tracked",
          "norm.running_mean",
          "norm.running_var",
          "norm.weight",
          "positions"));
  EXPECT_THAT(
      [&] { save_model(tensors_of(saved), folder / "names", {.exclude_frozen_parameters = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("pass the module")));
}

TEST(SaveModel, RefusesDtypesThatTheFormatLacks) {
  const TestFolder folder;
  const auto refuses = [&](const at::Tensor& tensor, const std::string& why) {
    EXPECT_THAT(
        [&] {
          save_model({{"fine", at::ones({2})}, {"bad", tensor}}, folder.path());
        },
        ThrowsMessage<CheckpointError>(testing::AllOf(HasSubstr("bad"), HasSubstr(why))));
    EXPECT_THAT(storage::names_in(folder.path()), testing::IsEmpty());
  };
  refuses(at::Tensor(), "the tensor is undefined");
  refuses(at::empty({2}, at::kMeta), "has no data");
  refuses(at::ones({2, 2}).to_sparse(), "is sparse");
  refuses(at::ones({2}, at::kComplexDouble), "the format does not support the dtype ComplexDouble");
  EXPECT_THROW(
      save_model({{"a", at::ones({2})}}, folder.path(), {.max_shard_size = "5 apples"}),
      ConfigError);
}

TEST(SaveModel, RoundsFloatingPointTensorsToTheDtypeAsked) {
  const TestFolder folder;
  const at::Tensor third = at::full({3}, 1.0 / 3);
  const at::Tensor count = at::full({1}, 70'000, at::kLong);
  save_model(
      {{"third", third}, {"count", count}},
      folder.path(),
      {.dtype = at::kHalf, .file_name = "half.safetensors"});
  EXPECT_THAT(storage::names_in(folder.path()), ElementsAre("half.safetensors"));
  const storage::SafetensorsMap file(folder.path() / "half.safetensors");
  EXPECT_EQ(tensor_of(file, "third").scalar_type(), at::kHalf);
  EXPECT_TRUE(at::equal(tensor_of(file, "third"), third.to(at::kHalf)));
  EXPECT_TRUE(at::equal(tensor_of(file, "count"), count)) << "no floating point";
}

TEST(SaveModel, AFileOfAnyNameReplacesItselfAndNoOtherWeights) {
  const TestFolder folder;
  save_model({{"a", at::ones({2})}}, folder.path());
  save_model({{"a", at::ones({2})}}, folder.path(), {.file_name = "b.safetensors"});
  save_model({{"a", at::zeros({2})}}, folder.path(), {.file_name = "b.safetensors"});
  EXPECT_THAT(
      storage::names_in(folder.path()),
      testing::UnorderedElementsAre("b.safetensors", "model.safetensors"));
  const storage::SafetensorsMap file(folder.path() / "b.safetensors");
  EXPECT_TRUE(at::equal(tensor_of(file, "a"), at::zeros({2})));
  // One file, however large, takes the place of shards.
  save_model(Tied(), folder.path(), {.max_shard_size = "0.1KB"});
  EXPECT_THAT(
      save_model(Tied(), folder.path(), {.file_name = "model.safetensors"}),
      ElementsAre("model.safetensors"));
  EXPECT_EQ(storage::names_in(folder.path()).size(), 2U);
}

TEST(SaveModel, RefusesInvalidNames) {
  const TestFolder folder;
  const NamedTensors tensors = {{"a", at::ones({2})}};
  for (const char* name : {"a/b.safetensors", "pytorch_model.bin", ".safetensors"}) {
    EXPECT_THROW(save_model(tensors, folder.path(), {.file_name = name}), ConfigError) << name;
  }
  EXPECT_THROW(
      save_model(tensors, folder.path(), {.max_shard_size = "1GB", .file_name = "a.safetensors"}),
      ConfigError);
  EXPECT_THROW(save_model(tensors, folder.path(), {.dtype = at::kLong}), ConfigError);
}

}  // namespace
}  // namespace lockstep::checkpoint
