// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/nccl/nccl_backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/nccl/nccl_comm.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/ordered_worker.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

constexpr Milliseconds kJoinTimeout = std::chrono::minutes(2);

/// Holds the result of a rank's attempt to join; an empty text if the rank has joined.
struct JoinResult {
  std::array<char, 256> failure{};  // The reason.
};

int type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return NcclApi::kUint8;
    case at::kInt:
      return NcclApi::kInt32;
    case at::kLong:
      return NcclApi::kInt64;
    case at::kHalf:
      return NcclApi::kFloat16;
    case at::kFloat:
      return NcclApi::kFloat32;
    case at::kDouble:
      return NcclApi::kFloat64;
    case at::kBFloat16:
      return NcclApi::kBfloat16;
    default:  // Group reduces no other type.
      return NcclApi::kInt8;
  }
}

int op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return NcclApi::kSum;
    case ReduceOp::kAvg:
      return NcclApi::kAvg;
    case ReduceOp::kMin:
      return NcclApi::kMin;
    case ReduceOp::kMax:
      return NcclApi::kMax;
    case ReduceOp::kProduct:
      return NcclApi::kProd;
  }
  return NcclApi::kSum;
}

/// Maps each operation to one call of NCCL, or to a group of calls. Operations that only copy use
/// bytes.
class Launcher {
 public:
  Launcher(const NcclApi& api, NcclApi::Comm comm, NcclApi::Stream stream, int rank, int size)
      : api_(api), comm_(comm), stream_(stream), rank_(rank), size_(size) {}

  NcclApi::Result operator()(const Collective& c) const {
    const auto* const in =
        static_cast<const std::byte*>(c.input.defined() ? c.input.const_data_ptr() : nullptr);
    auto* const out =
        static_cast<std::byte*>(c.output.defined() ? c.output.mutable_data_ptr() : nullptr);
    const auto numel = static_cast<size_t>(c.output.defined() ? c.output.numel() : 0);
    switch (c.op) {
      case Op::kAllReduce:
        return api_.all_reduce(out, out, numel, type_of(c.output), op_of(c.reduce), comm_, stream_);
      case Op::kReduceScatter:
        return api_.reduce_scatter(
            in, out, numel, type_of(c.output), op_of(c.reduce), comm_, stream_);
      case Op::kAllGather:
        return api_.all_gather(in, out, c.input.nbytes(), NcclApi::kInt8, comm_, stream_);
      case Op::kBroadcast:
        return api_.broadcast(out, out, c.output.nbytes(), NcclApi::kInt8, c.root, comm_, stream_);
      case Op::kAllToAll:
        return grouped([&](const Note& note) {
          send_parts(note, in, c.input.nbytes() / size_);
          receive_parts(note, out, c.input.nbytes() / size_);
        });
      case Op::kGather:
        return grouped([&](const Note& note) {
          note(send(in, c.input.nbytes(), c.root));
          if (rank_ == c.root) {
            receive_parts(note, out, c.input.nbytes());
          }
        });
      case Op::kScatter:
        return grouped([&](const Note& note) {
          if (rank_ == c.root) {
            send_parts(note, in, c.output.nbytes());
          }
          note(receive(out, c.output.nbytes(), c.root));
        });
      default:
        return NcclApi::kSuccess;  // DeviceTransport sends no other operation here.
    }
  }

 private:
  using Note = std::function<void(NcclApi::Result result)>;

  NcclApi::Result send(const std::byte* from, size_t bytes, int peer) const {
    return api_.send(from, bytes, NcclApi::kInt8, peer, comm_, stream_);
  }
  NcclApi::Result receive(std::byte* to, size_t bytes, int peer) const {
    return api_.recv(to, bytes, NcclApi::kInt8, peer, comm_, stream_);
  }
  void send_parts(const Note& note, const std::byte* from, size_t bytes) const {
    for (int peer = 0; peer < size_; ++peer) {
      note(send(from + static_cast<size_t>(peer) * bytes, bytes, peer));
    }
  }
  void receive_parts(const Note& note, std::byte* to, size_t bytes) const {
    for (int peer = 0; peer < size_; ++peer) {
      note(receive(to + static_cast<size_t>(peer) * bytes, bytes, peer));
    }
  }

  /// Runs the calls of `body` as a group: else a rank would wait for the first of its peers.
  /// Returns the first failure, if any.
  NcclApi::Result grouped(const std::function<void(const Note& note)>& body) const {
    NcclApi::Result all = api_.group_start();
    const Note note = [&](NcclApi::Result result) {
      all = all == NcclApi::kSuccess || all == NcclApi::kInProgress ? result : all;
    };
    body(note);
    note(api_.group_end());
    return all;
  }

  const NcclApi& api_;
  NcclApi::Comm comm_;
  NcclApi::Stream stream_;
  int rank_;
  int size_;
};

class NcclWork final : public Work {
 public:
  NcclWork(
      std::shared_ptr<NcclComm> comm,
      std::shared_ptr<Work> launch,
      std::shared_ptr<c10::Event> done,
      Collective collective)
      : comm_(std::move(comm)),
        launch_(std::move(launch)),
        done_(std::move(done)),
        collective_(std::move(collective)) {}

  bool done() const override {
    try {
      return launch_->done() && done_->query();
    } catch (const c10::Error&) {
      return true;  // CUDA itself has failed; wait() throws it.
    }
  }
  void wait(Milliseconds timeout) override {
    launch_->wait(timeout + kGrace);
    comm_->check_alive(collective_.op);
    const c10::impl::VirtualGuardImpl device(done_->device_type());
    done_->block(device.getStream(done_->device()));
  }

 private:
  /// The launch has the same timeout, and its error names the rank.
  static constexpr Milliseconds kGrace = std::chrono::milliseconds(500);

  std::shared_ptr<NcclComm> comm_;
  std::shared_ptr<Work> launch_;
  std::shared_ptr<c10::Event> done_;
  Collective collective_;  ///< Keeps the tensors alive.
};

/// Compares an operation with those of the other ranks, and enqueues it. Owned by the thread's
/// jobs, too: a job whose peers never arrive outlives the backend.
class NcclQueue {
 public:
  NcclQueue(std::shared_ptr<Transport> host, std::shared_ptr<NcclComm> comm, at::Device device)
      : host_(std::move(host)),
        comm_(std::move(comm)),
        device_(device),
        guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

  const std::shared_ptr<NcclComm>& comm() const { return comm_; }

  /// Enqueues the operation behind `ready`, and records `done` behind it. Throws CommError, on all
  /// ranks, unless all start the same operation.
  void launch(
      const Collective& collective,
      int64_t sequence,
      const FlightEntry& entry,
      const c10::Event& ready,
      const std::shared_ptr<c10::Event>& done,
      Milliseconds timeout) {
    const c10::DeviceGuard on_device(device_);
    entry.begin();
    try {
      comm_->check_alive(collective.op);
      compare(collective, sequence, timeout);
      ready.block(stream_);
      std::shared_ptr<c10::Event> begun;
      if (entry.is_observed()) {
        begun = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
        begun->record(stream_);
      }
      comm_->run(collective.op, timeout, [&](const NcclApi& api, NcclApi::Comm comm) {
        return Launcher(
            api, comm, stream_.native_handle(), host_->rank(), host_->size())(collective);
      });
      done->record(stream_);
      for (const at::Tensor* tensor : {&collective.input, &collective.output}) {
        if (tensor->defined()) {  // Its memory must not be reused before the operation ends.
          guard_.recordDataPtrOnStream(tensor->storage().data_ptr(), stream_);
        }
      }
      comm_->watch(std::move(begun), done, entry, collective.op, timeout);
    } catch (const std::exception& error) {
      entry.end(false);
      comm_->fail(error.what());
      throw;
    }
  }

 private:
  void compare(const Collective& collective, int64_t sequence, Milliseconds timeout) {
    const FlightRecordingPause pause;
    const auto all = exchange(*host_, fingerprint_of(collective, sequence), timeout);
    if (const auto sides = mismatch(all)) {
      throw CommError(name_of(collective.op), *sides);
    }
  }

  std::shared_ptr<Transport> host_;  ///< Used for comparisons only.
  std::shared_ptr<NcclComm> comm_;
  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
};

class NcclBackend final : public DeviceBackend {
 public:
  NcclBackend(std::shared_ptr<NcclQueue> queue, at::Device device, uint64_t group)
      : queue_(std::move(queue)), device_(device), group_(group) {}

  /// Operations that other ranks have not started within a second are dropped.
  ~NcclBackend() override {
    const std::shared_ptr<NcclComm>& comm = queue_->comm();
    bool launched = std::uncaught_exceptions() == 0;
    try {
      if (launched && last_launch_) {
        last_launch_->wait(std::chrono::seconds(1));
      }
    } catch (const std::exception&) {
      launched = false;
    }
    if (!launched) {
      comm->abort();
    }
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;

  const char* name() const override { return "nccl"; }
  bool is_on_host_transport() const override { return false; }

  void check_alive(Op op) const override { queue_->comm()->check_alive(op); }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    check_alive(collective.op);
    for (const at::Tensor* tensor : {&collective.input, &collective.output}) {
      if (tensor->defined() && tensor->device() != device_) {
        throw ConfigError(
            name_of(collective.op),
            fmt::format(
                "the tensor is on another device than earlier tensors of this group; got {}, "
                "expected {}",
                tensor->device().str(),
                device_.str()));
      }
    }
    const int64_t sequence = sequence_++;
    const FlightEntry entry(collective, group_, sequence);
    const auto flag =
        entry.is_observed() ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
    auto done = std::make_shared<c10::Event>(device_.type(), flag);
    const auto ready = std::make_shared<c10::Event>(device_.type());
    ready->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    // Not on this thread: other ranks may wait for another operation of this rank first.
    last_launch_ = worker_.submit(
        name_of(collective.op),
        [queue = queue_, collective, sequence, entry, ready, done, timeout] {
          queue->launch(collective, sequence, entry, *ready, done, timeout);
        });
    return std::make_shared<NcclWork>(
        queue_->comm(), last_launch_, std::move(done), std::move(collective));
  }

 private:
  std::shared_ptr<NcclQueue> queue_;
  at::Device device_;
  uint64_t group_;
  int64_t sequence_ = 0;
  std::shared_ptr<Work> last_launch_;
  OrderedWorker worker_;
};

/// Runs `step` on all ranks. Returns the first rank that failed and its reason; empty if none did.
std::string first_failure(
    Transport& host, const std::function<void()>& step, Milliseconds timeout) {
  JoinResult mine;
  try {
    step();
  } catch (const std::exception& error) {
    const std::string failure = without_rank_suffix(first_line(error.what()));
    std::strncpy(mine.failure.data(), failure.c_str(), mine.failure.size() - 1);
  }
  // Another rank may still be running the step.
  const std::vector<JoinResult> all = exchange(host, mine, timeout + kJoinTimeout);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failure[0] != '\0') {
      return fmt::format("rank {}: {}", rank, all[rank].failure.data());
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<DeviceBackend> make_nccl_backend(
    std::shared_ptr<Transport> host,
    at::Device device,
    const NcclApi& api,
    uint64_t group,
    Milliseconds timeout,
    std::string& why) {
  const FlightRecordingPause pause;
  NcclApi::UniqueId id{};
  std::shared_ptr<NcclComm> comm;
  const auto all_can = [&](const std::function<void()>& step) {
    why = first_failure(*host, step, timeout);
    return why.empty();
  };
  const auto make_id = [&] {
    const NcclApi::Result result = host->rank() == 0 ? api.get_unique_id(&id) : NcclApi::kSuccess;
    if (result != NcclApi::kSuccess) {
      throw CommError(
          "join", fmt::format("NCCL cannot create an id: {}", api.get_error_string(result)));
    }
  };
  if (!all_can(make_id)) {
    return nullptr;
  }
  id = exchange(*host, id, timeout)[0];
  // If a rank cannot begin, no rank waits for it in join.
  if (!all_can([&] {
        comm = std::make_shared<NcclComm>(api, id, host->rank(), host->size(), device);
      }) ||
      !all_can([&] { comm->join(std::min(timeout, kJoinTimeout)); })) {
    return nullptr;
  }
  // The thread that compares operations must not share `host` with the caller's operations.
  auto queue = std::make_shared<NcclQueue>(
      host->split(/*color=*/0, /*key=*/host->rank(), timeout), std::move(comm), device);
  return std::make_unique<NcclBackend>(std::move(queue), device, group);
}

}  // namespace lockstep::comm
