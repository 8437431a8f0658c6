// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/rendezvous.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/first_line.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLoopback = "127.0.0.1";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A socket bound to the store's port: TCPStore left to itself would listen on every interface.
int bind_store_port(const WorldSpec& world) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    throw Error("join", fmt::format("cannot make a socket: {}", std::strerror(errno)));
  }
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(world.master_port));
  // Several launchers of ours carry what the ranks of other hosts say to rank 0's loopback.
  const bool behind_door = world.master_addr == kLoopback;
  address.sin_addr.s_addr =
      htonl(world.on_one_host() || behind_door ? INADDR_LOOPBACK : INADDR_ANY);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (!bound || ::listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    ::close(fd);
    throw ConfigError(
        "join",
        fmt::format(
            "rank 0 cannot listen on port {}: {}; another job may use it; set MASTER_PORT to a "
            "free port",
            world.master_port,
            std::strerror(error)));
  }
  return fd;
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string rank_key(int rank) {
  return "joined/" + std::to_string(rank);
}

/// Whether something accepts a connection there; gives up at `deadline`, where a plain connect
/// would wait minutes for a host that drops what it is sent.
bool accepts(const addrinfo& entry, Clock::time_point deadline) {
  const int fd = ::socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return false;
  }
  bool there = ::connect(fd, entry.ai_addr, entry.ai_addrlen) == 0;
  if (!there && errno == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
    int error = 0;
    socklen_t length = sizeof(error);
    there = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1 &&
            ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  ::close(fd);
  return there;
}

/// Returns once something listens at the store's address. TCPStore's own client sleeps a second
/// between tries, which is most of a short job's start.
void await_listener(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  while (Clock::now() < deadline) {
    addrinfo* list = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) == 0) {
      const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
      for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        const bool there = accepts(*entry, deadline);
        if (there) {
          return;
        }
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error("nothing listens there");
}

/// What goes wrong here is thrown, with its reason; c10d would print a stack of frames besides.
void quieten_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
}

/// Signs in, and waits until everybody has, so that whoever is missing can be named.
void sign_in(
    c10d::Store& store, const WorldSpec& world, Milliseconds timeout, Clock::time_point start) {
  const std::string size = std::to_string(world.size);
  const std::string agreed =
      text_of(store.compareSet("world", {}, std::vector<uint8_t>(size.begin(), size.end())));
  if (agreed != size) {
    throw CommError(
        "join",
        fmt::format(
            "worlds of different size meet at {}:{}; this rank's world is {}, the others' is {}; "
            "are two jobs using "
            "this port?",
            world.master_addr,
            world.master_port,
            size,
            agreed));
  }
  if (store.add(rank_key(world.rank), 1) != 1) {
    throw CommError(
        "join",
        fmt::format(
            "two processes say they are rank {} at {}:{}; are two jobs using this port?",
            world.rank,
            world.master_addr,
            world.master_port),
        world.rank);
  }
  const auto all_here = [&] { return store.add("count", 0) >= world.size; };
  if (store.add("count", 1) == world.size) {
    const std::string yes = "yes";
    store.set("complete", std::vector<uint8_t>(yes.begin(), yes.end()));
  }
  const auto left = timeout - std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
  try {
    store.wait({"complete"}, std::max(left, Milliseconds(1)));
  } catch (const std::exception& error) {
    if (all_here()) {
      return;
    }
    std::vector<int> missing;
    for (int rank = 0; rank < world.size; ++rank) {
      if (store.add(rank_key(rank), 0) == 0) {
        missing.push_back(rank);
      }
    }
    throw CommError(
        "join",
        fmt::format(
            "rank{} {} did not join within {:.1f} s",
            missing.size() == 1 ? "" : "s",
            fmt::join(missing, ", "),
            seconds_since(start)),
        missing.empty() ? -1 : missing.front(),
        seconds_since(start));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_store(const WorldSpec& world, Milliseconds timeout) {
  const auto start = Clock::now();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.isServer = world.rank == 0 && !world.agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd = bind_store_port(world);
  }
  // Bound to loopback, the server is not to be found under any other of the host's names.
  const bool local = world.on_one_host() && !world.agent_store;
  const std::string host = local ? kLoopback : world.master_addr;
  quieten_c10d();
  try {
    if (!options.isServer) {
      await_listener(host, world.master_port, start + timeout);
    }
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    // A restarted job must not meet what its predecessor left in the launcher's store.
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("lockstep/attempt_{}/", world.restart_count), std::move(tcp));
    sign_in(*store, world, timeout, start);
    return store;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(
        "join",
        fmt::format(
            "cannot reach rank 0's store at {}:{} within {:.1f} s; is MASTER_ADDR right and rank 0 "
            "alive? ({})",
            host,
            world.master_port,
            seconds_since(start),
            first_line(error.what())),
        0,
        seconds_since(start));
  }
}

std::string data_address(const WorldSpec& world) {
  if (world.on_one_host()) {
    return kLoopback;
  }
  // The master's address says nothing where launchers carry the way to it.
  if (const auto told = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    return *told;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(world.master_port);
  const int failed = ::getaddrinfo(world.master_addr.c_str(), port.c_str(), &hints, &list);
  if (failed != 0) {
    throw ConfigError(
        "join",
        fmt::format(
            "cannot resolve the master's address '{}': {}",
            world.master_addr,
            ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    // Connecting a datagram socket sends nothing, but makes the kernel choose the outgoing address.
    const int fd = ::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    const bool known = fd >= 0 && ::connect(fd, entry->ai_addr, entry->ai_addrlen) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    if (fd >= 0) {
      ::close(fd);
    }
    char text[NI_MAXHOST];
    if (known && ::getnameinfo(
                     reinterpret_cast<sockaddr*>(&own),
                     length,
                     text,
                     sizeof(text),
                     nullptr,
                     0,
                     NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  throw CommError(
      "join", fmt::format("no route to the master's address '{}'", world.master_addr), 0);
}

}  // namespace lockstep::comm
