// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/contents.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/even_shares.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

NamedTensors some_tensors() {
  return {
      {"a", at::arange(10, at::kFloat).reshape({2, 5})},
      {"empty", at::empty({0, 3})},
      {"b", at::arange(7, at::kDouble)},
      {"c", at::arange(24, at::kFloat).to(at::kBFloat16).reshape({2, 3, 4}).transpose(0, 2)},
      {"one", at::scalar_tensor(3.5, at::kFloat)}};
}

void expect_equal(const NamedTensors& expected, const NamedTensors& got) {
  ASSERT_EQ(got.size(), expected.size());
  for (const NamedTensor& item : expected) {
    const auto found = std::find_if(
        got.begin(), got.end(), [&](const auto& other) { return other.name == item.name; });
    ASSERT_NE(found, got.end()) << item.name;
    EXPECT_TRUE(at::equal(found->tensor, item.tensor)) << item.name;
    EXPECT_EQ(found->tensor.scalar_type(), item.tensor.scalar_type());
  }
}

TEST(Contents, ASharedSetIsReadBackInFullForAnyNumberOfRanksAndThreads) {
  const TestFolder folder;
  for (int size = 1; size <= 4; ++size) {
    for (int threads = 1; threads <= 2; ++threads) {
      const fs::path path = folder / (std::to_string(size) + "_" + std::to_string(threads));
      ranks(size, [&](const Group& group) {
        const int rank = group.rank();
        EvenShares shares(static_cast<size_t>(size * threads), 1);
        shares.claim(0, 20);
        Contents contents;
        contents.add_shared("state", some_tensors(), rank, static_cast<size_t>(threads), shares);
        Writer writer(group, path, {.threads = threads});
        writer.write(contents);
        writer.commit(nlohmann::json::object());
      });
      const Reader reader(path, storage::Verify::kFull);
      EXPECT_EQ(reader.files().size() > 1, size * threads > 1);
      expect_equal(some_tensors(), reader.tensor_set("state", threads));
    }
  }
}

TEST(Contents, RanksThatHoldDifferentSetsAreRefusedByName) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] {
        ranks(2, [&](const Group& group) {
          EvenShares shares(2, 1);
          Contents contents;
          NamedTensors tensors = some_tensors();
          if (group.rank() == 1) {
            tensors.pop_back();
          }
          contents.add_shared("optimizer", tensors, group.rank(), 1, shares);
          Writer writer(group, folder / "c");
          writer.write(contents);
          writer.commit(nlohmann::json::object());
        });
      },
      ThrowsMessage<CheckpointError>(
          HasSubstr("ranks disagree on the tensors of optimizer: rank 1 has crc32c")));
  EXPECT_TRUE(storage::names_in(folder.path()).empty());
}

TEST(Contents, CopiesHaveTheValuesAtTheCallAndReuseTheMemoryOfEarlierCopies) {
  const at::Tensor weight = at::ones({3, 4}).t();
  Contents first;
  first.add_tensors("f", {{"w", weight}, {"other", at::ones({2})}});
  first.copy_to_host(Contents());
  weight.mul_(2);
  const at::Tensor copy = first.files()[0].tensors[0].tensor;
  EXPECT_TRUE(at::equal(copy, at::ones({4, 3})));
  Contents second;
  second.add_tensors("f", {{"w", weight}, {"other", at::ones({3})}});
  second.copy_to_host(first);
  EXPECT_EQ(second.files()[0].tensors[0].tensor.data_ptr(), copy.data_ptr());
  EXPECT_TRUE(at::equal(copy, at::full({4, 3}, 2.0F)));
  EXPECT_EQ(second.files()[0].tensors[1].tensor.numel(), 3);
  EXPECT_EQ(second.tensor_bytes(), 60);
}

TEST(Contents, AFailureAmongThemFailsTheSaveOnEveryRank) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] {
        ranks(2, [&](const Group& group) {
          Contents contents;
          if (group.rank() == 1) {
            contents.fail("out of ideas");
          }
          contents.add_json("rank_" + std::to_string(group.rank()) + ".json", 1);
          Writer writer(group, folder / "c");
          writer.write(contents);
          writer.commit(nlohmann::json::object());
        });
      },
      ThrowsMessage<CheckpointError>(HasSubstr("rank 1 failed: out of ideas")));
  EXPECT_TRUE(storage::names_in(folder.path()).empty());
}

}  // namespace
}  // namespace lockstep::checkpoint
