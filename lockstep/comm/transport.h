// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

const char* name_of(ReduceOp op);

/// What lies below Group: the interface that a way of moving bytes implements. Users never include
/// it.
namespace comm {

using Milliseconds = std::chrono::milliseconds;

enum class Op {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kGather,
  kScatter,
  kSend,
  kRecv,
  kBarrier
};

const char* name_of(Op op);

/// One operation as a transport receives it. Group has checked it: tensors are contiguous, shapes
/// fit the op on this rank, `root` lies in the group. Whether the *other* ranks agree is the
/// transport's to check, by fingerprint, before anything else of the operation goes on the wire.
///
/// in place (output only): all_reduce, broadcast, recv. Input only: send. Both: all_gather
/// (output = N inputs along dim 0), reduce_scatter (input = N outputs), all_to_all, gather (output
/// defined on root alone), scatter (input defined on root alone). Neither: barrier. A refusal is a
/// barrier with a root, see refusal_of.
struct Collective {
  Op op = Op::kBarrier;
  at::Tensor input = {};
  at::Tensor output = {};
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;  ///< Root, or the peer of send and recv.
};

/// What a rank takes part in instead of `op` whose argument it refuses: a barrier that says so in
/// its fingerprint. The other ranks' operations then fail with a message that names the rank and
/// the argument's shape. If all ranks refuse alike, it succeeds.
Collective refusal_of(Op op, const at::Tensor& argument);
/// The operation that `collective` refuses; nothing if it is no refusal.
std::optional<Op> refused_op(const Collective& collective);

/// What ranks compare before an operation: everything that must be the same on each of them.
struct Fingerprint {
  int64_t sequence = 0;  ///< How many operations this group has started before.
  int64_t op = 0;
  int64_t reduce = 0;
  int64_t root = 0;
  int64_t dtype = -1;
  int64_t dims = -1;
  std::array<int64_t, 10> sizes{};  ///< Sizes past the tenth are multiplied into the last one.

  bool operator==(const Fingerprint&) const = default;
  /// "all_reduce(sum) of float32[10, 20]".
  std::string describe() const;
};
static_assert(sizeof(Fingerprint) == 128, "travels as sixteen int64");

Fingerprint fingerprint_of(const Collective& collective, int64_t sequence);

/// What two ends of a point-to-point operation compare: `mine` is what this rank does, `theirs`
/// came from the peer. Nothing if they fit, else a sentence naming both sides.
std::optional<std::string> mismatch(
    const Fingerprint& mine, int my_rank, const Fingerprint& theirs, int their_rank);

/// Nothing if all ranks (in rank order) are about to do the same, else a sentence naming each side
/// and its ranks: "rank 0 calls all_reduce(sum) of float32[10], rank 1 calls ... of float32[20]".
std::optional<std::string> mismatch(const std::vector<Fingerprint>& by_rank);

/// An operation under way.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual bool done() const = 0;
  /// Returns when the result may be read; throws CommError if the operation failed or `timeout` ran
  /// out.
  virtual void wait(Milliseconds timeout) = 0;
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts `collective`; operations of one rank take effect in the order started. The tensors stay
  /// alive through `collective` until the work is done.
  virtual std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) = 0;
  /// CommError if an operation on a device has failed, which nobody may have noticed: its results
  /// are worthless. Operations on the CPU that have failed have told so.
  virtual void check_alive(Op /*op*/) const {}
  /// `bytes` of memory on the CPU, not initialised, which operations reach with the fewest copies.
  virtual at::Tensor allocate(int64_t bytes);
  /// `bytes` zeros that all ranks have in common, or, on all of them, an undefined tensor.
  /// Collective.
  virtual at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout);
  /// Ranks with the same `color` form a new transport, ordered by (key, rank). Collective.
  virtual std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) = 0;
};

}  // namespace comm
}  // namespace lockstep
