// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/flat_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep::tracking {
namespace {

using nlohmann::json;

TEST(FlatConfig, IsOneLevelDeepAndPlain) {
  const json config = {
      {"lr", 0.1},
      {"optimizer", {{"name", "sgd"}, {"betas", {0.9, 0.999}}, {"decay", {{"rate", 2}}}}},
      {"amp", false},
      {"none", nullptr},
      {"empty", json::object()}};
  EXPECT_EQ(
      flat_config(config),
      (json{
          {"lr", 0.1},
          {"optimizer.name", "sgd"},
          {"optimizer.betas", "[0.9,0.999]"},
          {"optimizer.decay.rate", 2},
          {"amp", false},
          {"none", "null"}}));
  EXPECT_EQ(flat_config(json::object()), json::object());
}

}  // namespace
}  // namespace lockstep::tracking
