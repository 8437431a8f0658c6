// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/message_connection.h"

#include <memory>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/host/address.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

/// A TCP connection within this process; links set options that only TCP has.
std::pair<UniqueFd, UniqueFd> tcp_connection() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address any = loopback(0);
  EXPECT_EQ(::bind(listener.get(), any.get(), any.length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address address = own_address(listener.get());
  EXPECT_EQ(::connect(one.get(), address.get(), address.length), 0);
  return {
      std::move(one),
      UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
}

struct ReceivedSignal {
  std::vector<Json> messages;
  std::string end;
};

std::unique_ptr<MessageConnection> link(
    Reactor& reactor, UniqueFd fd, ReceivedSignal& heard, std::string read = "") {
  return std::make_unique<MessageConnection>(
      reactor,
      std::move(fd),
      std::move(read),
      [&](const Json& message) { heard.messages.push_back(message); },
      [&](const std::string& why) { heard.end = why; });
}

template <typename Done>
void run_until(Reactor& reactor, const Done& done) {
  while (!done()) {
    reactor.wait(1s);
    reactor.dispatch();
  }
}

TEST(MessageConnection, CarriesMessagesOfAnySize) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  ReceivedSignal at_a;
  ReceivedSignal at_b;
  const auto link_a = link(reactor, std::move(a), at_a);
  const auto link_b = link(reactor, std::move(b), at_b, "{\"early\": 1}\n");
  const Json large = {{"text", std::string(3'000'000, 'x') + "\n\xff"}};
  link_a->send({{"n", 1}});
  link_a->send(large);
  link_a->send({{"n", 3}});
  link_b->send({{"back", true}});
  run_until(reactor, [&] { return at_b.messages.size() == 4 && at_a.messages.size() == 1; });
  EXPECT_EQ(at_b.messages[0], Json({{"early", 1}}));
  EXPECT_EQ(at_b.messages[1], Json({{"n", 1}}));
  EXPECT_EQ(at_b.messages[2].at("text").get<std::string>().size(), 3'000'004U);  // U+FFFD for \xff.
  EXPECT_EQ(at_b.messages[3], Json({{"n", 3}}));
}

TEST(MessageConnection, ReportsAClosedPeer) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  ReceivedSignal heard;
  const auto kept = link(reactor, std::move(b), heard);
  a.reset();
  run_until(reactor, [&] { return !heard.end.empty(); });
  EXPECT_EQ(heard.end, "it closed the connection");
  kept->send({{"too", "late"}});
}

/// The other end is not read: its process is stopped, and its kernel answers.
TEST(MessageConnection, ReportsASilentPeer) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  ReceivedSignal heard;
  const auto kept = link(reactor, std::move(b), heard);
  double silent_seconds = 0;
  kept->start_heartbeat(0.1, [&](double seconds) { silent_seconds = seconds; });
  run_until(reactor, [&] { return silent_seconds > 0; });
  EXPECT_GE(silent_seconds, 2) << "shorter ones are no sign of anything";
  EXPECT_EQ(heard.end, "");
}

TEST(MessageConnection, IsNotSilentWhileTheOtherSideRunsOrIsPaused) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  auto [c, d] = tcp_connection();
  ReceivedSignal heard;
  const auto link_a = link(reactor, std::move(a), heard);
  const auto link_b = link(reactor, std::move(b), heard);
  const auto held = link(reactor, std::move(c), heard);
  for (const auto* each : {&link_a, &link_b, &held}) {
    (*each)->start_heartbeat(0.1, [](double /*seconds*/) { FAIL(); });
  }
  held->pause_heartbeat(true);
  const auto end = Clock::now() + 3s;
  run_until(reactor, [&] { return Clock::now() >= end; });
  EXPECT_TRUE(heard.messages.empty()) << "heartbeats are no messages";
}

TEST(MessageConnection, EndsAtAnInvalidMessage) {
  for (const std::string text : {"[1]\n", "hello\n", "{\n"}) {
    Reactor reactor;
    auto [a, b] = tcp_connection();
    ReceivedSignal heard;
    const auto kept = link(reactor, std::move(b), heard);
    ASSERT_GT(::send(a.get(), text.data(), text.size(), 0), 0);
    run_until(reactor, [&] { return !heard.end.empty(); });
    EXPECT_EQ(heard.end, "it sent an invalid message");
  }
}

TEST(MessageConnection, EndsAtAMessageThatItsReaderCannotUse) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  std::string end;
  MessageConnection reader(
      reactor,
      std::move(b),
      "{\"n\": \"text\"}\n",
      [](const Json& message) { message.at("n").get<int>(); },
      [&](const std::string& why) { end = why; });
  run_until(reactor, [&] { return !end.empty(); });
}

TEST(MessageConnection, MayBeDestroyedByItsMessage) {
  Reactor reactor;
  auto [a, b] = tcp_connection();
  std::unique_ptr<MessageConnection> link;
  int heard = 0;
  link = std::make_unique<MessageConnection>(
      reactor,
      std::move(b),
      "{}\n{}\n",
      [&](const Json& /*message*/) {
        ++heard;
        link.reset();
      },
      [](const std::string& /*why*/) { FAIL(); });
  run_until(reactor, [&] { return heard > 0; });
  reactor.dispatch();
  EXPECT_EQ(heard, 1);
}

}  // namespace
}  // namespace lockstep::launcher
