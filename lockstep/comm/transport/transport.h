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
#include <c10/util/FunctionRef.h>

namespace lockstep {

enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

const char* name_of(ReduceOp op);

/// Declares the interface of a transport, below Group. Users include group.h instead.
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

/// Observes one operation.
///
/// The thread that executes the operation calls `begin` when its turn comes, and `end` when it has
/// succeeded or failed. An operation that never had its turn may have neither. Both must return at
/// once and not throw, and nothing that they do may communicate. The last call may be on another
/// thread than the start. Cost: two virtual calls.
class OperationObserver {
 public:
  OperationObserver() = default;
  virtual ~OperationObserver() = default;
  OperationObserver(const OperationObserver&) = delete;
  OperationObserver& operator=(const OperationObserver&) = delete;
  virtual void begin() = 0;
  /// `measured_ms`: the duration that the device measured, if any.
  virtual void end(bool succeeded, std::optional<double> measured_ms) = 0;
};

/// Describes one operation, as a transport receives it. Group has checked it: tensors are
/// contiguous, shapes fit the op on this rank, `root` is in the group. The transport checks by
/// fingerprint, before it sends data, that the *other* ranks agree.
///
/// In place (output only): all_reduce, broadcast, recv. Input only: send. Both: all_gather
/// (output = N inputs along dim 0), reduce_scatter (input = N outputs), all_to_all, gather (output
/// defined on root alone), scatter (input defined on root alone). Neither: barrier. A refusal is a
/// barrier with a root, see refusal_of; so is a question, see question_of.
struct Collective {
  Op op = Op::kBarrier;
  at::Tensor input = {};
  at::Tensor output = {};
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;  ///< Root, or the peer of send and recv.
  int tag = 0;   ///< Of send and recv; both name the same.
  /// The program's call that needs it, see CallScope; null: unknown. Not compared.
  const char* call = nullptr;
  std::shared_ptr<OperationObserver> observer = nullptr;  ///< Null: none.
};

/// Observes the operations of a group and its subgroups; see Group::with_observer.
class GroupObserver {
 public:
  GroupObserver() = default;
  virtual ~GroupObserver() = default;
  GroupObserver(const GroupObserver&) = delete;
  GroupObserver& operator=(const GroupObserver&) = delete;
  /// Returns the observer of an operation that begins on a group of `ranks`, or null for none. The
  /// thread that starts it calls this, so threads that take turns need no lock. Exchanges within an
  /// operation are not observed.
  virtual std::shared_ptr<OperationObserver> observe(const Collective& collective, int ranks) = 0;
  /// Returns the observer of a group of a mesh, whose ranks differ in `dims`, such as "tp" or
  /// "dp_cp"; null: this one.
  virtual std::shared_ptr<GroupObserver> of_mesh_dims(const std::string& /*dims*/) {
    return nullptr;
  }
};

/// Returns the operation that a rank starts in place of `op` if it refuses an argument.
///
/// It is a barrier whose fingerprint reports the refusal. The other ranks' operations then fail
/// with a message that names the rank and the argument's shape. If all ranks refuse in the same
/// way, it succeeds.
Collective refusal_of(Op op, const at::Tensor& argument);
/// Returns the operation that `collective` refuses; nothing if it is not a refusal.
std::optional<Op> refused_op(const Collective& collective);

/// Returns the operation by which a rank asks whether all ranks start it. `answer` is one byte, 1,
/// and becomes 0 if not.
///
/// If rank 0 alone asks, and all others start one other operation, the answer is no, and that
/// operation goes on to wait for rank 0's next one. So a question has the sequence number of the
/// operation after it, and the rank must wait for the answer before it starts another one.
Collective question_of(const at::Tensor& answer);
bool is_question(const Collective& collective);
/// Answers with no. `question` must be one.
void deny(const Collective& question);

/// Holds the properties of an operation that must be equal on all ranks. The ranks compare them
/// before any data is sent.
struct Fingerprint {
  int64_t sequence = 0;  ///< Number of operations that this group has started before, see Sequence.
  int64_t op = 0;
  int64_t reduce = 0;
  int64_t root = 0;
  int64_t dtype = -1;
  int64_t dims = -1;
  std::array<int64_t, 7> sizes{};  ///< Sizes after the seventh are multiplied into the last one.
  std::array<char, 24> call{};     ///< Of the Collective, for messages; zeros: unknown.

  /// Compares all but `call`: the same operation may be part of different calls.
  bool operator==(const Fingerprint& other) const;
  /// Formats "all_reduce(sum) of float32[10, 20]".
  std::string describe() const;
};
static_assert(sizeof(Fingerprint) == 128, "sent as sixteen int64");

Fingerprint fingerprint_of(const Collective& collective, int64_t sequence);

/// Compares the two ends of a point-to-point operation: `mine` is this rank's, `theirs` the peer's.
/// Returns nothing if they match, else a sentence naming both sides.
std::optional<std::string> mismatch(
    const Fingerprint& mine, int my_rank, const Fingerprint& theirs, int their_rank);

/// Compares the fingerprints of all ranks, in rank order. Returns nothing if they match, else a
/// sentence naming each side and its ranks: "rank 0 calls all_reduce(sum) of float32[10], rank 1
/// calls ... of float32[20]". A side whose call is known has "backward (all_reduce(sum) ...)".
std::optional<std::string> mismatch(const std::vector<Fingerprint>& by_rank);

/// Returns whether rank 0 alone asks a question, and all others start one other operation, which is
/// then to be compared again.
bool asks_alone(const std::vector<Fingerprint>& by_rank);

/// Compares the fingerprints that `exchange` returns, again after each question of rank 0 alone,
/// which it denies on that rank. Throws CommError if they differ.
void compare_fingerprints(
    const Collective& mine, int rank, c10::function_ref<std::vector<Fingerprint>()> exchange);

/// Counts the operations of a group.
class Sequence {
 public:
  /// Returns the number of an operation that starts now.
  int64_t next(const Collective& collective) { return is_question(collective) ? next_ : next_++; }

 private:
  int64_t next_ = 0;
};

/// Controls a running operation.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual bool done() const = 0;
  /// Blocks until the result may be read. Throws CommError if the operation failed or `timeout`
  /// ended.
  virtual void wait(Milliseconds timeout) = 0;
};

/// The next message of a rank that no recv was started for.
enum class NextMessage {
  kNone,     ///< Has not begun to arrive, or has another tag.
  kArrives,  ///< A recv of that rank with this tag gets it.
  kLost      ///< None will arrive: the rank has left, or its connection was lost.
};

/// Connects the ranks of one group and executes their operations. Cost and source:
/// see each implementation.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts `collective`; operations of one rank take effect in the order of their start.
  /// `collective` keeps the tensors alive until the work is done. Its observer is notified, by a
  /// FlightEntry (flight.h).
  virtual std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) = 0;
  /// Returns whether every operation answers a question that rank 0 asks alone. False for
  /// operations that are compared over another transport.
  virtual bool answers_questions() const { return true; }
  /// Throws CommError if an operation on a device has failed, possibly unnoticed: its results are
  /// invalid. Failed CPU operations have thrown already.
  virtual void check_alive(Op /*op*/) const {}
  /// Allocates `bytes` of uninitialized CPU memory that operations use with the fewest copies.
  virtual at::Tensor allocate(int64_t bytes);
  /// Allocates `bytes` zeros that all ranks share. Returns an undefined tensor on all ranks if they
  /// cannot share memory. Collective.
  virtual at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout);
  /// Sets a number of this rank, other than 0, which the others read by number_of. A later call
  /// replaces it. Local, thread-safe. A group of split() has numbers of its own. Throws CommError
  /// if this rank has left the group, and Error in the transports without numbers of some tests.
  virtual void set_number(uint64_t number);
  /// Returns the number that `rank` has set. Blocks until it has, though that rank need not take
  /// part. Throws CommError when `timeout` ends. Thread-safe.
  virtual uint64_t number_of(int rank, Milliseconds timeout);
  /// Examines the next message of rank `from`, without receiving it. Local. Throws CommError if the
  /// group has failed, and Error in the transports without it of some tests.
  virtual NextMessage next_message(int from, int tag);
  /// Connects ranks with the same `color` by a new transport, ordered by (key, rank). Collective.
  virtual std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) = 0;
};

}  // namespace comm
}  // namespace lockstep
