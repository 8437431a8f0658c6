// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/gloo_transport.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/early_headers.h"
#include "lockstep/comm/gloo/listener_guard.h"
#include "lockstep/comm/gloo/peer_addresses.h"
#include "lockstep/comm/gloo/rendezvous.h"
#include "lockstep/comm/transport/blocking_operations.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/ordered_worker.h"
#include "lockstep/comm/transport/plain_reason.h"
#include "lockstep/comm/transport/rank_number.h"
#include "lockstep/comm/transport/reduce.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

// Tags of point-to-point messages: the header of the receiver, then the payload.
constexpr int kReceiverHeaderTag = 2;
constexpr int kPayloadTag = 3;

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::SUM;
}

/// Returns options of c10d for an operation without a root.
template <typename Options>
Options options_with(Milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

template <typename Options>
Options options_with_root(int root, Milliseconds timeout) {
  auto options = options_with<Options>(timeout);
  options.rootRank = root;
  return options;
}

Tensors parts_of(const at::Tensor& bytes, int count) {
  Tensors parts;
  const int64_t each = bytes.numel() / count;
  for (int i = 0; i < count; ++i) {
    parts.push_back(bytes.narrow(0, i * each, each));
  }
  return parts;
}

/// Holds the state that the progress threads share with the transport. It outlives the transport if
/// an operation does.
struct GlooState {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  int rank = 0;
  int size = 1;
  GroupFailure failure;
  PeerAddresses peers;
  EarlyHeaders early_headers;

  void mark_failed(const std::string& why) { failure.mark_failed(why); }

  /// Runs one operation, and converts exceptions of c10d to CommError. `peer`: the only other rank,
  /// or -1 if all take part.
  template <typename Body>
  void guarded(Op op, int peer, const Body& body) {
    failure.check(op);
    const auto start = Clock::now();
    const c10::AutoGradMode no_grad(false);
    try {
      body();
    } catch (const CommError& error) {
      mark_failed(error.what());
      throw;
    } catch (const std::exception& error) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (peer < 0) {
        peer = peers.rank_in(error.what());
      }
      const std::string why = fmt::format(
          "failed after {:.1f} s; a rank is lost, or did not call the operation: {}",
          seconds,
          plain_reason(error.what(), peer));
      mark_failed(fmt::format("{} {}", name_of(op), why));
      throw CommError(name_of(op), why, peer, seconds);
    }
  }

  /// Lets messages name the rank of a lost connection.
  void exchange_addresses(int listener, Milliseconds timeout) {
    const auto bytes = [](auto& all) {
      const auto count = static_cast<int64_t>(all.size() * sizeof(all[0]));
      return at::from_blob(all.data(), {count}, at::kByte);
    };
    std::vector<ListenAddress> own{listen_address(listener)};
    std::vector<ListenAddress> all(static_cast<size_t>(size));
    at::Tensor input = bytes(own);
    at::Tensor output = bytes(all);
    all_gather(output, input, timeout);
    std::vector<int32_t> to = ports_to(all);
    std::vector<int32_t> from(to.size());
    all_to_all(bytes(from), bytes(to), timeout);
    peers = PeerAddresses(all, from);
  }

  std::vector<Fingerprint> exchange(Fingerprint mine, Milliseconds timeout) {
    std::vector<Fingerprint> all(static_cast<size_t>(size));
    at::Tensor input = fingerprint_tensor(mine);
    at::Tensor output =
        at::from_blob(all.data(), {int64_t{16} * size}, at::TensorOptions(at::kLong));
    all_gather(output, input, timeout);
    return all;
  }

  void all_gather(at::Tensor& output, at::Tensor& input, Milliseconds timeout) {
    const auto options = options_with<c10d::AllgatherOptions>(timeout);
    backend->_allgather_base(output, input, options)->wait();
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op, Milliseconds timeout) {
    Tensors flat{tensor.view({-1})};
    // Gloo has no average. float16 is divided first, since its sum may overflow.
    const bool divide_first = op == ReduceOp::kAvg && tensor.scalar_type() == at::kHalf;
    if (divide_first) {
      flat[0].div_(size);
    }
    auto options = options_with<c10d::AllreduceOptions>(timeout);
    options.reduceOp = to_c10d(op);
    backend->allreduce(flat, options)->wait();
    if (op == ReduceOp::kAvg && !divide_first) {
      flat[0].div_(size);
    }
  }

  void all_to_all(at::Tensor output, at::Tensor input, Milliseconds timeout) {
    const auto options = options_with<c10d::AllToAllOptions>(timeout);
    std::vector<int64_t> even;
    backend->alltoall_base(output, input, even, even, options)->wait();
  }

  /// Returns the root's parts of `tensor`, one for each rank, as c10d expects them; empty on other
  /// ranks.
  std::vector<Tensors> root_parts(const at::Tensor& tensor, int root) const {
    std::vector<Tensors> parts;
    if (rank == root) {
      parts.push_back(parts_of(bytes_of(tensor), size));
    }
    return parts;
  }

  void perform(const Collective& c, Milliseconds timeout) {
    switch (c.op) {
      case Op::kAllReduce:
        all_reduce(c.output, c.reduce, timeout);
        break;
      case Op::kReduceScatter: {
        // c10d's reduce_scatter over Gloo is an all-reduce, and always sums in some versions.
        const at::Tensor parts = at::empty_like(c.input);
        all_to_all(bytes_of(parts), bytes_of(c.input), timeout);
        std::vector<const void*> sources;
        const auto* first = static_cast<const std::byte*>(parts.const_data_ptr());
        for (int from = 0; from < size; ++from) {
          sources.push_back(first + static_cast<size_t>(from) * c.output.nbytes());
        }
        void* target = c.output.data_ptr();
        reduce(c.output.scalar_type(), c.reduce, sources, target, c.output.numel());
        break;
      }
      case Op::kAllGather: {
        at::Tensor output = bytes_of(c.output);
        at::Tensor input = bytes_of(c.input);
        all_gather(output, input, timeout);
        break;
      }
      case Op::kAllToAll:
        all_to_all(bytes_of(c.output), bytes_of(c.input), timeout);
        break;
      case Op::kBroadcast: {
        Tensors tensors{bytes_of(c.output)};
        backend->broadcast(tensors, options_with_root<c10d::BroadcastOptions>(c.root, timeout))
            ->wait();
        break;
      }
      case Op::kGather: {
        Tensors inputs{bytes_of(c.input)};
        std::vector<Tensors> outputs = root_parts(c.output, c.root);
        backend->gather(outputs, inputs, options_with_root<c10d::GatherOptions>(c.root, timeout))
            ->wait();
        break;
      }
      case Op::kScatter: {
        Tensors outputs{bytes_of(c.output)};
        std::vector<Tensors> inputs = root_parts(c.input, c.root);
        backend->scatter(outputs, inputs, options_with_root<c10d::ScatterOptions>(c.root, timeout))
            ->wait();
        break;
      }
      default:
        break;  // A barrier is done when the fingerprints were exchanged.
    }
  }

  void collective(const Collective& c, int64_t sequence, Milliseconds timeout) {
    guarded(c.op, -1, [&] {
      const Fingerprint mine = fingerprint_of(c, sequence);
      compare_fingerprints(c, rank, [&] { return exchange(mine, timeout); });
      const at::Tensor& any = c.output.defined() ? c.output : c.input;
      if (any.defined() && any.numel() > 0) {
        perform(c, timeout);
      }
    });
  }

  void point_to_point(const Collective& c, Milliseconds timeout) {
    guarded(c.op, c.root, [&] {
      const bool sends = c.op == Op::kSend;
      Fingerprint mine = fingerprint_of(c, 0);
      Fingerprint theirs;
      Tensors out{fingerprint_tensor(mine)};
      Tensors in{fingerprint_tensor(theirs)};
      const auto early = sends ? std::nullopt : early_headers.take(c.root);
      std::vector<c10::intrusive_ptr<c10d::Work>> headers{
          backend->send(out, c.root, sends ? kSenderHeaderTag : kReceiverHeaderTag)};
      if (early) {
        theirs = *early;
      } else {
        headers.push_back(backend->recv(in, c.root, sends ? kReceiverHeaderTag : kSenderHeaderTag));
      }
      wait_all(headers, timeout);
      if (const auto sides = mismatch(mine, rank, theirs, c.root)) {
        throw CommError(name_of(c.op), *sides, c.root);
      }
      Tensors payload{bytes_of(sends ? c.input : c.output)};
      if (payload[0].numel() > 0) {
        wait_all(
            {sends ? backend->send(payload, c.root, kPayloadTag)
                   : backend->recv(payload, c.root, kPayloadTag)},
            timeout);
      }
    });
  }
};

/// Holds Gloo's network device, and its listening socket.
struct GlooDevice {
  std::shared_ptr<::gloo::transport::Device> device;
  int listener = -1;  ///< -1 if another new socket of this process makes it ambiguous.
};

GlooDevice make_gloo_device(const std::string& address) {
  static std::mutex one_at_a_time;  // Ranks that are threads make devices at the same time.
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const auto before = listening_sockets();
  GlooDevice created;
  created.device = c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false);
  auto added = listening_sockets();
  std::erase_if(added, [&](const auto& socket) { return before.contains(socket.first); });
  if (added.size() == 1) {
    created.listener = added.begin()->second;
  }
  return created;
}

/// Holds the addresses at which the ranks of a group reach each other.
struct GlooAddresses {
  std::string own;
  /// All addresses of all hosts of the job; nothing if every address must be accepted.
  std::optional<std::vector<std::string>> hosts;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(
      const c10::intrusive_ptr<c10d::Store>& store,
      GlooAddresses addresses,
      int rank,
      int size,
      Milliseconds join_timeout,
      uint64_t group)
      : addresses_(std::move(addresses)),
        group_(group),
        state_(std::make_shared<GlooState>()),
        operations_(state_, group) {
    const SigpipeBlocked no_sigpipe;  // For Gloo's threads, which start here.
    auto options = c10d::ProcessGroupGloo::Options::create(join_timeout);
    const GlooDevice created = make_gloo_device(addresses_.own);
    ListenerGuard guard(created.listener, addresses_.hosts);
    options->devices.push_back(created.device);
    state_->store = store;
    state_->rank = rank;
    state_->size = size;
    try {
      state_->backend =
          c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options));
      // The accepting rank is done before the connecting one. No rank may end, and close the store,
      // before all ranks have read their peers' addresses from it.
      state_->exchange_addresses(created.listener, join_timeout);
    } catch (const std::exception& error) {
      const std::string fault = guard.fault();
      throw CommError(
          "join",
          fmt::format(
              "cannot connect to all ranks: {}",
              fault.empty() ? plain_reason(error.what()) : fault));
    }
    guard.close_to_all();
    if (guard.admits_all()) {
      addresses_.hosts.reset();
    }
  }

  ~GlooTransport() override { state_->early_headers.close(); }

  const char* name() const override { return "gloo"; }
  int rank() const override { return state_->rank; }
  int size() const override { return state_->size; }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    check_cpu_tensors(collective, "Gloo");
    return operations_.start(std::move(collective), timeout);
  }

  void set_number(uint64_t number) override {
    const auto text = std::to_string(number);
    state_->store->set(number_key(rank()), std::vector<uint8_t>(text.begin(), text.end()));
  }

  uint64_t number_of(int rank, Milliseconds timeout) override {
    const std::string key = number_key(rank);
    return await_number(rank, timeout, [&]() -> uint64_t {
      if (!state_->store->check({key})) {
        return 0;
      }
      const std::vector<uint8_t> text = state_->store->get(key);
      return std::stoull(std::string(text.begin(), text.end()));
    });
  }

  NextMessage next_message(int from, int tag) override {
    state_->failure.check(Op::kRecv);
    const bool may_receive = operations_.may_receive(from);
    const std::optional<NextMessage> state = state_->early_headers.state(from, tag);
    if (!state) {
      operations_.receive(
          from, [link = state_, from] { link->early_headers.receive(*link->backend, from); });
    }
    return may_receive ? state.value_or(NextMessage::kNone) : NextMessage::kNone;
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    const std::vector<int> members =
        members_of(exchange(*this, SplitChoice{color, key}, timeout), color);
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("split_{}_{}/", splits_, color), state_->store);
    const uint64_t group = flight_group(group_, splits_++, color);
    return std::make_shared<GlooTransport>(
        store,
        addresses_,
        index_in(members, rank()),
        static_cast<int>(members.size()),
        timeout,
        group);
  }

 private:
  static std::string number_key(int rank) { return fmt::format("number_{}", rank); }

  GlooAddresses addresses_;
  uint64_t group_;  ///< Its id in the flight record.
  std::shared_ptr<GlooState> state_;
  BlockingOperations<GlooState> operations_;
  int64_t splits_ = 0;
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(
    const WorldSpec& world,
    const c10::intrusive_ptr<c10d::Store>& store,
    uint64_t group,
    Milliseconds join_timeout) {
  raise_descriptor_limit();
  return std::make_shared<GlooTransport>(
      store,
      GlooAddresses{.own = data_address(world), .hosts = addresses_of_hosts(*store)},
      world.rank,
      world.size,
      join_timeout,
      group);
}

}  // namespace lockstep::comm
