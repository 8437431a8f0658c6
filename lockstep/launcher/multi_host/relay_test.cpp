// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/relay.h"

#include <optional>
#include <random>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;

/// The two ends of a connection: ours, and the relay's, which does not block.
std::pair<UniqueFd, UniqueFd> local_connection() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string random_text(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) {
    c = static_cast<char>(random());
  }
  return text;
}

void send_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t sent = ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    ASSERT_GT(sent, 0);
    done += static_cast<size_t>(sent);
  }
  ::shutdown(fd, SHUT_WR);
}

std::string receive_all(int fd) {
  std::string text;
  char buffer[5000];
  for (;;) {
    const ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) {
      return text;
    }
    text.append(buffer, static_cast<size_t>(got));
  }
}

TEST(Relay, CopiesBothDirectionsToTheirEnds) {
  Reactor reactor;
  auto [a, a_inside] = local_connection();
  auto [b, b_inside] = local_connection();
  bool ended = false;
  Relay relay(reactor, std::move(a_inside), std::move(b_inside), "first ", [&] { ended = true; });
  const std::string to_b = random_text(1'000'000, 1);
  const std::string to_a = random_text(700'000, 2);
  std::string at_a;
  std::string at_b;
  std::thread sends_a([&, fd = a.get()] { send_all(fd, to_b); });
  std::thread sends_b([&, fd = b.get()] { send_all(fd, to_a); });
  std::thread reads_a([&, fd = a.get()] { at_a = receive_all(fd); });
  std::thread reads_b([&, fd = b.get()] { at_b = receive_all(fd); });
  while (!ended) {
    reactor.wait(1s);
    reactor.dispatch();
  }
  for (std::thread* thread : {&sends_a, &sends_b, &reads_a, &reads_b}) {
    thread->join();
  }
  EXPECT_TRUE(at_b == "first " + to_b);
  EXPECT_TRUE(at_a == to_a);
}

TEST(Relay, PassesOnThatOneSideSendsNoMore) {
  Reactor reactor;
  auto [a, a_inside] = local_connection();
  auto [b, b_inside] = local_connection();
  bool ended = false;
  Relay relay(reactor, std::move(a_inside), std::move(b_inside), "", [&] { ended = true; });
  send_all(a.get(), "question");
  std::string question;
  while (question != "question") {
    reactor.wait(1s);
    reactor.dispatch();
    char buffer[100];
    const ssize_t got = ::recv(b.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    question.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
  EXPECT_FALSE(ended);
  send_all(b.get(), "answer");
  while (!ended) {
    reactor.wait(1s);
    reactor.dispatch();
  }
  EXPECT_EQ(receive_all(a.get()), "answer");
}

TEST(Relay, EndsIfASideIsClosed) {
  Reactor reactor;
  auto [a, a_inside] = local_connection();
  auto [b, b_inside] = local_connection();
  bool ended = false;
  std::optional<Relay> relay;
  relay.emplace(reactor, std::move(a_inside), std::move(b_inside), "", [&] {
    ended = true;
    relay.reset();
  });
  a.reset();
  b.reset();
  while (!ended) {
    reactor.wait(1s);
    reactor.dispatch();
  }
  EXPECT_FALSE(relay);
}

}  // namespace
}  // namespace lockstep::launcher
