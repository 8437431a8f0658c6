// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/plain_reason.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

TEST(PlainReason, HasNoPathsAddressesOfSourcesNorAdvice) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
       "[10.0.0.2]:52100. This may indicate a bug in the application. GLHF! \xF0\x9F\x8F\x96",
       "the connection to 10.0.0.2 was closed"},
      {"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [fe80::1]:81: Connection "
       "reset by peer",
       "the connection to fe80::1 was reset"},
      {"[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation "
       "to complete",
       "a connection delivered no data in time"},
      {"[enforce fail at ../gloo/allreduce.cc:22] elements > 0. Something\nframe #0: x",
       "elements > 0"},
      {"The client socket has failed to connect to any network address of (node7, 29500). Retry",
       "The client socket has failed to connect to any network address of (node7, 29500)"}};
  for (const auto& [text, expected] : texts) {
    EXPECT_EQ(plain_reason(text), expected);
  }
}

TEST(PlainReason, NamesTheRankIfItIsKnown) {
  EXPECT_EQ(
      plain_reason("[pair.cc:547] Connection closed by peer [10.0.0.2]:52100", 3),
      "the connection to rank 3 at 10.0.0.2 was closed");
  EXPECT_EQ(
      plain_reason("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv", 3),
      "the connection to rank 3 delivered no data in time");
}

}  // namespace
}  // namespace lockstep::comm
