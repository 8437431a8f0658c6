// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hierarchy/ranks_by_host.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::vector<int>> hosts_of(const RanksByHost& by_host) {
  std::vector<std::vector<int>> hosts;
  for (int host = 0; host < by_host.hosts(); ++host) {
    hosts.push_back(by_host.ranks_of(host));
  }
  return hosts;
}

RankLocation at(uint64_t machine, int64_t local_rank, int64_t local_size) {
  return {
      .machine = machine,
      .token = machine * 100 + static_cast<uint64_t>(local_rank),
      .local_rank = local_rank,
      .local_size = local_size};
}

TEST(RanksByHost, RanksOfOneMachineAreAHost) {
  const RanksByHost by_host = RanksByHost::of({at(7, 0, 2), at(7, 1, 2), at(3, 0, 2), at(3, 1, 2)});
  EXPECT_THAT(hosts_of(by_host), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_TRUE(by_host.equal());
  EXPECT_EQ(by_host.largest(), 2);
  EXPECT_EQ(by_host.size(), 4);
  EXPECT_EQ(by_host.host_of(2), 1);
  EXPECT_EQ(by_host.index_of(2), 0);
  EXPECT_EQ(by_host.index_of(3), 1);
}

TEST(RanksByHost, RanksMayBeDealtOutRoundRobin) {
  const RanksByHost by_host = RanksByHost::of({at(1, 0, 2), at(2, 0, 2), at(1, 1, 2), at(2, 1, 2)});
  EXPECT_THAT(hosts_of(by_host), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(RanksByHost, TwoLaunchersOnOneMachineAreTwoHosts) {
  EXPECT_THAT(
      hosts_of(RanksByHost::of({at(1, 0, 2), at(1, 1, 2), at(1, 0, 2), at(1, 1, 2)})),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(
      hosts_of(RanksByHost::of({at(1, 0, 2), at(1, 0, 2), at(1, 1, 2), at(1, 1, 2)})),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(RanksByHost, HostsMayHaveDifferentNumbersOfRanks) {
  const RanksByHost by_host =
      RanksByHost::of({at(1, 0, 1), at(1, 0, 3), at(1, 1, 3), at(1, 2, 3), at(2, 0, 1)});
  EXPECT_THAT(hosts_of(by_host), ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4)));
  EXPECT_FALSE(by_host.equal());
  EXPECT_EQ(by_host.largest(), 3);
}

TEST(RanksByHost, AHostWhoseRanksCannotShareMemoryIsRefusedByName) {
  try {
    RanksByHost::of({at(1, 0, 2), at(1, 1, 2), at(2, 0, 2), at(3, 1, 2)});
    FAIL() << "ranks 2 and 3 are in two containers";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 cannot share memory with other"));
    EXPECT_THAT(error.what(), HasSubstr("got 1 ranks, expected 2"));
  }
}

TEST(RankLocation, NameOneMachineButNoProcessTwice) {
  WorldSpec world;
  world.local_rank = 1;
  world.local_size = 4;
  const RankLocation one = RankLocation::of(world);
  const RankLocation other = RankLocation::of(world);
  EXPECT_EQ(one.machine, other.machine);
  EXPECT_NE(one.token, other.token);
  EXPECT_EQ(one.local_rank, 1);
  EXPECT_EQ(one.local_size, 4);
}

}  // namespace
}  // namespace lockstep::comm
