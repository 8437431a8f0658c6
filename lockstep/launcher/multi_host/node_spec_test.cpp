// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_spec.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

TEST(NodeSpec, CarriesAnyBytesInALineOfAscii) {
  std::string bytes;
  for (int byte = 1; byte < 256; ++byte) {
    bytes += static_cast<char>(byte);
  }
  NodeSpec spec;
  spec.token = "0123456789abcdef";
  spec.command = {"./train", bytes, "\xc3\xa9"};
  spec.folder = "/data/\xe9";
  spec.options.env = {{"NAME", bytes}};
  spec.options.log_dir = bytes;
  spec.hosts = {{.name = "node7", .slots = {0, 2}, .all_slots = true, .first_rank = 4}};
  const std::string line = line_of(spec);
  EXPECT_TRUE(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  const NodeSpec read = node_spec_of(line);
  EXPECT_EQ(read.command, spec.command);
  EXPECT_EQ(read.folder, spec.folder);
  EXPECT_EQ(read.options.env[0].value, bytes);
  EXPECT_EQ(read.options.log_dir, bytes);
  EXPECT_EQ(read.hosts[0].name, "node7");
  EXPECT_EQ(read.hosts[0].slots, spec.hosts[0].slots);
}

TEST(NodeSpec, OfAnotherBuildIsRefused) {
  for (const char* const line : {"", "{}", "{\"token\": \"x\"}", "[1]", "signal 15"}) {
    EXPECT_THAT(
        [line] { node_spec_of(line); },
        testing::ThrowsMessage<ConfigError>(testing::HasSubstr("another build")))
        << line;
  }
}

}  // namespace
}  // namespace lockstep::launcher
