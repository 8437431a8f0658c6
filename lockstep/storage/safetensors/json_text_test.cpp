// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/json_text.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

void refuses_json(const std::string& text, const std::string& why) {
  expect_refused([&] { parse_json("state.json", text); }, "[state.json]", why);
}

Json nested(int depth) {
  Json value = 1;
  for (int i = 0; i < depth; ++i) {
    value = Json::array({std::move(value)});
  }
  return value;
}

TEST(JsonText, KeepsEveryBitOfEveryNumber) {
  const Json value = {
      {"largest", std::numeric_limits<uint64_t>::max()},
      {"smallest", std::numeric_limits<int64_t>::min()},
      {"third", 1.0 / 3},
      {"denormal", 5e-324},
      {"minus zero", -0.0},
      {"huge", std::numeric_limits<double>::max()},
      {"text", "größe \x07 \"quoted\" \\"},
      {"nothing", nullptr}};
  const Json back = parse_json("x", render_json("x", value));
  EXPECT_EQ(back, value);
  EXPECT_TRUE(std::signbit(back["minus zero"].get<double>()));
}

TEST(JsonText, RefusesToWriteValuesThatWouldChange) {
  const auto cannot_write = [](const Json& value, const std::string& why) {
    expect_refused([&] { render_json("state.json", value); }, "[state.json]", why);
  };
  cannot_write({{"a", {1.0, std::numeric_limits<double>::infinity()}}}, "\"/a/1\"");
  cannot_write({{"a", std::numeric_limits<double>::quiet_NaN()}}, "infinite or NaN");
  cannot_write(Json::binary({1, 2}), "binary");
  cannot_write("\xff", "UTF-8");
  cannot_write(nested(kMaxJsonDepth + 1), "too deep");
}

TEST(JsonText, RefusesTextsThatReadersInterpretDifferently) {
  refuses_json(R"({"a": 1, "b": {"a": 1, "c": 2, "c": 2}})", "has the key \"c\" twice");
  refuses_json(std::string("{}\0", 3), "NUL");
  refuses_json("{} {}", "not valid JSON");
  refuses_json("", "not valid JSON");
  refuses_json("[1e999]", "not valid JSON");
  refuses_json("\"\xff\"", "not valid JSON");
}

TEST(JsonText, StopsAtTheDepthItWrites) {
  EXPECT_EQ(parse_json("x", render_json("x", nested(kMaxJsonDepth))), nested(kMaxJsonDepth));
  refuses_json(nested(kMaxJsonDepth + 1).dump(), "is nested deeper than 64");
  refuses_json(std::string(1 << 20, '['), "is nested deeper than 64");
}

TEST(JsonText, AnOutlineListsFlatMembersAndChecksTheRest) {
  EXPECT_EQ(
      parse_json_outline(
          "f", R"({"a": [1, {"a": 2}], "b": 3, "c": {"d": 4}, "e": "x", "f": null})"),
      (Json{{"b", 3}, {"e", "x"}, {"f", nullptr}}));
  EXPECT_THROW(parse_json_outline("f", R"({"a": [1, {"b": 2, "b": 3}]})"), CheckpointError);
  EXPECT_THROW(parse_json_outline("f", R"({"a": [1, })"), CheckpointError);
  EXPECT_THROW(
      parse_json_outline("f", std::string(100, '[') + std::string(100, ']')), CheckpointError);
}

}  // namespace
}  // namespace lockstep::storage
