// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/file/protobuf_wire.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::tracking {
namespace {

std::string bytes(std::initializer_list<int> values) {
  std::string result;
  for (int value : values) {
    result += static_cast<char>(value);
  }
  return result;
}

// The examples of protobuf.dev/programming-guides/encoding.
TEST(ProtobufWriter, WritesTheExamplesOfTheSpecification) {
  EXPECT_EQ(ProtobufWriter().varint(1, 150).written(), bytes({0x08, 0x96, 0x01}));
  EXPECT_EQ(ProtobufWriter().bytes(2, "testing").written(), bytes({0x12, 0x07}) + "testing");
  EXPECT_EQ(
      ProtobufWriter().message(3, ProtobufWriter().varint(1, 150)).written(),
      bytes({0x1a, 0x03, 0x08, 0x96, 0x01}));
  EXPECT_EQ(
      ProtobufWriter().varint(1, -2).written(),
      bytes({0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}));
}

TEST(ProtobufWriter, WritesVarintsAtTheirEdges) {
  EXPECT_EQ(ProtobufWriter().varint(1, 0).written(), bytes({0x08, 0x00}));
  EXPECT_EQ(ProtobufWriter().varint(1, 127).written(), bytes({0x08, 0x7f}));
  EXPECT_EQ(ProtobufWriter().varint(1, 128).written(), bytes({0x08, 0x80, 0x01}));
  EXPECT_EQ(
      ProtobufWriter().varint(1, std::numeric_limits<int64_t>::max()).written(),
      bytes({0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}));
}

TEST(ProtobufWriter, WritesNumbersLittleEndian) {
  EXPECT_EQ(ProtobufWriter().number(1, 1.0).written(), bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f}));
  EXPECT_EQ(ProtobufWriter().number(2, 1.0F).written(), bytes({0x15, 0, 0, 0x80, 0x3f}));
}

TEST(ProtobufWriter, FieldNumbersPastFifteenTakeTwoBytes) {
  EXPECT_EQ(ProtobufWriter().varint(16, 1).written(), bytes({0x80, 0x01, 0x01}));
}

TEST(ProtobufWriter, KeepsTheOrderOfItsCalls) {
  EXPECT_EQ(
      ProtobufWriter().varint(2, 1).bytes(1, "").varint(2, 2).written(),
      bytes({0x10, 0x01, 0x0a, 0x00, 0x10, 0x02}));
}

TEST(ProtobufReader, ReadsWhatTheWriterWrote) {
  const std::string message = ProtobufWriter()
                                  .varint(1, -2)
                                  .number(16, 0.5F)
                                  .number(3, 1.0)
                                  .bytes(4, "testing")
                                  .message(5, ProtobufWriter().varint(1, 150))
                                  .written();
  ProtobufReader reader(message);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.field(), 1U);
  EXPECT_EQ(reader.varint(), -2);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.field(), 16U);
  EXPECT_EQ(reader.single(), 0.5F);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.field(), 3U);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.bytes(), "testing");
  ASSERT_TRUE(reader.next());
  ProtobufReader inner(reader.bytes());
  ASSERT_TRUE(inner.next());
  EXPECT_EQ(inner.varint(), 150);
  EXPECT_FALSE(inner.next());
  EXPECT_FALSE(reader.next());
}

TEST(ProtobufReader, EndsAtBytesThatAreNoField) {
  const std::string whole = ProtobufWriter().bytes(1, "testing").number(2, 1.0).written();
  for (size_t size = 0; size < whole.size(); ++size) {
    ProtobufReader reader(std::string_view(whole).substr(0, size));
    int fields = 0;
    while (reader.next()) {
      ++fields;
    }
    EXPECT_EQ(fields, size < 9 ? 0 : 1) << size;
  }
  for (const std::string& wrong : {bytes({0x0b}), bytes({0x80}), std::string(11, '\xff')}) {
    EXPECT_FALSE(ProtobufReader(wrong).next());
  }
}

}  // namespace
}  // namespace lockstep::tracking
