// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/idx.h"

#include <string>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class ReadIdx : public testing::Test {
 protected:
  void refuses(const std::string& bytes, const std::string& why, const IdxOptions& options = {}) {
    const std::string path = write_file(folder_, "file", bytes);
    EXPECT_THAT(
        [&] { read_idx(path, options); },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr(path), HasSubstr(why))));
  }
  std::string zipped(const std::string& bytes) {
    return gzip(bytes, (folder_ / "scratch.gz").string());
  }

  TestFolder folder_;
};

TEST_F(ReadIdx, ReadsPlainAndGzipFilesAlike) {
  const std::string bytes = idx({2, 3}, std::string("\x00\x01\x02\x7f\x80\xff", 6));
  const at::Tensor expected = at::tensor({0, 1, 2, 127, 128, 255}, at::kByte).reshape({2, 3});
  EXPECT_TRUE(at::equal(read_idx(write_file(folder_, "plain", bytes)), expected));
  EXPECT_TRUE(at::equal(read_idx(write_file(folder_, "zipped", zipped(bytes))), expected));
}

TEST_F(ReadIdx, ReadsContentsLongerThanItsFirstBuffer) {
  std::string contents(3'500'000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) {
    contents[i] = static_cast<char>(i * 2654435761U >> 13);
  }
  const at::Tensor read =
      read_idx(write_file(folder_, "long", zipped(idx({3500, 1000}, contents))));
  EXPECT_EQ(read.sizes(), at::IntArrayRef({3500, 1000}));
  EXPECT_EQ(
      std::string(static_cast<const char*>(read.const_data_ptr()), contents.size()), contents);
}

TEST_F(ReadIdx, ReadsAnEmptySet) {
  EXPECT_EQ(
      read_idx(write_file(folder_, "none", idx({0, 28, 28}, ""))).sizes(),
      at::IntArrayRef({0, 28, 28}));
}

TEST_F(ReadIdx, RefusesOtherFormats) {
  refuses("PK\x03\x04 a zip file", "is not an IDX file; it begins with [50, 4b, 03, 04]");
  refuses("", "is not an IDX file; it begins with []");
  refuses(idx({2}, "ab", 0x0D), "got type byte 0d, expected 08");
  refuses(idx({}, "a"), "got 0 dimensions");
  refuses(std::string("\0\0\x08\x7f", 4), "got 127 dimensions");
  refuses(idx({2, 3}, "").substr(0, 9), "ends inside its header; expected 2 dimensions");
}

TEST_F(ReadIdx, RefusesContentsThatDoNotFitTheHeader) {
  refuses(
      idx({2, 3}, "abcde"),
      "is truncated; got 5 bytes after the header, expected 6 for shape [2, 3]");
  refuses(idx({2, 3}, "abcdefg"), "has extra bytes at its end; expected 6 bytes");
  refuses(zipped(idx({2, 3}, "abcde")), "is truncated; got 5 bytes");
  refuses(zipped(idx({2, 3}, "abcdefg")), "has extra bytes at its end");
}

TEST_F(ReadIdx, RefusesADamagedStream) {
  std::string contents(100'000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) {
    contents[i] = static_cast<char>(i * 2654435761U >> 13);
  }
  const std::string complete = zipped(idx({100, 1000}, contents));
  refuses(complete.substr(0, complete.size() / 2), "damaged or truncated; ");
  refuses(
      complete.substr(0, complete.size() - 6), "damaged or truncated; ");  // Without its checksum.
  std::string flipped = complete;
  flipped[flipped.size() - 7] = static_cast<char>(flipped[flipped.size() - 7] ^ 0x10);
  refuses(flipped, "damaged or truncated; ");
}

TEST_F(ReadIdx, DoesNotBelieveTheHeader) {
  refuses(idx({60000, 60000, 60000}, "abc"), "is too large; got shape [60000, 60000, 60000]");
  refuses(idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, ""), "is too large");
  refuses(idx({0, 0xFFFFFFFF, 0xFFFFFFFF}, ""), "is too large");
  refuses(idx({3}, "abc"), "expected at most 2 bytes", {.max_bytes = 2});
}

TEST_F(ReadIdx, AHeaderThatPromisesGigabytesCostsNone) {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  refuses(
      idx({60000, 60000}, "abc"),
      "is truncated; got 3 bytes after the header, expected 3600000000");
  std::string bomb;
  bomb.resize(300'000'000, 'a');
  refuses(zipped(idx({4}, bomb)), "has extra bytes at its end");
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  // The 300 MB above are the test's own, once. A sanitizer's shadow memory would count as well.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 1'000'000) << "kilobytes";
#endif
}

TEST_F(ReadIdx, RefusesUnreadableFiles) {
  EXPECT_THAT(
      [&] { read_idx((folder_ / "missing").string()); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("/missing]"), HasSubstr("No such file"))));
  EXPECT_THAT(
      [&] { read_idx(folder_.path().string()); },
      ThrowsMessage<ConfigError>(HasSubstr("Is a directory")));
}

}  // namespace
}  // namespace lockstep::data
