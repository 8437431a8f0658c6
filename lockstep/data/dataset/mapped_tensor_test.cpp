// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/mapped_tensor.h"

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), {}};
  return all.find(path) != std::string::npos;
}

TEST(MappedTensor, IsTheFileAsATensor) {
  const TestFolder folder;
  const at::Tensor expected = at::rand({5, 2, 3});
  const std::string path = write_file(folder, "x.bin", bytes_of(expected));
  EXPECT_TRUE(at::equal(mapped_tensor(path, at::kFloat, {2, 3}), expected));
  EXPECT_TRUE(at::equal(mapped_tensor(path, at::kFloat, {}), expected.flatten()));
  EXPECT_TRUE(at::equal(
      mapped_tensor(path, at::kFloat, {6}, /*offset_bytes=*/24), expected.flatten(1).slice(0, 1)));
}

TEST(MappedTensor, StaysMappedAsLongAsAViewLives) {
  const TestFolder folder;
  const std::string path = write_file(folder, "x.bin", bytes_of(at::arange(6)));
  at::Tensor tensor = mapped_tensor(path, at::kLong, {});
  at::Tensor view = tensor.slice(0, 4);
  tensor.reset();
  EXPECT_TRUE(is_mapped(path));
  EXPECT_EQ(view[0].item<int64_t>(), 4);
  view.reset();
  EXPECT_FALSE(is_mapped(path));
}

TEST(MappedTensor, OutlivesTheNameOfItsFile) {
  const TestFolder folder;
  const std::string path = write_file(folder, "file", "some bytes");
  const at::Tensor tensor = mapped_tensor(path, at::kByte, {});
  std::filesystem::remove(path);
  EXPECT_EQ(bytes_of(tensor), "some bytes");
}

TEST(MappedTensor, NamesAFileThatCannotBeMapped) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { mapped_tensor((folder / "missing").string(), at::kByte, {}); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("/missing]"), HasSubstr("No such file"))));
  EXPECT_THAT(
      [&] { mapped_tensor(folder.path().string(), at::kByte, {}); },
      ThrowsMessage<ConfigError>(HasSubstr("expected a regular file")));
}

TEST(MappedTensor, OfAnEmptyFileHasNoRecords) {
  const TestFolder folder;
  EXPECT_EQ(
      mapped_tensor(write_file(folder, "x.bin", ""), at::kFloat, {3}).sizes(),
      at::IntArrayRef({0, 3}));
}

TEST(MappedTensor, TwoOfThemAreADatasetThatIsNeverCopied) {
  const TestFolder folder;
  const at::Tensor data = at::rand({10, 4});
  const at::Tensor target = at::arange(10);
  const TensorDataset dataset(
      mapped_tensor(write_file(folder, "x.bin", bytes_of(data)), at::kFloat, {4}),
      mapped_tensor(write_file(folder, "y.bin", bytes_of(target)), at::kLong, {}));
  EXPECT_EQ(dataset.data().storage().nbytes(), data.nbytes());
  EXPECT_TRUE(is_mapped((folder / "x.bin").string()));
  std::vector<at::Tensor> seen;
  for (auto& batch : Loader(dataset, {.batch_size = 3})) {
    seen.push_back(batch.data);
  }
  EXPECT_TRUE(at::equal(at::cat(seen), data));
}

TEST(MappedTensor, RefusesATensorThatDoesNotFit) {
  const TestFolder folder;
  const std::string path = write_file(folder, "x.bin", std::string(50, 'x'));
  const auto refuses =
      [&](const std::vector<int64_t>& shape, int64_t offset, const std::string& why) {
        EXPECT_THAT(
            [&] { mapped_tensor(path, at::kFloat, shape, offset); },
            ThrowsMessage<ConfigError>(AllOf(HasSubstr(path), HasSubstr(why))));
      };
  refuses({3}, 0, "got 50 bytes after an offset of 0, expected a multiple of 12");
  refuses({3}, 0, "2 bytes are left over");
  refuses({3}, 2, "offset_bytes is out of range; got 2");
  refuses({3}, 52, "offset_bytes is out of range");
  refuses({3}, -4, "offset_bytes is out of range");
  refuses({3, 0}, 0, "record_shape is out of range; got [3, 0]");
  refuses({int64_t{1} << 40, int64_t{1} << 40}, 0, "record_shape is out of range");
}

}  // namespace
}  // namespace lockstep::data
