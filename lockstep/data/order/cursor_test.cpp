// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/cursor.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Cursor parse(const std::string& text) {
  return nlohmann::json::parse(text).get<Cursor>();
}

TEST(Cursor, SurvivesJson) {
  const Cursor cursor{
      .seed = std::numeric_limits<uint64_t>::max(),
      .epoch = 3,
      .batches = std::numeric_limits<int64_t>::max(),
      .first_sample = 24};
  EXPECT_EQ(parse(nlohmann::json(cursor).dump()), cursor);
}

TEST(Cursor, AcceptsNumbersThatCodeAssigned) {
  const nlohmann::json json = {{"seed", 7}, {"epoch", 2}, {"batches", 118}, {"first_sample", 64}};
  EXPECT_EQ(
      json.get<Cursor>(), (Cursor{.seed = 7, .epoch = 2, .batches = 118, .first_sample = 64}));
}

TEST(Cursor, RefusesUnknownFields) {
  const auto refuses = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { parse(text); }, ThrowsMessage<ConfigError>(HasSubstr(why))) << text;
  };
  refuses(R"({"seed": 1, "epoch": 2, "first_sample": 0})", "key 'batches' is missing");
  refuses(R"({"seed": 1, "epoch": 2, "batches": 3})", "key 'first_sample' is missing");
  refuses(
      R"({"seed": 1, "epoch": 2, "batches": 3, "first_sample": -8})",
      "'first_sample' is out of range; got -8");
  refuses(R"({"seed": 1, "epoch": 2, "batches": 3, "step": 4})", "unknown key 'step'");
  refuses(R"({"seed": -1, "epoch": 2, "batches": 3})", "'seed' is out of range; got -1");
  refuses(R"({"seed": 1, "epoch": 2.5, "batches": 3})", "'epoch' is out of range; got 2.5");
  refuses(R"({"seed": 1, "epoch": 2, "batches": "3"})", "'batches' is out of range; got \"3\"");
  refuses(R"({"seed": 1, "epoch": 9223372036854775808, "batches": 3})", "'epoch' is out of range");
  refuses(R"([1, 2, 3])", "expected an object");
}

}  // namespace
}  // namespace lockstep::data
