// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/load_model.h"

#include <filesystem>
#include <string>
#include <sys/mman.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;

/// A folder with some weights in it.
class Saved {
 public:
  explicit Saved(const NamedTensors& tensors, const std::string& max_shard_size = "1GB") {
    save_model(tensors, folder_.path(), {.max_shard_size = max_shard_size});
  }
  std::filesystem::path path() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

at::Tensor parameter(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, dtype).requires_grad_();
}

bool holds(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

TEST(LoadCheckpointInModel, WritesIntoTheMemoryThatIsThere) {
  const Saved saved({{"a", at::full({2, 3}, 1.)}, {"b", at::full({3}, 2.)}}, "12");
  const at::Tensor flat = at::zeros({9});
  const at::Tensor a = flat.slice(0, 0, 6).view({2, 3}).requires_grad_();
  const at::Tensor b = parameter({3});
  const void* memory = b.const_data_ptr();
  const LoadedNames names = load_checkpoint_in_model({{"b", b}, {"a", a}}, saved.path());
  EXPECT_THAT(names.missing, IsEmpty());
  EXPECT_THAT(names.unexpected, IsEmpty());
  EXPECT_TRUE(holds(flat.slice(0, 0, 6), 1));
  EXPECT_TRUE(holds(b, 2));
  EXPECT_EQ(b.const_data_ptr(), memory);
  EXPECT_TRUE(a.requires_grad() && a.is_leaf() && b.requires_grad() && b.is_leaf());
}

TEST(LoadCheckpointInModel, SaysAllThatIsWrongAtOnceAndChangesNothing) {
  const Saved saved(
      {{"fits", at::ones({2})},
       {"wide", at::ones({2, 4})},
       {"fraction", at::ones({3})},
       {"extra", at::ones({1})}});
  const NamedTensors model = {
      {"fits", parameter({2})},
      {"wide", parameter({4, 2})},
      {"fraction", at::zeros({3}, at::kLong)},
      {"lost", parameter({1})}};
  EXPECT_THAT(
      [&] { load_checkpoint_in_model(model, saved.path()); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("missing: lost; "),
          HasSubstr("unexpected: \"extra\"; "),
          HasSubstr("wide is Float[2, 4], the model has Float[4, 2]"),
          HasSubstr("fraction is Float[3], the model has Long[3]"))));
  EXPECT_THAT(
      [&] { load_checkpoint_in_model(model, saved.path(), {.strict = false}); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("different: "), Not(HasSubstr("lost")))));
  for (const NamedTensor& item : model) {
    EXPECT_TRUE(holds(item.tensor, 0)) << item.name;
  }
}

TEST(LoadCheckpointInModel, LoadsMatchingTensorsAndNamesTheRestUnlessStrict) {
  const Saved saved({{"b", at::ones({2})}, {"z", at::ones({2})}, {"y", at::ones({2})}});
  const at::Tensor b = parameter({2});
  const LoadedNames names = load_checkpoint_in_model(
      {{"c", parameter({1})}, {"b", b}, {"a", parameter({1})}}, saved.path(), {.strict = false});
  EXPECT_THAT(names.missing, ElementsAre("a", "c"));
  EXPECT_THAT(names.unexpected, ElementsAre("y", "z"));
  EXPECT_TRUE(holds(b, 1));
}

TEST(LoadCheckpointInModel, ShowsTheFirstOfManyNames) {
  const Saved saved({{"b", at::ones({2})}});
  NamedTensors model;
  for (int i = 0; i < 30; ++i) {
    model.push_back({"n" + std::to_string(i), parameter({1})});
  }
  EXPECT_THAT(
      [&] { load_checkpoint_in_model(model, saved.path()); },
      ThrowsMessage<CheckpointError>(HasSubstr(", and 10 more")));
}

TEST(LoadCheckpointInModel, RenamesByTheLongestPrefix) {
  const Saved saved(
      {{"module.a", at::full({1}, 1.)},
       {"module.old.b", at::full({1}, 2.)},
       {"c", at::full({1}, 3.)}});
  const NamedTensors model = {
      {"net.a", parameter({1})}, {"net.fresh.b", parameter({1})}, {"side.c", parameter({1})}};
  const LoadModelOptions options{
      .prefix_map = {{"module.", "net."}, {"module.old.", "net.fresh."}, {"", "side."}}};
  load_checkpoint_in_model(model, saved.path(), options);
  EXPECT_TRUE(holds(model[0].tensor, 1));
  EXPECT_TRUE(holds(model[1].tensor, 2));
  EXPECT_TRUE(holds(model[2].tensor, 3));
}

TEST(LoadCheckpointInModel, RefusesPrefixesThatMakeTwoNamesOne) {
  const Saved saved({{"x.a", at::ones({1})}, {"y.a", at::ones({1})}});
  EXPECT_THAT(
      [&] {
        load_checkpoint_in_model(
            {{"a", parameter({1})}}, saved.path(), {.prefix_map = {{"x.", ""}, {"y.", ""}}});
      },
      ThrowsMessage<CheckpointError>(HasSubstr("prefix_map renames two tensors to \"a\"")));
}

TEST(LoadCheckpointInModel, KeepsTheModelsDtypeByDefault) {
  const Saved saved(
      {{"w", at::full({2}, 1.5, at::kHalf)},
       {"n", at::full({2}, 7, at::kInt)},
       {"whole", at::full({2}, 3, at::kLong)}});
  NamedTensors model = {
      {"w", parameter({2})}, {"n", at::zeros({2}, at::kLong)}, {"whole", parameter({2})}};
  load_checkpoint_in_model(model, saved.path());
  EXPECT_EQ(model[0].tensor.scalar_type(), at::kFloat);
  EXPECT_TRUE(holds(model[0].tensor, 1.5));
  EXPECT_TRUE(holds(model[1].tensor, 7));
  EXPECT_TRUE(holds(model[2].tensor, 3));

  model[0].tensor.mutable_grad() = at::ones({2});
  load_checkpoint_in_model(model, saved.path(), {.dtype = at::kBFloat16});
  EXPECT_EQ(model[0].tensor.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(holds(model[0].tensor, 1.5));
  EXPECT_FALSE(model[0].tensor.grad().defined());
  EXPECT_TRUE(model[0].tensor.requires_grad() && model[0].tensor.is_leaf());
  EXPECT_EQ(model[1].tensor.scalar_type(), at::kLong);
  EXPECT_EQ(model[2].tensor.scalar_type(), at::kFloat) << "it was saved as integers";
  EXPECT_THROW(load_checkpoint_in_model(model, saved.path(), {.dtype = at::kLong}), ConfigError);
}

TEST(LoadCheckpointInModel, LoadsTiedWeightsByAnyOfTheirNames) {
  for (const std::string name : {"embed", "head"}) {
    const Saved saved({{name, at::full({2}, 3.)}, {"other", at::ones({1})}});
    const at::Tensor shared = parameter({2});
    const at::Tensor view = shared.detach();
    const NamedTensors model = {{"embed", shared}, {"head", view}, {"other", parameter({1})}};
    EXPECT_THAT(load_checkpoint_in_model(model, saved.path()).missing, IsEmpty());
    EXPECT_TRUE(holds(view, 3));
    load_checkpoint_in_model(model, saved.path(), {.dtype = at::kDouble});
    EXPECT_EQ(view.scalar_type(), at::kDouble);
    EXPECT_EQ(view.const_data_ptr(), shared.const_data_ptr()) << "they are tied no more";
  }
  const Saved neither({{"other", at::ones({1})}});
  const at::Tensor shared = parameter({2});
  const NamedTensors model = {{"embed", shared}, {"head", shared}, {"other", parameter({1})}};
  EXPECT_THAT(
      load_checkpoint_in_model(model, neither.path(), {.strict = false}).missing,
      ElementsAre("embed"));
}

TEST(LoadCheckpointInModel, RefusesDifferentValuesForTiedWeights) {
  const at::Tensor shared = parameter({2});
  const NamedTensors model = {{"embed", shared}, {"head", shared}};
  const Saved equal({{"embed", at::ones({2})}, {"head", at::ones({2})}});
  load_checkpoint_in_model(model, equal.path());
  EXPECT_TRUE(holds(shared, 1));
  const Saved different({{"embed", at::ones({2})}, {"head", at::zeros({2})}});
  EXPECT_THAT(
      [&] { load_checkpoint_in_model(model, different.path()); },
      ThrowsMessage<CheckpointError>(
          HasSubstr("embed and head are tied in the model, but were saved with different values")));
}

TEST(LoadCheckpointInModel, ChecksADeviceMapBeforeItLoads) {
  const Saved saved({{"net.a.w", at::ones({2})}, {"net.ab.w", at::ones({2})}});
  const at::Tensor w = parameter({2});
  const NamedTensors model = {{"net.a.w", w}, {"net.ab.w", parameter({2})}};
  const auto refuses = [&](const std::map<std::string, at::Device>& map, const std::string& why) {
    EXPECT_THAT(
        [&] { load_checkpoint_in_model(model, saved.path(), {.device_map = map}); },
        ThrowsMessage<ConfigError>(HasSubstr(why)));
    EXPECT_TRUE(holds(w, 0));
  };
  refuses({{"net.a", at::kCPU}}, "device_map has no device for net.ab.w");
  refuses({{"", at::kCPU}, {"net.b", at::kCPU}}, "has 'net.b', which is not a module or tensor");
  refuses({{"", at::kCPU}, {"net.a", at::kMeta}}, "meta");
  if (!at::hasCUDA()) {
    refuses(
        {{"", at::kCPU}, {"net.a", at::kCUDA}},
        "has the device cuda, which this process cannot use");
  }
  load_checkpoint_in_model(
      model, saved.path(), {.device_map = {{"net.a", at::kCPU}, {"net.ab.w", at::kCPU}}});
  EXPECT_TRUE(holds(w, 1));
}

TEST(LoadCheckpointInModel, MovesEachPartToItsDevice) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a GPU";
  }
  const Saved saved({{"a.w", at::ones({2})}, {"b.w", at::full({2}, 2.)}});
  const at::Tensor shared = parameter({2});
  const NamedTensors model = {
      {"a.w", shared},
      {"a.tied", shared.detach()},
      {"b.w", parameter({2})},
      {"b.n", parameter({2})}};
  const auto names = load_checkpoint_in_model(
      model,
      saved.path(),
      {.strict = false, .device_map = {{"", at::kCPU}, {"a", at::Device("cuda:0")}}});
  EXPECT_THAT(names.missing, ElementsAre("b.n"));
  EXPECT_TRUE(shared.is_cuda() && holds(shared, 1));
  EXPECT_EQ(model[1].tensor.const_data_ptr(), shared.const_data_ptr());
  EXPECT_TRUE(model[2].tensor.is_cpu() && holds(model[2].tensor, 2));
  load_checkpoint_in_model(model, saved.path(), {.strict = false, .device_map = {{"", at::kCUDA}}});
  EXPECT_TRUE(model[3].tensor.is_cuda() && holds(model[3].tensor, 0)) << "moved without a value";
}

TEST(LoadCheckpointInModel, RefusesATensorWithoutMemory) {
  const Saved saved({{"w", at::ones({2})}});
  EXPECT_THAT(
      [&] {
        load_checkpoint_in_model({{"w", at::empty({2}, at::kMeta)}}, saved.path());
      },
      ThrowsMessage<ConfigError>(HasSubstr("w has no memory (meta)")));
}

TEST(LoadCheckpointInModel, CanBeCheckedFirstAndAppliedLater) {
  const Saved saved({{"w", at::ones({2})}});
  const at::Tensor w = parameter({2});
  const CheckedWeights checked = check_checkpoint_in_model({{"w", w}}, saved.path());
  EXPECT_TRUE(holds(w, 0));
  checked.apply();
  EXPECT_TRUE(holds(w, 1));
}

TEST(LoadCheckpointInModel, NamesATensorThatCannotBeRead) {
  if (madvise(nullptr, 0, MADV_POPULATE_READ) != 0) {
    GTEST_SKIP() << "Linux before 5.14 ends the process";
  }
  constexpr int64_t kPages = 4096;  // Of floats.
  const Saved saved({{"a", at::ones({kPages})}, {"b", at::ones({1024 * kPages})}});
  const at::Tensor b = parameter({1024 * kPages});
  const CheckedWeights checked =
      check_checkpoint_in_model({{"a", parameter({kPages})}, {"b", b}}, saved.path());
  std::filesystem::resize_file(saved.path() / "model.safetensors", 1 << 20);
  EXPECT_THAT(
      [&] { checked.apply(); },
      ThrowsMessage<CheckpointError>(
          HasSubstr("model.safetensors: \"b\"] cannot be read: the file was truncated")));
}

TEST(LoadCheckpointInModel, ReadsOneFileOrAnIndexAsWellAsAFolder) {
  const Saved one_file({{"w", at::ones({2})}});
  const Saved shards({{"w", at::ones({2})}, {"x", at::ones({2})}}, "8");
  const NamedTensors model = {{"w", parameter({2})}};
  EXPECT_THAT(
      load_checkpoint_in_model(model, one_file.path() / "model.safetensors").missing, IsEmpty());
  EXPECT_THAT(
      load_checkpoint_in_model(
          model, shards.path() / "model.safetensors.index.json", {.strict = false})
          .unexpected,
      ElementsAre("x"));
  storage::write_bytes(one_file.path() / "weights.bin", "a pickle");
  EXPECT_THAT(
      [&] { load_checkpoint_in_model(model, one_file.path() / "weights.bin"); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("pickle"), HasSubstr("python -c"))));
}

TEST(LoadCheckpointInModel, LoadsNothingFromADamagedCheckpoint) {
  const TestFolder folder;
  const std::filesystem::path path = folder / "step_1";
  const std::vector<float> ones(4, 1.F);
  const storage::OutputTensor weight =
      storage::output_tensor("w", storage::Dtype::kF32, {4}, storage::raw_bytes(ones));
  storage::commit_checkpoint(path, {{"step", 1}}, {{"model.safetensors", {{weight}}}});
  const at::Tensor w = parameter({4});
  load_checkpoint_in_model({{"w", w}}, path);
  EXPECT_TRUE(holds(w, 1));
  w.detach().zero_();
  storage::flip_bit(
      path / "model.safetensors", std::filesystem::file_size(path / "model.safetensors") - 1);
  EXPECT_THAT(
      [&] {
        load_checkpoint_in_model({{"w", w}}, path);
      },
      ThrowsMessage<CheckpointError>(HasSubstr("\"w\"] is damaged")));
  EXPECT_THAT(
      [&] {
        load_checkpoint_in_model({{"w", w}}, path / "model.safetensors");
      },
      ThrowsMessage<CheckpointError>(HasSubstr("\"w\"] is damaged")));
  EXPECT_TRUE(holds(w, 0));
}

}  // namespace
}  // namespace lockstep::checkpoint
