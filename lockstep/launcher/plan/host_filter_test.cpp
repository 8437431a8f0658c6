// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/host_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<Host> kHosts = {{"node1", 4}, {"node2", 2}, {"me@::1", 1}};

/// "node1:0,1 node2:0".
std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts) {
    text += (text.empty() ? "" : " ") + host.name;
    for (size_t i = 0; i < host.slots.size(); ++i) {
      text += (i == 0 ? ":" : ",") + std::to_string(host.slots[i]);
    }
  }
  return text;
}

std::string include(const std::string& text) {
  return text_of(filter_hosts(kHosts, text, "", 0));
}

std::string exclude(const std::string& text) {
  return text_of(filter_hosts(kHosts, "", text, 0));
}

TEST(FilterHosts, KeepsAllWithoutAFilter) {
  EXPECT_EQ(include(""), "node1:0,1,2,3 node2:0,1 me@::1:0");
}

TEST(FilterHosts, IncludesHostsAndSlotsInTheHostfilesOrder) {
  EXPECT_EQ(include("node2"), "node2:0,1");
  EXPECT_EQ(include("node2@node1:3,1,1"), "node1:1,3 node2:0,1");
  EXPECT_EQ(include("node1:0@node1:2"), "node1:0,2");
  EXPECT_EQ(include("me@::1"), "me@::1:0");
  EXPECT_EQ(include("me@::1:0@node2:1"), "node2:1 me@::1:0");
}

TEST(FilterHosts, ANameWithAndWithoutSlotsSelectsTheSlotsAsInDeepSpeed) {
  EXPECT_EQ(include("node1:1@node1"), "node1:1");
  EXPECT_EQ(include("node1@node1:1,2@node2"), "node1:1,2 node2:0,1");
  EXPECT_EQ(exclude("node1:1@node1"), "node1:0,2,3 node2:0,1 me@::1:0");
}

TEST(FilterHosts, ExcludesHostsAndSlots) {
  EXPECT_EQ(exclude("node1"), "node2:0,1 me@::1:0");
  EXPECT_EQ(exclude("node1:0,2@node2:0,1"), "node1:1,3 me@::1:0");
}

TEST(FilterHosts, SaysWhetherAllSlotsAreUsed) {
  const auto hosts = filter_hosts(kHosts, "node1:0,1@node2:0,1", "", 0);
  EXPECT_FALSE(hosts[0].all);
  EXPECT_TRUE(hosts[1].all);
}

TEST(FilterHosts, TakesTheFirstHosts) {
  EXPECT_EQ(text_of(filter_hosts(kHosts, "", "", 2)), "node1:0,1,2,3 node2:0,1");
  EXPECT_THAT(
      [] { filter_hosts(kHosts, "", "", 4); },
      ThrowsMessage<ConfigError>(
          HasSubstr("--num-nodes 4 is more than the 3 hosts of the hostfile")));
}

TEST(FilterHosts, RefusesMissingOnes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"node3x", "names host 'node3x', which the hostfile does not have; did you mean"},
      {"nod1", "did you mean 'node1'?"},
      {"node1:4", "names slot '4' of node1, which has 4 slots; expected numbers from 0 to 3"},
      {"node1:-1", "names slot '-1'"},
      {"node1:a", "names slot 'a'"},
      {"node1:", "names slot ''"},
      {"node1:0,", "names slot ''"},
      {"node1:0:1", "names slot '0:1'"},
      {"@node1", "has an empty host name"},
      {"node1@", "ends with '@'"},
      {"node1@@node2", "has an empty host name"},
      {"node12", "names host 'node12'"}};
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(
        ([&, &text = text] { include(text); }), ThrowsMessage<ConfigError>(HasSubstr(message)))
        << text;
  }
  EXPECT_THAT(
      [] { exclude("node1@node2@me@::1"); },
      ThrowsMessage<ConfigError>(HasSubstr("leaves no host")));
}

TEST(FilterHosts, TakesOneFilterAtATime) {
  EXPECT_THAT(
      [] { filter_hosts(kHosts, "node1", "node2", 0); },
      ThrowsMessage<ConfigError>(HasSubstr("both given")));
  EXPECT_THAT(
      [] { filter_hosts(kHosts, "node1", "", 1); },
      ThrowsMessage<ConfigError>(HasSubstr("--num-nodes contradicts")));
}

}  // namespace
}  // namespace lockstep::launcher
