// SPDX-License-Identifier: Apache-2.0
// Simulates NCCL in tests, for ranks that are threads of one process. The memory of its "devices"
// is the host's. It is a separate shared library, loaded as NCCL is.
//
// It behaves like a non-blocking communicator: joining is in progress until all ranks have joined.
// Its operations are done when they return. These environment variables cause failures:
//   FAKE_NCCL_NO_JOIN=R        rank R cannot join ("Duplicate GPU detected")
//   FAKE_NCCL_FAIL_REDUCE=N    an all_reduce of N elements fails at once
//   FAKE_NCCL_LATE_ERROR=N     an all_reduce of N elements fails after its start
// A communicator of another library is refused ("corrupted comm object"), as NCCL does.
// fake_nccl_destroyed() and fake_nccl_aborted() count the communicators that have ended so.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/nccl/nccl_api.h"

namespace {

using lockstep::comm::NcclApi;
using Result = NcclApi::Result;

constexpr Result kInvalidArgument = 4;
constexpr Result kInvalidUsage = 5;
constexpr Result kSystemError = 2;

struct Call {
  enum Kind { kReduce, kScatter, kGather, kBroadcast, kPoint } kind = kReduce;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
  std::vector<std::pair<int, std::pair<const void*, size_t>>> sends = {};
  std::vector<std::pair<int, std::pair<void*, size_t>>> receives = {};
};

size_t size_of(int type) {
  switch (type) {
    case NcclApi::kInt64:
    case NcclApi::kFloat64:
      return 8;
    case NcclApi::kInt32:
    case NcclApi::kFloat32:
      return 4;
    case NcclApi::kFloat16:
    case NcclApi::kBfloat16:
      return 2;
    default:
      return 1;
  }
}

template <typename T>
void reduce_typed(
    const std::vector<const void*>& from, size_t offset, void* to, size_t count, int op) {
  std::vector<T> result(count);
  for (size_t i = 0; i < count; ++i) {
    T value = static_cast<const T*>(from[0])[offset + i];
    for (size_t rank = 1; rank < from.size(); ++rank) {
      const T other = static_cast<const T*>(from[rank])[offset + i];
      value = op == NcclApi::kProd  ? value * other
              : op == NcclApi::kMax ? (value > other ? value : other)
              : op == NcclApi::kMin ? (value < other ? value : other)
                                    : value + other;
    }
    result[i] = op == NcclApi::kAvg ? value / static_cast<T>(from.size()) : value;
  }
  std::memcpy(to, result.data(), count * sizeof(T));
}

/// Connects the ranks of one id. The last rank to arrive executes an operation for all.
class Ring {
 public:
  explicit Ring(int size) : calls_(static_cast<size_t>(size)) {}

  void join() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++joined_;
  }
  /// Returns whether all ranks have joined.
  bool complete() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return joined_ == calls_.size();
  }
  void abort() {
    const std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

  Result run(int rank, Call call) {
    std::unique_lock<std::mutex> lock(mutex_);
    calls_[static_cast<size_t>(rank)] = std::move(call);
    const uint64_t round = round_;
    if (++present_ == calls_.size()) {
      perform();
      present_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round || aborted_; });
    }
    return round_ == round ? kSystemError : NcclApi::kSuccess;  // A rank has aborted.
  }

 private:
  void perform() {
    const std::vector<Call> calls = calls_;
    std::vector<std::vector<char>> inputs;  // Copies, since results may overwrite inputs.
    std::vector<const void*> from;
    const bool reduces = calls[0].kind == Call::kReduce || calls[0].kind == Call::kScatter;
    for (const Call& call : calls) {
      const size_t elements = call.kind == Call::kScatter ? call.count * calls.size() : call.count;
      const auto* const begin = static_cast<const char*>(call.in);
      const size_t bytes = begin == nullptr ? 0 : elements * size_of(call.type);
      inputs.emplace_back(begin, begin + bytes);
      from.push_back(inputs.back().data());
    }
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      const Call& call = calls[rank];
      if (reduces) {
        reduce(from, call.kind == Call::kScatter ? rank * call.count : 0, call);
      } else if (call.kind == Call::kGather) {
        for (size_t peer = 0; peer < calls.size(); ++peer) {
          std::memcpy(
              static_cast<char*>(call.out) + peer * inputs[peer].size(),
              from[peer],
              inputs[peer].size());
        }
      } else if (call.kind == Call::kBroadcast) {
        std::memcpy(call.out, from[static_cast<size_t>(call.root)], inputs[0].size());
      }
    }
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      for (const auto& [peer, target] : calls[rank].receives) {
        for (const auto& [to, source] : calls[static_cast<size_t>(peer)].sends) {
          if (to == static_cast<int>(rank)) {
            std::memcpy(target.first, source.first, source.second);
          }
        }
      }
    }
  }

  static void reduce(const std::vector<const void*>& from, size_t offset, const Call& call) {
    switch (call.type) {
      case NcclApi::kFloat64:
        return reduce_typed<double>(from, offset, call.out, call.count, call.op);
      case NcclApi::kInt64:
        return reduce_typed<int64_t>(from, offset, call.out, call.count, call.op);
      case NcclApi::kInt32:
        return reduce_typed<int32_t>(from, offset, call.out, call.count, call.op);
      case NcclApi::kFloat32:
        return reduce_typed<float>(from, offset, call.out, call.count, call.op);
      default:
        std::abort();  // No test needs another type.
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  size_t joined_ = 0;
  size_t present_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
};

std::mutex rings_mutex;
std::map<std::string, std::shared_ptr<Ring>> rings;
int next_id = 0;
std::atomic<int> destroyed{0};
std::atomic<int> aborted{0};

struct Comm {
  std::shared_ptr<Ring> ring;
  int rank = 0;
  Result error = NcclApi::kSuccess;
  const void* library = nullptr;  ///< The loaded file that has created it.
};

/// Returns an address that differs between two loaded copies of this file.
const void* this_library() {
  static const char mark = 0;
  return &mark;
}

Comm* from(NcclApi::Comm comm) {
  return reinterpret_cast<Comm*>(comm);
}

Result run(NcclApi::Comm comm, Call call) {
  const Comm& mine = *from(comm);
  if (mine.library != this_library()) {
    return kInvalidArgument;
  }
  return mine.ring->run(mine.rank, std::move(call));
}

thread_local bool grouping = false;
thread_local Call group;
thread_local Comm* grouped = nullptr;

long number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::strtol(text, nullptr, 10);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22005;
  return NcclApi::kSuccess;
}

Result ncclGetUniqueId(NcclApi::UniqueId* id) {
  const std::lock_guard<std::mutex> lock(rings_mutex);
  *id = {};
  std::strncpy(id->bytes, std::to_string(++next_id).c_str(), sizeof(id->bytes) - 1);
  return NcclApi::kSuccess;
}

/// Is exported, as are functions of NCCL that others call. `ring` is a std::shared_ptr<Ring>*.
NcclApi::Comm fake_nccl_new_comm(const void* ring, int rank) {
  return reinterpret_cast<NcclApi::Comm>(new Comm{
      .ring = *static_cast<const std::shared_ptr<Ring>*>(ring),
      .rank = rank,
      .library = this_library()});
}

Result ncclCommInitRankConfig(
    NcclApi::Comm* comm, int size, NcclApi::UniqueId id, int rank, NcclApi::Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || rank == number("FAKE_NCCL_NO_JOIN")) {
    *comm = nullptr;
    return kInvalidUsage;
  }
  const std::lock_guard<std::mutex> lock(rings_mutex);
  std::shared_ptr<Ring>& ring = rings[id.bytes];
  if (!ring) {
    ring = std::make_shared<Ring>(size);
  }
  ring->join();
  *comm = fake_nccl_new_comm(&ring, rank);
  return NcclApi::kInProgress;
}

int fake_nccl_destroyed() {
  return destroyed;
}

int fake_nccl_aborted() {
  return aborted;
}

Result ncclCommDestroy(NcclApi::Comm comm) {
  ++destroyed;
  delete from(comm);
  return NcclApi::kSuccess;
}

Result ncclCommAbort(NcclApi::Comm comm) {
  ++aborted;
  from(comm)->ring->abort();
  delete from(comm);
  return NcclApi::kSuccess;
}

Result ncclCommGetAsyncError(NcclApi::Comm comm, Result* error) {
  const Comm& mine = *from(comm);
  *error = mine.ring->complete() ? mine.error : NcclApi::kInProgress;
  return NcclApi::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  return result == kInvalidUsage ? "invalid usage" : "unhandled system error";
}

const char* ncclGetLastError(NcclApi::Comm /*comm*/) {
  return "Duplicate GPU detected";
}

Result ncclGroupStart() {
  grouping = true;
  group = {.kind = Call::kPoint};
  return NcclApi::kSuccess;
}

Result ncclGroupEnd() {
  grouping = false;
  return grouped->ring->run(grouped->rank, std::move(group));
}

Result ncclSend(
    const void* data, size_t count, int type, int peer, NcclApi::Comm comm, NcclApi::Stream) {
  grouped = from(comm);
  group.sends.push_back({peer, {data, count * size_of(type)}});
  return grouping ? NcclApi::kSuccess : kInvalidUsage;
}

Result ncclRecv(void* data, size_t count, int type, int peer, NcclApi::Comm comm, NcclApi::Stream) {
  grouped = from(comm);
  group.receives.push_back({peer, {data, count * size_of(type)}});
  return grouping ? NcclApi::kSuccess : kInvalidUsage;
}

Result ncclAllReduce(
    const void* in,
    void* out,
    size_t count,
    int type,
    int op,
    NcclApi::Comm comm,
    NcclApi::Stream) {
  if (static_cast<long>(count) == number("FAKE_NCCL_FAIL_REDUCE")) {
    from(comm)->error = kSystemError;
    return NcclApi::kInProgress;
  }
  if (static_cast<long>(count) == number("FAKE_NCCL_LATE_ERROR")) {
    from(comm)->error = kSystemError;
  }
  return run(
      comm, {.kind = Call::kReduce, .in = in, .out = out, .count = count, .type = type, .op = op});
}

Result ncclReduceScatter(
    const void* in,
    void* out,
    size_t count,
    int type,
    int op,
    NcclApi::Comm comm,
    NcclApi::Stream) {
  return run(
      comm, {.kind = Call::kScatter, .in = in, .out = out, .count = count, .type = type, .op = op});
}

Result ncclAllGather(
    const void* in, void* out, size_t count, int type, NcclApi::Comm comm, NcclApi::Stream) {
  return run(comm, {.kind = Call::kGather, .in = in, .out = out, .count = count, .type = type});
}

Result ncclBroadcast(
    const void* in,
    void* out,
    size_t count,
    int type,
    int root,
    NcclApi::Comm comm,
    NcclApi::Stream) {
  return run(
      comm,
      {.kind = Call::kBroadcast, .in = in, .out = out, .count = count, .type = type, .root = root});
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
