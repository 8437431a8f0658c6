// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <poll.h>
#include <set>
#include <sstream>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/gloo/store_address.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kAllHere = "yes";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr Milliseconds kJoinSlice{250};
// Longer than name servers remember that a name is not there; a misspelt one is told after it.
constexpr Milliseconds kNamePatience{30'000};

/// Finds out whether a rank of this host joins otherwise than this one, over shared memory.
class TransportCheck {
 public:
  explicit TransportCheck(const shm::RendezvousAddress& place) : place_(place) {}

  /// Once the store can be reached: rank 0 answers the others from now on.
  void open() {
    if (place_.rank == 0) {
      responder_.emplace(place_);
    }
  }

  /// What a rank disagrees on, as far as it is known now; else empty.
  std::string disagreement() {
    if (place_.rank == 0) {
      return responder_ ? responder_->answer() : std::string();
    }
    return shm::ask_rank_0(place_);
  }

 private:
  shm::RendezvousAddress place_;
  std::optional<shm::JoinResponder> responder_;  ///< Rank 0's.
};

bool is_loopback(const std::string& host) {
  std::string why;
  const std::vector<Address> addresses = resolve(host, 0, why);
  return !addresses.empty() && addresses.front().is_loopback();
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string rank_key(int rank) {
  return "joined/" + std::to_string(rank);
}

/// Whether something accepts a connection there; gives up at `deadline`, where a plain connect
/// would wait minutes for a host that drops what it is sent.
bool accepts(const Address& address, Clock::time_point deadline) {
  const UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) {
    return false;
  }
  bool there = ::connect(fd.get(), address.get(), address.length) == 0;
  if (!there && errno == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    int error = 0;
    socklen_t length = sizeof(error);
    there = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1 &&
            ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  return there;
}

/// Returns once something listens at the store's address. TCPStore's own client sleeps a second
/// between tries, which is most of a short job's start. CommError if rank 0 joins otherwise.
void await_listener(
    const std::string& host, int port, Clock::time_point deadline, TransportCheck& way) {
  std::string why = "nothing listens there";
  while (Clock::now() < deadline) {
    for (const Address& address : resolve(host, port, why)) {
      if (accepts(address, deadline)) {
        return;
      }
      why = "nothing listens there";
    }
    if (const std::string fault = way.disagreement(); !fault.empty()) {
      throw CommError("join", fault, 0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error(why);
}

/// What goes wrong here is thrown, with its reason; c10d would print a stack of frames besides.
void quieten_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
}

std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

/// Ends the join of all ranks that wait: each throws CommError with that text.
[[noreturn]] void refuse_all(c10d::Store& store, const std::string& why) {
  store.set("complete", bytes_of_text(why));
  throw CommError("join", why);
}

/// All ranks must pass the same `value`; `text` makes a sentence of this rank's and the others'.
template <typename Text>
void agree_on(
    c10d::Store& store, const std::string& key, const std::string& value, const Text& text) {
  const std::string agreed = text_of(store.compareSet(key, {}, bytes_of_text(value)));
  if (agreed != value) {
    refuse_all(store, text(agreed));
  }
}

void agree(c10d::Store& store, const WorldSpec& world, const shm::RendezvousAddress& place) {
  agree_on(store, "world", std::to_string(world.size), [&](const std::string& others) {
    return fmt::format(
        "worlds of different size meet at {}:{}; rank {}'s world is {}, the others' is {}; set the "
        "same WORLD_SIZE on all ranks; or are two jobs using this port?",
        world.master_addr,
        world.master_port,
        world.rank,
        world.size,
        others);
  });
  agree_on(store, "comm", place.comm, [&](const std::string& others) {
    return fmt::format(
        "the ranks disagree on LOCKSTEP_COMM; got {} on rank {}, {} on the others; set the same on "
        "all ranks",
        place.comm,
        world.rank,
        others);
  });
}

[[noreturn]] void name_missing_ranks(
    c10d::Store& store, const WorldSpec& world, Clock::time_point start) {
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

/// Returns when all ranks have signed in. Waits in slices, between which it looks for ranks that
/// join otherwise.
void await_all(
    c10d::Store& store,
    const WorldSpec& world,
    TransportCheck& way,
    Milliseconds timeout,
    Clock::time_point start) {
  bool complete = false;
  while (!complete) {
    const auto left = timeout - std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
    try {
      store.wait({"complete"}, std::clamp(left, Milliseconds(1), kJoinSlice));
      complete = true;
    } catch (const std::exception&) {
      complete = store.check({"complete"});  // Throws if the store is gone.
    }
    if (complete) {
      break;
    }
    if (left <= kJoinSlice) {
      name_missing_ranks(store, world, start);
    }
    if (const std::string fault = way.disagreement(); !fault.empty()) {
      refuse_all(store, fault);
    }
  }
  if (const std::string word = text_of(store.get("complete")); word != kAllHere) {
    throw CommError("join", word);
  }
}

/// Signs in, and waits until everybody has, so that whoever is missing can be named.
void sign_in(
    c10d::Store& store,
    const WorldSpec& world,
    const shm::RendezvousAddress& place,
    TransportCheck& way,
    Milliseconds timeout,
    Clock::time_point start) {
  agree(store, world, place);
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
  const std::string own = data_address(world);
  std::set<std::string> addresses{own};
  if (!is_loopback(own)) {
    addresses.merge(interface_addresses());
  }
  store.append("addresses", bytes_of_text(fmt::format("{} ", fmt::join(addresses, " "))));
  if (store.add("count", 1) == world.size) {
    store.set("complete", bytes_of_text(kAllHere));
  }
  await_all(store, world, way, timeout, start);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_store(
    const WorldSpec& world, const shm::RendezvousAddress& place, Milliseconds timeout) {
  const auto start = Clock::now();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.isServer = world.rank == 0 && !world.agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  // Bound to one address, the server is not to be found under any other of the host's names.
  const bool local = world.on_one_host() && !world.agent_store;
  std::string host = local ? kLoopback : world.master_addr;
  if (options.isServer) {
    const Address address = store_address(world, start + std::min(timeout, kNamePatience));
    options.masterListenFd = bind_store_port(address, world.master_port);
    host = address.host();
  }
  quieten_c10d();
  TransportCheck way(place);
  try {
    if (!options.isServer) {
      await_listener(host, world.master_port, start + timeout, way);
    }
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    // A restarted job must not meet what its predecessor left in the launcher's store.
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("lockstep/attempt_{}/", world.restart_count), std::move(tcp));
    way.open();
    sign_in(*store, world, place, way, timeout, start);
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

std::vector<std::string> addresses_of_hosts(c10d::Store& store) {
  std::istringstream words(text_of(store.get("addresses")));
  std::set<std::string> all;
  for (std::string word; words >> word;) {
    all.insert(word);
  }
  return {all.begin(), all.end()};
}

std::string data_address(const WorldSpec& world) {
  if (world.on_one_host()) {
    return kLoopback;
  }
  // The master's address says nothing where launchers carry the way to it.
  if (const auto told = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    return *told;
  }
  std::string why;
  const std::vector<Address> addresses = resolve(world.master_addr, world.master_port, why);
  if (addresses.empty()) {
    throw ConfigError(
        "join",
        fmt::format("cannot resolve the master's address '{}': {}", world.master_addr, why));
  }
  for (const Address& address : addresses) {
    // Connecting a datagram socket sends nothing, but makes the kernel choose the outgoing address.
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.is_open() && ::connect(fd.get(), address.get(), address.length) == 0) {
      return own_address(fd.get()).host();
    }
  }
  throw CommError(
      "join", fmt::format("no route to the master's address '{}'", world.master_addr), 0);
}

}  // namespace lockstep::comm
