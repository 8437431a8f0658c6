// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/peer_addresses.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

ListenAddress at(std::string_view host, int32_t port) {
  ListenAddress address;
  host.copy(address.host.data(), address.host.size() - 1);
  address.port = port;
  return address;
}

// 34629 is 0x8745, and 17799 is 0x4587.
TEST(PeerAddresses, FindTheRankWhetherItListenedOrConnected) {
  const PeerAddresses peers(
      {at("10.0.0.1", 9), at("10.0.0.2", 34629), at("fe80::1", 0x0100)}, {0, 0x0200, 0});
  EXPECT_EQ(peers.rank_in("Connection closed by peer [10.0.0.2]:17799. This is"), 1);
  EXPECT_EQ(peers.rank_in("Read error [10.0.0.2]:2: Connection reset by peer"), 1);
  EXPECT_EQ(peers.rank_in("Connection closed by peer [fe80::1]:1"), 2);
}

TEST(PeerAddresses, FindNoneInOtherTexts) {
  const PeerAddresses peers({at("10.0.0.1", 0x0100), at("10.0.0.2", 0)}, {0, 0});
  EXPECT_EQ(peers.rank_in("Connection closed by peer [10.0.0.1]:17"), -1) << "port 1 begins it";
  EXPECT_EQ(peers.rank_in("Connection closed by peer [10.0.0.2]:0"), -1) << "not known";
  EXPECT_EQ(peers.rank_in("Timed out"), -1);
  EXPECT_EQ(PeerAddresses().rank_in("[10.0.0.1]:1"), -1);
}

}  // namespace
}  // namespace lockstep::comm
