// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::string pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>(i * 131 + i / 255);
  }
  return bytes;
}

TEST(OutputFile, WritesSmallAndLargeChunksInOrderWithChecksums) {
  const TestFolder folder;
  std::string expected;
  OutputFile file(folder / "file");
  for (const size_t size : {3, 0, 300000, 1, 262144, 262143, 2, 1000000, 5}) {
    const std::string block = pattern(size);
    EXPECT_EQ(file.append(block), crc32c(block));
    expected += block;
  }
  file.finish();
  EXPECT_EQ(file.bytes(), expected.size());
  EXPECT_EQ(file.crc32c(), crc32c(expected));
  EXPECT_TRUE(read_bytes(folder / "file") == expected);
}

TEST(OutputFile, WritesMoreThanTheDiskTakesInOneGo) {
  const TestFolder folder;
  const std::string block = pattern(23'000'001);
  OutputFile file(folder / "file");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(file.append(block), crc32c(block));
  }
  file.finish();
  const std::string expected = block + block + block + block;
  EXPECT_EQ(file.crc32c(), crc32c(expected));
  EXPECT_TRUE(read_bytes(folder / "file") == expected);
}

TEST(OutputFile, IsRemovedUnlessFinished) {
  const TestFolder folder;
  OutputFile(folder / "file").append("half of it");
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(OutputFile, TakesNoNameThatIsThereNorFollowsALink) {
  const TestFolder folder;
  write_bytes(folder / "taken", "precious");
  std::filesystem::create_symlink(folder / "elsewhere", folder / "link");
  for (const char* name : {"taken", "link"}) {
    EXPECT_THAT(
        [&] { OutputFile file(folder / name); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr(name), HasSubstr("File exists"))));
  }
  EXPECT_EQ(read_bytes(folder / "taken"), "precious");
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

TEST(OutputFile, NamesTheFolderThatIsMissing) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { OutputFile file(folder / "no" / "file"); },
      ThrowsMessage<CheckpointError>(HasSubstr("No such file")));
}

}  // namespace
}  // namespace lockstep::storage
