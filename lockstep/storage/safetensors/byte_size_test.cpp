// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/byte_size.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::storage {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ByteSize, IsReadAsHuggingfaceHubReadsIt) {
  std::ifstream golden(LOCKSTEP_SOURCE_DIR "/tests/golden/model_shards.json");
  const auto sizes = nlohmann::json::parse(golden).at("sizes");
  for (const auto& [text, bytes] : sizes.items()) {
    EXPECT_EQ(parse_bytes("limit", text), bytes.get<uint64_t>()) << text;
  }
}

TEST(ByteSize, NeedsNoUnit) {
  EXPECT_EQ(parse_bytes("limit", "1234"), 1234U);
  EXPECT_EQ(parse_bytes("limit", "12 B"), 12U);
}

TEST(ByteSize, RefusesInvalidSizes) {
  for (const char* text :
       {"",
        "GB",
        "5XB",
        "5GiB",
        "five",
        "-5GB",
        "0",
        "0GB",
        "0.1",
        "nan",
        "inf GB",
        "1e30TB",
        "5GB5",
        "5 5GB",
        "0x5GB"}) {
    EXPECT_THAT(
        [&] { parse_bytes("--max-shard-size", text); },
        ThrowsMessage<ConfigError>(HasSubstr("[--max-shard-size] is not a size; got")))
        << text;
  }
}

TEST(ByteSize, IsShownWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(1234567), "1.23 MB");
  EXPECT_EQ(format_bytes(9'994'999), "9.99 MB");
  EXPECT_EQ(format_bytes(9'996'000), "10.0 MB");
  EXPECT_EQ(format_bytes(99'960'000), "100 MB");
  EXPECT_EQ(format_bytes(999'499'999), "999 MB");
  EXPECT_EQ(format_bytes(999'500'000), "1.00 GB");
  EXPECT_EQ(format_bytes(5'000'000'000'000), "5.00 TB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "18.4 EB");
}

}  // namespace
}  // namespace lockstep::storage
