// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <set>
#include <sstream>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <tuple>
#include <utility>
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
#include "lockstep/base/text/words.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/gloo/store_address.h"
#include "lockstep/comm/shm/join_responder.h"
#include "lockstep/comm/transport/plain_reason.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kAllJoined = "yes";
constexpr const char* kNotListening = "no process listens at this address";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr Milliseconds kJoinInterval{250};
// Longer than name servers cache an unknown name. A misspelt name is reported after this time.
constexpr Milliseconds kNameTimeout{30'000};

/// Finds out whether a rank of this host joins over shared memory instead of Gloo.
class TransportCheck {
 public:
  explicit TransportCheck(const shm::RendezvousAddress& address) : address_(address) {}

  /// Makes rank 0 answer the other ranks from now on. Call it once the store can be reached.
  void open() {
    if (address_.rank == 0) {
      responder_.emplace(address_);
    }
  }

  /// Returns the mismatch with a rank; empty if none is known so far.
  std::string join_mismatch() {
    if (address_.rank == 0) {
      return responder_ ? responder_->answer() : std::string();
    }
    return shm::ask_shm_rank_0(address_);
  }

 private:
  shm::RendezvousAddress address_;
  std::optional<shm::JoinResponder> responder_;  ///< Set on rank 0.
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

/// Returns whether a process accepts a connection there before `deadline`. A plain connect would
/// wait minutes for a host that drops packets.
bool accepts(const Address& address, Clock::time_point deadline) {
  const UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) {
    return false;
  }
  bool connected = ::connect(fd.get(), address.get(), address.length) == 0;
  if (!connected && errno == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    int error = 0;
    socklen_t length = sizeof(error);
    connected = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1 &&
                ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  return connected;
}

/// Blocks until a process listens at the store's address. TCPStore's client sleeps a second between
/// tries, which is most of a short job's start. Throws CommError if rank 0 joins over shared
/// memory.
void await_listener(
    const std::string& host, int port, Clock::time_point deadline, TransportCheck& check) {
  std::string why = kNotListening;
  while (Clock::now() < deadline) {
    for (const Address& address : resolve(host, port, why)) {
      if (accepts(address, deadline)) {
        return;
      }
      why = kNotListening;
    }
    if (const std::string fault = check.join_mismatch(); !fault.empty()) {
      throw CommError("join", fault, 0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error(why);
}

/// Keeps c10d from printing stack traces of errors that are thrown with their reason anyway.
void quieten_c10d() {
  static std::once_flag done;  // Ranks may be threads of one process.
  std::call_once(done, [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
      FLAGS_caffe2_log_level = c10::GLOG_ERROR;
    }
  });
}

std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

/// Ends the join of all ranks that wait: each throws CommError with that text.
[[noreturn]] void refuse_all(c10d::Store& store, const std::string& why) {
  store.set("complete", bytes_of_text(why));
  throw CommError("join", why);
}

/// Throws unless all ranks pass the same `value`. `text` renders the error for the others' value.
template <typename Text>
void agree_on(
    c10d::Store& store, const std::string& key, const std::string& value, const Text& text) {
  const std::string agreed = text_of(store.compareSet(key, {}, bytes_of_text(value)));
  if (agreed != value) {
    refuse_all(store, text(agreed));
  }
}

void compare_settings(
    c10d::Store& store, const WorldSpec& world, const shm::RendezvousAddress& address) {
  agree_on(store, "world", std::to_string(world.size), [&](const std::string& others) {
    return fmt::format(
        "the ranks have different world sizes at {}:{}; got {} on rank {}, {} on the others; set "
        "the same WORLD_SIZE on all ranks, or another MASTER_PORT if another job uses this one",
        world.master_addr,
        world.master_port,
        world.size,
        world.rank,
        others);
  });
  agree_on(store, "comm", address.comm, [&](const std::string& others) {
    return fmt::format(
        "LOCKSTEP_COMM differs between ranks; got {} on rank {}, {} on the others; set the same "
        "value on all ranks",
        address.comm,
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
      fmt::format("{} did not join within {:.1f} s", ranks_text(missing), seconds_since(start)),
      missing.empty() ? -1 : missing.front(),
      seconds_since(start));
}

/// Blocks until all ranks have signed in. Between short waits it looks for ranks that join over
/// shared memory.
void await_all(
    c10d::Store& store,
    const WorldSpec& world,
    TransportCheck& check,
    Milliseconds timeout,
    Clock::time_point start) {
  bool complete = false;
  while (!complete) {
    const auto left = timeout - std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
    try {
      store.wait({"complete"}, std::clamp(left, Milliseconds(1), kJoinInterval));
      complete = true;
    } catch (const std::exception&) {
      complete = store.check({"complete"});  // Throws if the store is lost.
    }
    if (complete) {
      break;
    }
    if (left <= kJoinInterval) {
      name_missing_ranks(store, world, start);
    }
    if (const std::string fault = check.join_mismatch(); !fault.empty()) {
      refuse_all(store, fault);
    }
  }
  if (const std::string result = text_of(store.get("complete")); result != kAllJoined) {
    throw CommError("join", result);
  }
}

/// Holds what a process must know of its earlier joins. A program may connect again at the job's
/// only port, also while its earlier groups exist.
class EarlierJoins {
 public:
  static EarlierJoins& of_process() {
    // Never destroyed: a fork that exits would wait there for the server's thread, which it lacks.
    static EarlierJoins& joins = *new EarlierJoins;
    return joins;
  }

  /// Returns how often this rank has joined. All ranks must have joined equally often.
  int64_t count(const WorldSpec& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of(world).count;
  }
  bool serves(const WorldSpec& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of(world).server.defined();
  }
  /// Keeps `server`, if any, until the process ends. Else another rank could connect to it for the
  /// next join just before this rank closes it.
  void add(const WorldSpec& world, c10::intrusive_ptr<c10d::Store> server) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++of(world).count;
    if (server) {
      of(world).server = std::move(server);
    }
  }
  /// Closes the server once no group uses it. A failed join leaves values in it, which another
  /// attempt must not read.
  void forget_server(const WorldSpec& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    of(world).server.reset();
  }

 private:
  struct JoinsOfRank {
    int64_t count = 0;
    c10::intrusive_ptr<c10d::Store> server;  ///< Set on rank 0, unless an agent serves the store.
  };

  JoinsOfRank& of(const WorldSpec& world) {
    return ranks_[{world.master_addr, world.master_port, world.restart_count, world.rank}];
  }

  std::mutex mutex_;  // Ranks may be threads of one process.
  std::map<std::tuple<std::string, int, int, int>, JoinsOfRank> ranks_;
};

/// Signs in, and blocks until all ranks have signed in, so that the error can name missing ranks.
void sign_in(
    c10d::Store& store,
    const WorldSpec& world,
    const shm::RendezvousAddress& address,
    TransportCheck& check,
    Milliseconds timeout,
    Clock::time_point start) {
  compare_settings(store, world, address);
  if (store.add(rank_key(world.rank), 1) != 1) {
    throw CommError(
        "join",
        fmt::format(
            "two processes are rank {} at {}:{}; set another MASTER_PORT if another job uses this "
            "one",
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
    store.set("complete", bytes_of_text(kAllJoined));
  }
  await_all(store, world, check, timeout, start);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_store(
    const WorldSpec& world, const shm::RendezvousAddress& address, Milliseconds timeout) {
  const auto start = Clock::now();
  EarlierJoins& earlier = EarlierJoins::of_process();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  const bool on_server = world.rank == 0 && !world.agent_store;
  options.isServer = on_server && !earlier.serves(world);
  options.waitWorkers = false;
  options.timeout = timeout;
  // The server binds to one address, and cannot be reached at the host's other addresses.
  const bool local = world.on_one_host() && !world.agent_store;
  std::string host = local ? kLoopback : world.master_addr;
  if (on_server) {
    const Address server = store_address(world, start + std::min(timeout, kNameTimeout));
    host = server.host();
    if (options.isServer) {
      options.masterListenFd = bind_store_port(server, world.master_port);
    }
  }
  quieten_c10d();
  TransportCheck check(address);
  try {
    if (!options.isServer) {
      await_listener(host, world.master_port, start + timeout, check);
    }
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    // A join must not read the values of an earlier one, or of the previous attempt of the job.
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("lockstep/attempt_{}/join_{}/", world.restart_count, earlier.count(world)),
        tcp);
    check.open();
    sign_in(*store, world, address, check, timeout, start);
    earlier.add(world, options.isServer ? std::move(tcp) : nullptr);
    return store;
  } catch (const Error&) {
    earlier.forget_server(world);
    throw;
  } catch (const std::exception& error) {
    earlier.forget_server(world);
    throw CommError(
        "join",
        fmt::format(
            "rank 0's store did not answer at {}:{} within {:.1f} s; check MASTER_ADDR, and that "
            "rank 0 runs ({})",
            host,
            world.master_port,
            seconds_since(start),
            plain_reason(error.what())),
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
  // If launchers forward connections to the master, the route to its address is meaningless.
  if (const auto configured = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    return *configured;
  }
  std::string why;
  const std::vector<Address> addresses = resolve(world.master_addr, world.master_port, why);
  if (addresses.empty()) {
    throw ConfigError(
        "join", fmt::format("MASTER_ADDR '{}' cannot be resolved: {}", world.master_addr, why));
  }
  for (const Address& address : addresses) {
    // Connecting a datagram socket sends nothing, but makes the kernel choose the outgoing address.
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.is_open() && ::connect(fd.get(), address.get(), address.length) == 0) {
      return own_address(fd.get()).host();
    }
  }
  throw CommError(
      "join", fmt::format("this host has no route to MASTER_ADDR '{}'", world.master_addr), 0);
}

}  // namespace lockstep::comm
