// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/mapped_file.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TestFolder folder;
  const std::string path = write_file(folder, "file", "some bytes");
  const MappedFile file(path);
  std::filesystem::remove(path);  // The mapping stays.
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data()), file.size()), "some bytes");
}

TEST(MappedFile, MapsAnEmptyFile) {
  const TestFolder folder;
  EXPECT_EQ(MappedFile(write_file(folder, "file", "")).size(), 0U);
}

TEST(MappedFile, NamesAFileThatCannotBeMapped) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { MappedFile((folder / "missing").string()); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("/missing]"), HasSubstr("No such file"))));
  EXPECT_THAT(
      [&] { MappedFile(folder.path().string()); },
      ThrowsMessage<ConfigError>(HasSubstr("expected a regular file")));
}

}  // namespace
}  // namespace lockstep::data
