// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/safetensors_header.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

std::string length_field(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i) & 0xffU));
  }
  return bytes;
}

std::string file_with(const std::string& header, size_t data_bytes) {
  return length_field(header.size()) + header + std::string(data_bytes, 'd');
}

SafetensorsHeader parse(const std::string& header, size_t data_bytes = 0) {
  return parse_safetensors_header("f", file_with(header, data_bytes));
}

void refuses_file(const std::string& file, const std::string& why) {
  expect_refused([&] { parse_safetensors_header("the/file", file); }, "the/file", why);
}

void refuses_header(const std::string& header, size_t data_bytes, const std::string& why) {
  SCOPED_TRACE(header.substr(0, 200));
  refuses_file(file_with(header, data_bytes), why);
}

/// A tensor "a" of that description.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string two(const std::string& offsets_a, const std::string& offsets_b) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_a +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets_b + "}}";
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirData) {
  const SafetensorsHeader header = parse(
      R"({"__metadata__":{"format":"pt","":"x"},)"
      R"("late":{"data_offsets":[8,8],"shape":[0,7],"dtype":"F32"},)"
      R"("b":{"dtype":"F8_E4M3","shape":[],"data_offsets":[8,9]},)"
      R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}   )",
      9);
  EXPECT_THAT(header.metadata, ElementsAre(Pair("", "x"), Pair("format", "pt")));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, Dtype::kBF16);
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(header.tensors[1].name, "late");
  EXPECT_EQ(header.tensors[2].name, "b");
  EXPECT_THAT(header.tensors[2].shape, IsEmpty());
  EXPECT_EQ(header.tensors[2].end, 9U);
}

TEST(SafetensorsHeader, AcceptsTheReferencesLenientCases) {
  EXPECT_THAT(parse("{}").tensors, IsEmpty());
  EXPECT_THAT(parse(R"({"__metadata__":null})").metadata, IsEmpty());
  EXPECT_EQ(parse(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1).tensors.size(), 1U);
  EXPECT_EQ(
      parse(R"({"../../x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1).tensors[0].name,
      "../../x");
}

TEST(SafetensorsHeader, DoesNotAskForAlignment) {
  const SafetensorsHeader header = parse(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
      9);
  EXPECT_EQ(header.tensors[1].begin, 1U);
}

TEST(SafetensorsHeader, RefusesABadLength) {
  refuses_file("", "too short");
  refuses_file(length_field(2).substr(0, 7), "too short");
  refuses_file(length_field(0), "begins with {");
  refuses_file(length_field(3) + "{}", "claims 3 bytes");
  refuses_file(length_field(uint64_t{1} << 63) + "{}", "claims 9223372036854775808 bytes");
  refuses_file(length_field(~uint64_t{0}) + "{}", "claims");
  refuses_file(
      length_field(kMaxHeaderBytes + 1) + std::string(kMaxHeaderBytes + 1, ' '),
      "at most 100000000");
}

TEST(SafetensorsHeader, RefusesTextsThatAreNotJsonObjects) {
  refuses_header("[]", 0, "begins with {");
  refuses_header(" {}", 0, "begins with {");
  refuses_header("\xef\xbb\xbf{}", 0, "begins with {");
  refuses_header("null", 0, "begins with {");
  refuses_header("{", 0, "not valid JSON");
  refuses_header("{}{}", 0, "not valid JSON");
  refuses_header("{\"a\xff\":1}", 0, "not valid JSON");
  refuses_header("{} \xff", 0, "not valid JSON");
  refuses_header("{} x", 0, "not valid JSON");
  refuses_header("{,}", 0, "not valid JSON");
  refuses_header("{} // text", 0, "not valid JSON");
  refuses_header("{\"a\n\":1}", 0, "not valid JSON");
  refuses_header(R"({"\ud800":1})", 0, "not valid JSON");
  refuses_header(R"({"\x61":1})", 0, "not valid JSON");
  refuses_header(std::string("{}\0\0", 4), 0, "no NUL byte");
  refuses_header("{\"a\":" + std::string(8'000'000, '['), 0, "an array is not allowed");
  refuses_header("{\"a\":" + std::string(1'000'000, '{'), 0, "not valid JSON");
}

TEST(SafetensorsHeader, RefusesBadMetadata) {
  refuses_header(R"({"__metadata__":{"a":1}})", 0, "a number is not allowed");
  refuses_header(R"({"__metadata__":{"a":{}}})", 0, "an object is not allowed");
  refuses_header(R"({"__metadata__":{"a":null}})", 0, "null is not allowed");
  refuses_header(R"({"__metadata__":"x"})", 0, "a string is not allowed");
  refuses_header(R"({"__metadata__":[]})", 0, "an array is not allowed");
  refuses_header(R"({"__metadata__":{},"__metadata__":{}})", 0, "occurs twice");
  refuses_header(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "has the key \"a\" twice");
}

TEST(SafetensorsHeader, ReadsEveryByteSizedDtype) {
  const std::vector<std::pair<std::string, size_t>> dtypes = {
      {"BOOL", 1},
      {"U8", 1},
      {"I8", 1},
      {"F8_E5M2", 1},
      {"F8_E4M3", 1},
      {"F8_E8M0", 1},
      {"F8_E4M3FNUZ", 1},
      {"F8_E5M2FNUZ", 1},
      {"I16", 2},
      {"U16", 2},
      {"F16", 2},
      {"BF16", 2},
      {"I32", 4},
      {"U32", 4},
      {"F32", 4},
      {"C64", 8},
      {"F64", 8},
      {"I64", 8},
      {"U64", 8}};
  for (const auto& [name, bytes] : dtypes) {
    const std::string offsets = "[0," + std::to_string(3 * bytes) + "]";
    const SafetensorsHeader header = parse(one(name, "[3]", offsets), 3 * bytes);
    EXPECT_EQ(dtype_name(header.tensors[0].dtype), name);
    EXPECT_EQ(dtype_bytes(header.tensors[0].dtype), bytes) << name;
  }
}

TEST(SafetensorsHeader, RefusesDtypesThatShareBytesAndSaysWhy) {
  for (const char* name : {"F4", "F6_E2M3", "F6_E3M2"}) {
    refuses_header(one(name, "[4]", "[0,3]"), 3, "packs several elements into a byte");
  }
  for (const char* name : {"F6", "I4", "U4", "C128", "F128", "F8", "F8_E3M4", "U8 ", "\\u0000"}) {
    refuses_header(one(name, "[4]", "[0,4]"), 4, "is unknown");
  }
}

TEST(SafetensorsHeader, RefusesBadFields) {
  refuses_header(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "a field of the tensor is missing");
  refuses_header(R"({"a":{}})", 0, "a field of the tensor is missing");
  refuses_header(R"({"a":null})", 0, "null is not allowed");
  refuses_header(R"({"a":7})", 0, "a number is not allowed");
  refuses_header(R"({"a":["U8",[1],[0,1]]})", 1, "an array is not allowed");
  refuses_header(
      R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "occurs twice");
  refuses_header(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":1}})", 1, "is unknown");
  refuses_header(
      R"({"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}})",
      1,
      "an object is not allowed");
  refuses_header(one("f32", "[1]", "[0,4]"), 4, "is unknown");
  refuses_header(one("", "[1]", "[0,4]"), 4, "is unknown");
  refuses_header(one("U8", "[-1]", "[0,1]"), 1, "a negative number");
  refuses_header(one("U8", "[-0]", "[0,0]"), 0, "a negative number");
  refuses_header(one("U8", "[1.0]", "[0,1]"), 1, "not whole");
  refuses_header(one("U8", "[1e0]", "[0,1]"), 1, "not whole");
  refuses_header(one("U8", "[true]", "[0,1]"), 1, "a boolean");
  refuses_header(one("U8", "[[1]]", "[0,1]"), 1, "an array");
  refuses_header(one("U8", "1", "[0,1]"), 1, "a number");
  refuses_header(one("U8", "[1]", "[0]"), 1, "1 numbers");
  refuses_header(one("U8", "[1]", "[]"), 1, "0 numbers");
  refuses_header(one("U8", "[1]", "[0,1,2]"), 1, "a number is not allowed");
  refuses_header(one("U8", "[1]", R"(["0","1"])"), 1, "a string");
}

TEST(SafetensorsHeader, RefusesNumbersThatOverflow) {
  refuses_header(one("U8", "[18446744073709551616]", "[0,1]"), 1, "too large");
  refuses_header(one("U8", "[9223372036854775808]", "[0,1]"), 1, "too large");
  refuses_header(one("U8", "[4294967296,4294967296]", "[0,0]"), 0, "too many elements");
  refuses_header(one("F32", "[4611686018427387904]", "[0,0]"), 0, "too many elements");
  refuses_header(one("F32", "[0,4611686018427387904,8]", "[0,0]"), 0, "too many elements");
  refuses_header(one("U8", "[0,1152921504606846976]", "[0,0]"), 0, "too many elements");
  EXPECT_EQ(parse(one("U8", "[0,1152921504606846975]", "[0,0]")).tensors.size(), 1U);
  refuses_header(one("U8", "[1]", "[18446744073709551615,0]"), 1, "gap or overlaps");
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) {
    ones += ",1";
  }
  refuses_header(one("U8", ones + "]", "[0,1]"), 1, "more than 64 dimensions");
}

TEST(SafetensorsHeader, RefusesDataThatDoesNotBelongToExactlyOneTensor) {
  EXPECT_EQ(parse(two("[4,8]", "[0,4]"), 8).tensors.size(), 2U);
  refuses_header(two("[0,4]", "[3,7]"), 7, "gap or overlaps");
  refuses_header(two("[0,4]", "[5,9]"), 9, "gap or overlaps");
  refuses_header(two("[0,4]", "[0,4]"), 4, "gap or overlaps");
  refuses_header(two("[1,5]", "[5,9]"), 9, "gap or overlaps");
  refuses_header(one("U8", "[1]", "[1,0]"), 1, "gap or overlaps");
  refuses_header(two("[0,4]", "[4,8]"), 7, "is truncated");
  refuses_header(two("[0,4]", "[4,8]"), 9, "extra bytes");
  refuses_header("{}", 1, "extra bytes");
  refuses_header(one("F32", "[2]", "[0,7]"), 7, "got 7 bytes, expected 8 for its shape of F32");
  refuses_header(one("F32", "[0]", "[0,4]"), 4, "got 4 bytes, expected 0");
}

TEST(SafetensorsHeader, RefusesANameGivenTwiceEvenWithEqualData) {
  refuses_header(
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
      R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
      0,
      "name \"a\" occurs twice");
  refuses_header(
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
      R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
      0,
      "name \"a\" occurs twice");
}

TEST(SafetensorsHeader, KeepsHostileNamesOutOfMessages) {
  const std::string name = "\\n\\u001b[31m" + std::string(100'000, 'x');
  try {
    parse("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4);
    FAIL() << "was accepted";
  } catch (const CheckpointError& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 500U);
    EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos);
  }
}

TEST(SafetensorsHeader, RoundTripsThroughItsText) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"a\n", "\x07 größe"}};
  header.tensors = {
      {"x", Dtype::kF32, {2, 3}, 0, 24},
      {"\"\\", Dtype::kBool, {}, 24, 25},
      {"none", Dtype::kBool, {0}, 25, 25}};
  const std::string bytes = render_safetensors_header("f", header);
  EXPECT_EQ(bytes.size() % 8, 0U);
  const SafetensorsHeader back = parse_safetensors_header("f", bytes + std::string(25, 'd'));
  EXPECT_EQ(back.data_begin, bytes.size());
  EXPECT_EQ(back.metadata, header.metadata);
  ASSERT_EQ(back.tensors.size(), 3U);
  EXPECT_EQ(back.tensors[1].name, "\"\\");
  EXPECT_EQ(back.tensors[1].begin, 24U);
}

TEST(SafetensorsHeader, DoesNotRenderInvalidHeaders) {
  SafetensorsHeader header;
  header.tensors = {{"\xff", Dtype::kU8, {0}, 0, 0}};
  EXPECT_THAT(
      [&] { render_safetensors_header("f", header); },
      ThrowsMessage<CheckpointError>(HasSubstr("not UTF-8")));
  for (const char* taken : {"a", "__metadata__"}) {
    header.tensors = {{"a", Dtype::kU8, {0}, 0, 0}, {taken, Dtype::kU8, {0}, 0, 0}};
    EXPECT_THAT(
        [&] { render_safetensors_header("f", header); },
        ThrowsMessage<CheckpointError>(HasSubstr("used twice or reserved")));
  }
  header.tensors = {{std::string(kMaxHeaderBytes, 'x'), Dtype::kU8, {0}, 0, 0}};
  EXPECT_THAT(
      [&] { render_safetensors_header("f", header); },
      ThrowsMessage<CheckpointError>(HasSubstr("expected at most 100000000")));
}

}  // namespace
}  // namespace lockstep::storage
