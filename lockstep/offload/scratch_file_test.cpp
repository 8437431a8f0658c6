// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/scratch_file.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/offload/file_tensor.h"
#include "lockstep/offload/test_scratch.h"

namespace lockstep::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ScratchFile, ReturnsWrittenBytesAndZerosElsewhere) {
  const TestFolder folder;
  ScratchFile file(folder.path(), "state");
  const int64_t first = file.take(100);
  const int64_t second = file.take(100'000);
  file.write(second, "abc", 3);
  std::string text(5, '?');
  file.read(second, text.data(), 5);
  EXPECT_EQ(text, std::string("abc\0\0", 5));
  file.read(first, text.data(), 5);
  EXPECT_EQ(text, std::string(5, '\0'));
  EXPECT_GE(second, first + 100);
  EXPECT_GE(file.bytes_taken(), 100'100);
}

TEST(ScratchFile, NothingInTheFolderHasItsName) {
  const TestFolder folder;
  ScratchFile file(folder.path(), "state");
  file.write(file.take(1000), "abc", 3);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "so nothing is left after kill -9";
}

TEST(ScratchFile, AMissingFolderIsNamed) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { ScratchFile(folder / "missing", "the optimizer's state"); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("nvme_path is not a folder, so the optimizer's state cannot be stored in it"),
          HasSubstr((folder / "missing").string()))));
}

TEST(ScratchFile, TooLittleSpaceIsReportedBeforeAnythingIsWritten) {
  const TestFolder folder;
  ScratchFile file(folder.path(), "the optimizer's state");
  const auto free = std::filesystem::space(folder.path()).available;
  const int64_t wanted = ScratchFile::rounded(static_cast<int64_t>(free) * 2);
  EXPECT_THAT(
      [&] { file.reserve(wanted); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("the optimizer's state does not fit into nvme_path '" + folder.path().string()),
          HasSubstr("bytes free, expected " + std::to_string(wanted)))));
  EXPECT_THROW(file.take(wanted), ConfigError);
  EXPECT_EQ(file.take(10), 0) << "what fits is still given";
}

TEST(ScratchFile, RoomIsTakenWhenItIsAskedFor) {
  const TestFolder folder;
  const auto free = [&] { return std::filesystem::space(folder.path()).available; };
  const auto before = free();
  constexpr int64_t kBytes = int64_t{256} << 20;
  ScratchFile file(folder.path(), "state");
  file.reserve(kBytes);
  EXPECT_LT(free() + kBytes / 2, before) << "half of it may have come free elsewhere";
}

TEST(FileTensor, TheTensorAndTheFileAreTheSame) {
  const TestFolder folder;
  const auto file = std::make_shared<ScratchFile>(folder.path(), "state");
  FileTensor first(file, 100, at::kFloat);
  FileTensor second(file, 100, at::kDouble);
  EXPECT_TRUE(at::equal(second.tensor(), at::zeros({100}, at::kDouble)));
  first.tensor().copy_(at::arange(100));
  std::vector<float> read(100);
  first.read(read.data());
  EXPECT_EQ(read[7], 7);
  read[7] = 70;
  first.write(read.data());
  first.release_pages();
  EXPECT_EQ(first.tensor()[7].item<float>(), 70);
  EXPECT_EQ(second.tensor()[7].item<double>(), 0);
}

TEST(FileTensor, ViewsSeeTheMemoryItIsStagedIn) {
  const TestFolder folder;
  FileTensor tensor(std::make_shared<ScratchFile>(folder.path(), "state"), 100, at::kFloat);
  const at::Tensor view = tensor.tensor().narrow(0, 10, 5);
  std::vector<float> memory(100, 3);
  tensor.stage(memory.data());
  EXPECT_EQ(view[0].item<float>(), 3);
  view.fill_(4);
  EXPECT_EQ(memory[12], 4);
  tensor.unstage();
  EXPECT_EQ(view[0].item<float>(), 0) << "it was not written to the file";
}

TEST(ScratchFile, InMemoryReturnsTheTensorAndInAFileACopy) {
  const TestFolder folder;
  FileTensor tensor(std::make_shared<ScratchFile>(folder.path(), "state"), 20'000, at::kFloat);
  tensor.tensor().copy_(at::arange(20'000, at::kFloat));
  const at::Tensor matrix = tensor.tensor().slice(0, 10, 16).reshape({2, 3}).transpose(0, 1);
  for (const at::Tensor& view : {tensor.tensor(), matrix, matrix.select(0, 1)}) {
    const at::Tensor copy = in_memory(view);
    EXPECT_TRUE(at::equal(copy, view));
    EXPECT_FALSE(copy.is_alias_of(view));
  }
  std::vector<float> buffer(20'000, 3);
  tensor.stage(buffer.data());
  EXPECT_TRUE(in_memory(tensor.tensor()).is_same(tensor.tensor())) << "it is in memory now";
  tensor.unstage();
  const at::Tensor plain = at::zeros({4});
  EXPECT_TRUE(in_memory(plain).is_same(plain));
  EXPECT_FALSE(in_memory(at::Tensor()).defined());
}

TEST(ScratchFile, AFileThatLostItsEndIsAnErrorThatNamesIt) {
  const TestFolder folder;
  at::Tensor left;
  {
    const FileTensor tensor(
        std::make_shared<ScratchFile>(folder.path(), "the optimizer's state"), 20'000, at::kFloat);
    left = tensor.tensor();  // Outlives all else.
  }
  EXPECT_EQ(in_memory(left).sum().item<float>(), 0);
  ASSERT_EQ(cut_off_scratch_files(folder.path()), 1);
  EXPECT_THAT(
      [&] { in_memory(left); },
      ThrowsMessage<ConfigError>(HasSubstr(
          "the optimizer's state could not be read in nvme_path '" + folder.path().string() +
          "': the file was truncated")));
}

}  // namespace
}  // namespace lockstep::offload
