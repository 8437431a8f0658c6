// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/connect/test_connected_ranks.h"

#include <algorithm>
#include <arpa/inet.h>
#include <exception>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/host/world.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/connect/connect.h"

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
    throw Error("connected_ranks", "no free port");
  }
  return ntohs(address.sin_port);
}

/// Runs one thread for each rank. `hosts`: the host of each rank.
void connected_ranks(
    TransportKind transport,
    const std::vector<int>& hosts,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout) {
  const int port = free_port();
  const auto size = static_cast<int>(hosts.size());
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const ThreadRankScope label({rank, size});
      try {
        const auto own = hosts.begin() + rank;
        WorldSpec world;
        world.rank = rank;
        world.size = size;
        world.local_rank = static_cast<int>(std::count(hosts.begin(), own, *own));
        world.local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), *own));
        world.master_port = port;
        body(connect(
            world,
            {.timeout = timeout,
             .join_timeout = std::chrono::seconds(60),
             .transport = transport}));
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

std::vector<int> one_host(int size) {
  return std::vector<int>(static_cast<size_t>(size), 0);
}

}  // namespace

void gloo_ranks(
    int size, const std::function<void(Group group)>& body, comm::Milliseconds timeout) {
  connected_ranks(TransportKind::kGloo, one_host(size), body, timeout);
}

void shm_ranks(int size, const std::function<void(Group group)>& body, comm::Milliseconds timeout) {
  connected_ranks(TransportKind::kShm, one_host(size), body, timeout);
}

void ranks_on_hosts(
    const std::vector<int>& hosts,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout) {
  connected_ranks(TransportKind::kAuto, hosts, body, timeout);
}

void two_host_ranks(
    int size, const std::function<void(Group group)>& body, comm::Milliseconds timeout) {
  std::vector<int> hosts = one_host(size);
  std::fill(hosts.begin() + (size + 1) / 2, hosts.end(), 1);
  ranks_on_hosts(hosts, body, timeout);
}

}  // namespace lockstep
