// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/safetensors.h"

#include <string>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

const std::filesystem::path kGolden = LOCKSTEP_SOURCE_DIR "/tests/golden";

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

/// The tensors of tests/golden/make_safetensors.py.
at::Tensor golden_tensor(at::ScalarType dtype, const std::vector<int64_t>& shape) {
  at::Tensor tensor = at::empty(shape, dtype);
  auto* data = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    data[i] = static_cast<uint8_t>((37 * i + 11) % (dtype == at::kBool ? 2 : 256));
  }
  return tensor;
}

NamedTensors golden_tensors() {
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"bool", at::kBool},
      {"uint8", at::kByte},
      {"int8", at::kChar},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e8m0fnu", at::kFloat8_e8m0fnu},
      {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
      {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
      {"int16", at::kShort},
      {"uint16", at::kUInt16},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"int32", at::kInt},
      {"uint32", at::kUInt32},
      {"float32", at::kFloat},
      {"complex64", at::kComplexFloat},
      {"float64", at::kDouble},
      {"int64", at::kLong},
      {"uint64", at::kUInt64}};
  NamedTensors tensors;
  for (const auto& [name, dtype] : dtypes) {
    tensors.push_back({name + ".matrix", golden_tensor(dtype, {3, 5})});
    tensors.push_back({name + ".scalar", golden_tensor(dtype, {})});
    tensors.push_back({name + ".empty", golden_tensor(dtype, {2, 0, 3})});
  }
  for (const char* name :
       {"", "a.b.weight", "../../x", "quote\" \\ tab\t line\n bell\x07 del\x7f", "größe ✓ 𝄞"}) {
    tensors.push_back({name, golden_tensor(at::kFloat, {2})});
  }
  return tensors;
}

void expect_golden(const storage::SafetensorsMap& file) {
  const NamedTensors expected = golden_tensors();
  EXPECT_EQ(file.names().size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor read = tensor_of(file, name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_EQ(bytes_of(read), bytes_of(tensor)) << name;
  }
}

TEST(Safetensors, ReadsTheReferencesFiles) {
  const storage::SafetensorsMap file(kGolden / "all_dtypes.safetensors");
  expect_golden(file);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_THAT(storage::SafetensorsMap(kGolden / "no_tensors.safetensors").names(), IsEmpty());
}

TEST(Safetensors, WritesTheBytesTheReferenceWrites) {
  const TestFolder folder;
  write_safetensors(folder / "all", golden_tensors(), {{"format", "pt"}});
  EXPECT_TRUE(
      storage::read_bytes(folder / "all") ==
      storage::read_bytes(kGolden / "all_dtypes.safetensors"));
  write_safetensors(folder / "none", {});
  EXPECT_TRUE(
      storage::read_bytes(folder / "none") ==
      storage::read_bytes(kGolden / "no_tensors.safetensors"));
}

TEST(Safetensors, ReportsSizesAndChecksumsOfWrittenFiles) {
  const TestFolder folder;
  const NamedTensors tensors = golden_tensors();
  const storage::FileSummary summary = write_safetensors(folder / "f", tensors);
  const std::string bytes = storage::read_bytes(folder / "f");
  EXPECT_EQ(summary.bytes, bytes.size());
  EXPECT_EQ(summary.crc32c, crc32c(bytes));
  EXPECT_EQ(summary.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(summary.tensors.at(name), crc32c(bytes_of(tensor))) << name;
  }
}

TEST(Safetensors, WritesTheValuesOfViewsOfAllKinds) {
  const TestFolder folder;
  const at::Tensor base = at::arange(24, at::kFloat).reshape({4, 6});
  const at::Tensor complex = at::complex(base, base + 1);
  NamedTensors views = {
      {"transposed", base.t()},
      {"strided", base.slice(1, 0, 6, 2)},
      {"expanded", base.slice(0, 0, 1).expand({5, 6})},
      {"offset", base.slice(0, 2)},
      {"channels_last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"conjugated", complex.conj()},
      {"negated", at::imag(complex.conj())},
      {"leaf", at::ones({3}).requires_grad_()}};
  write_safetensors(folder / "f", views);
  const storage::SafetensorsMap file(folder / "f");
  for (const auto& [name, view] : views) {
    EXPECT_TRUE(at::equal(tensor_of(file, name), view.detach())) << name;
    EXPECT_TRUE(tensor_of(file, name).is_contiguous()) << name;
    EXPECT_FALSE(tensor_of(file, name).requires_grad()) << name;
  }
}

TEST(Safetensors, StreamsTensorsLargerThanItsBuffer) {
  const TestFolder folder;
  const at::Tensor large = at::arange(1'000'003, at::kInt);
  write_safetensors(folder / "f", {{"small", at::ones({3})}, {"large", large}});
  EXPECT_TRUE(at::equal(tensor_of(storage::SafetensorsMap(folder / "f"), "large"), large));
}

TEST(Safetensors, RefusesTensorsTheFormatCannotHold) {
  const TestFolder folder;
  const auto refuses = [&](const NamedTensors& tensors, const std::string& why) {
    EXPECT_THAT(
        [&] { write_safetensors(folder / "f", tensors); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr("cannot be written"), HasSubstr(why))));
    EXPECT_THAT(storage::names_in(folder.path()), IsEmpty());
  };
  refuses({{"w", at::Tensor()}}, "\"w\"] cannot be written; the tensor is undefined");
  refuses({{"w", at::ones({2}, at::kComplexDouble)}}, "does not support the dtype ComplexDouble");
  refuses({{"w", at::ones({2, 2}).to_sparse()}}, "sparse");
  refuses({{"w", at::empty({2}, at::TensorOptions(at::kMeta))}}, "has no data");
  refuses({{"w", at::ones({2})}, {"v", at::ones({2})}, {"w", at::ones({1})}}, "used twice");
  refuses({{"__metadata__", at::ones({2})}}, "reserved");
  refuses({{"\xff", at::ones({2})}}, "not UTF-8");
}

TEST(Safetensors, DoesNotOverwrite) {
  const TestFolder folder;
  storage::write_bytes(folder / "f", "precious");
  EXPECT_THROW(write_safetensors(folder / "f", {}), CheckpointError);
  EXPECT_EQ(storage::read_bytes(folder / "f"), "precious");
}

TEST(Safetensors, TensorsAreViewsThatOutliveTheFileAndNeverChangeIt) {
  const TestFolder folder;
  write_safetensors(folder / "f", {{"a", at::arange(8, at::kFloat)}, {"b", at::ones({4})}});
  const std::string before = storage::read_bytes(folder / "f");
  at::Tensor a;
  {
    const storage::SafetensorsMap file(folder / "f");
    a = tensor_of(file, "a");
    EXPECT_EQ(a.const_data_ptr(), tensor_of(file, "a").const_data_ptr());
    EXPECT_EQ(a.const_data_ptr(), file.bytes(file.entries()[0]).data());
  }
  a.mul_(2);
  EXPECT_TRUE(at::equal(a, at::arange(8, at::kFloat) * 2));
  EXPECT_TRUE(storage::read_bytes(folder / "f") == before);
  EXPECT_TRUE(
      at::equal(tensor_of(storage::SafetensorsMap(folder / "f"), "a"), at::arange(8, at::kFloat)));
}

TEST(Safetensors, CopiesMisalignedData) {
  const TestFolder folder;
  storage::SafetensorsHeader header;
  header.tensors = {
      {"odd", storage::Dtype::kU8, {1}, 0, 1}, {"w", storage::Dtype::kF32, {2}, 1, 9}};
  const at::Tensor w = at::tensor({1.5F, -2.0F});
  storage::write_bytes(
      folder / "f", storage::render_safetensors_header("f", header) + "x" + bytes_of(w));
  const storage::SafetensorsMap file(folder / "f");
  const at::Tensor read = tensor_of(file, "w");
  EXPECT_TRUE(at::equal(read, w));
  EXPECT_NE(read.const_data_ptr(), file.bytes(file.entries()[1]).data());
}

TEST(Safetensors, RefusesABoolThatIsNeither) {
  const TestFolder folder;
  storage::SafetensorsHeader header;
  header.tensors = {{"mask", storage::Dtype::kBool, {2}, 0, 2}};
  storage::write_bytes(
      folder / "f", storage::render_safetensors_header("f", header) + std::string("\1\2", 2));
  EXPECT_THAT(
      [&] { tensor_of(storage::SafetensorsMap(folder / "f"), "mask"); },
      ThrowsMessage<CheckpointError>(HasSubstr("other than 0 and 1")));
}

TEST(Safetensors, RefusesLinksPipesFoldersAndAbsentFiles) {
  const TestFolder folder;
  write_safetensors(folder / "f", {});
  std::filesystem::create_symlink(folder / "f", folder / "link");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  storage::write_bytes(folder / "zero", "");
  const auto refuses = [&](const char* name, const char* why) {
    EXPECT_THAT(
        [&] { storage::SafetensorsMap(folder / name); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr(name), HasSubstr(why))));
  };
  refuses("link", "symbolic link");
  refuses("pipe", "not a regular file");
  refuses(".", "not a regular file");
  refuses("absent", "No such file");
  refuses("zero", "too short");
}

TEST(Safetensors, NamesTheTensorThatIsNotThere) {
  EXPECT_THAT(
      [] { tensor_of(storage::SafetensorsMap(kGolden / "all_dtypes.safetensors"), "weight"); },
      ThrowsMessage<CheckpointError>(HasSubstr("\"weight\"] has no such tensor")));
}

}  // namespace
}  // namespace lockstep::checkpoint
