// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/gloo_ranks.h"

#include <arpa/inet.h>
#include <exception>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/world.h"
#include "lockstep/comm/connect.h"

namespace lockstep {
namespace {

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool known = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(fd);
  if (!known) {
    throw Error("gloo_ranks", "no free port");
  }
  return ntohs(address.sin_port);
}

}  // namespace

void gloo_ranks(
    int size, const std::function<void(Group group)>& body, comm::Milliseconds timeout) {
  const int port = free_port();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const ThreadRankScope label({rank, size});
      try {
        WorldSpec world;
        world.rank = world.local_rank = rank;
        world.size = world.local_size = size;
        world.master_port = port;
        body(connect(world, {.timeout = timeout, .join_timeout = std::chrono::seconds(60)}));
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first) {
          first = std::current_exception();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace lockstep
