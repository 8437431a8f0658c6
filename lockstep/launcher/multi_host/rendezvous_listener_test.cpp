// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/rendezvous_listener.h"

#include <memory>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/launcher/multi_host/rendezvous_client.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr const char* kToken = "0123456789abcdef";

/// A listener at loopback, and the accepted connections.
class RendezvousListenerTest : public testing::Test {
 protected:
  struct Came {
    std::string purpose;
    UniqueFd socket;
    std::string read;
  };

  /// Runs until `done`; fails after a timeout.
  template <typename Done>
  bool run_until(const Done& done, std::chrono::seconds limit = 20s) {
    const auto end = Clock::now() + limit;
    while (!done() && Clock::now() < end) {
      reactor_.wait(50ms);
      reactor_.dispatch();
    }
    return done();
  }

  UniqueFd connect() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Address address = loopback(listener_.port());
    EXPECT_EQ(::connect(fd.get(), address.get(), address.length), 0);
    return fd;
  }

  static void say(const UniqueFd& fd, const std::string& text) {
    ASSERT_EQ(::send(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

  /// Returns the listener's answer, until it closes the connection or has sent `bytes`.
  std::string hear(const UniqueFd& fd, size_t bytes = 1000) {
    std::string text;
    bool closed = false;
    run_until([&] {
      char buffer[100];
      const ssize_t got =
          ::recv(fd.get(), buffer, std::min(sizeof(buffer), bytes - text.size()), MSG_DONTWAIT);
      if (got > 0) {
        text.append(buffer, static_cast<size_t>(got));
      }
      closed = got == 0 || (got < 0 && errno != EAGAIN);
      return closed || text.size() == bytes;
    });
    return closed ? text + "|" : text;
  }

  std::unique_ptr<RendezvousClient> client(
      const std::string& token,
      RendezvousClient::Answer& answer,
      bool& answered,
      std::chrono::seconds limit) {
    return std::make_unique<RendezvousClient>(
        reactor_,
        std::vector<Address>{loopback(listener_.port())},
        token,
        "control 1",
        Clock::now() + limit,
        [&](RendezvousClient::Answer given) {
          answer = std::move(given);
          answered = true;
        });
  }

  Reactor reactor_;
  std::vector<Came> came_;
  std::vector<std::string> refused_;
  RendezvousListener listener_{
      reactor_,
      loopback(0),
      kToken,
      [this](const std::string& purpose, UniqueFd socket, std::string read) {
        came_.push_back({purpose, std::move(socket), std::move(read)});
      },
      [this](const std::string& text) { refused_.push_back(text); }};
};

TEST_F(RendezvousListenerTest, AcceptsAHostWithTheToken) {
  const UniqueFd fd = connect();
  say(fd, std::string("LOCKSTEP1 ") + kToken);
  say(fd, " store\nand more");
  EXPECT_EQ(hear(fd, 3), "OK\n");
  ASSERT_EQ(came_.size(), 1U);
  EXPECT_EQ(came_[0].purpose, "store");
  EXPECT_EQ(came_[0].read, "and more");
  EXPECT_TRUE(refused_.empty());
}

TEST_F(RendezvousListenerTest, TurnsAwayAnotherToken) {
  for (const std::string token : {"0123456789abcdee", "0123456789abcdef0", "", "x"}) {
    const UniqueFd fd = connect();
    say(fd, "LOCKSTEP1 " + token + " store\n");
    EXPECT_EQ(hear(fd), "NO this job has another token\n|") << token;
  }
  EXPECT_TRUE(came_.empty());
  ASSERT_EQ(refused_.size(), 1U);  // Not a line for each.
  EXPECT_THAT(refused_[0], HasSubstr("from 127.0.0.1: it has another token"));
}

TEST_F(RendezvousListenerTest, TurnsAwayGarbageAtItsFirstWrongByte) {
  for (const std::string text :
       {"GET / HTTP/1.1\r\n", "L0", "\0\0\0\0", "LOCKSTEP2 ", "LOCKSTEP1"}) {
    const UniqueFd fd = connect();
    say(fd, text);
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_EQ(hear(fd), "|") << text;
  }
  const UniqueFd endless = connect();
  say(endless, "LOCKSTEP1 " + std::string(2000, 'x'));
  EXPECT_EQ(hear(endless), "|");
  EXPECT_TRUE(came_.empty());
}

TEST_F(RendezvousListenerTest, RefusesSilentConnections) {
  const UniqueFd fd = connect();
  EXPECT_EQ(hear(fd), "|");
  EXPECT_THAT(refused_.at(0), HasSubstr("it sent nothing for 5 s"));
}

TEST_F(RendezvousListenerTest, AcceptsAHostAfterHundredsOfIdleConnections) {
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connect());
    reactor_.dispatch();
  }
  const UniqueFd fd = connect();
  say(fd, std::string("LOCKSTEP1 ") + kToken + " store\n");
  EXPECT_EQ(hear(fd, 3), "OK\n");
  EXPECT_EQ(hear(idle[0]), "|");
}

TEST_F(RendezvousListenerTest, SaysWhichPortIsTaken) {
  EXPECT_THAT(
      [&] { RendezvousListener(reactor_, loopback(listener_.port()), kToken, nullptr, nullptr); },
      testing::ThrowsMessage<ConfigError>(testing::AllOf(
          HasSubstr("127.0.0.1 port " + std::to_string(listener_.port())),
          HasSubstr("another job may use it"))));
}

TEST_F(RendezvousListenerTest, AcceptsAClient) {
  RendezvousClient::Answer answer;
  bool answered = false;
  const auto connecting = client(kToken, answer, answered, 20s);
  ASSERT_TRUE(run_until([&] { return answered; }));
  EXPECT_TRUE(answer.socket.is_open());
  ASSERT_EQ(came_.size(), 1U);
  EXPECT_EQ(came_[0].purpose, "control 1");
}

TEST_F(RendezvousListenerTest, TellsAClientOfAnotherJobThatItIsRefused) {
  RendezvousClient::Answer answer;
  bool answered = false;
  const auto connecting = client("fedcba9876543210", answer, answered, 20s);
  ASSERT_TRUE(run_until([&] { return answered; }));
  EXPECT_FALSE(answer.socket.is_open());
  EXPECT_TRUE(answer.final);
  EXPECT_EQ(answer.why, "this job has another token");
}

TEST(RendezvousClient, SaysWhyNoListenerAnsweredInTime) {
  Reactor reactor;
  // Held and not listened on: it refuses every connection.
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address any = loopback(0);
  ASSERT_EQ(::bind(taken.get(), any.get(), any.length), 0);
  std::string why;
  RendezvousClient client(
      reactor,
      {loopback(own_address(taken.get()).port())},
      kToken,
      "store",
      Clock::now() + 100ms,
      [&](RendezvousClient::Answer answer) { why = answer.why; });
  while (why.empty()) {
    reactor.wait(1s);
    reactor.dispatch();
  }
  EXPECT_EQ(why, "Connection refused");
}

TEST(RendezvousClient, FindsAListenerThatOpensLater) {
  Reactor reactor;
  int port = 0;
  {
    const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Address any = loopback(0);
    ASSERT_EQ(::bind(taken.get(), any.get(), any.length), 0);
    port = own_address(taken.get()).port();
  }
  bool opened = false;
  RendezvousClient client(
      reactor,
      {loopback(port)},
      kToken,
      "store",
      Clock::now() + 20s,
      [&](RendezvousClient::Answer answer) { opened = answer.socket.is_open(); });
  for (int i = 0; i < 5; ++i) {
    reactor.wait(10ms);
    reactor.dispatch();
  }
  size_t came = 0;
  const RendezvousListener listener(
      reactor,
      loopback(port),
      kToken,
      [&](const std::string&, UniqueFd, std::string) { ++came; },
      nullptr);
  const auto end = Clock::now() + 20s;
  while (!opened && Clock::now() < end) {
    reactor.wait(1s);
    reactor.dispatch();
  }
  EXPECT_TRUE(opened);
  EXPECT_EQ(came, 1U);
}

TEST(Token, IsRandomAndPlain) {
  EXPECT_TRUE(is_token(random_token()));
  EXPECT_NE(random_token(), random_token());
  EXPECT_FALSE(is_token("too short"));
  EXPECT_FALSE(is_token("0123456789abcde\n"));
  EXPECT_FALSE(is_token(std::string(129, 'a')));
}

}  // namespace
}  // namespace lockstep::launcher
