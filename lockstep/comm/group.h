// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep {

namespace comm {
class GroupUser;
}

/// Holds the result of an operation that may still be running.
///
/// Do not use the tensors of the operation before `wait` has returned. A Pending may be dropped
/// without waiting: the operation continues, and its failure is thrown by the group's next
/// operation.
class Pending {
 public:
  explicit Pending(at::Tensor result) : result_(std::move(result)) {}
  /// Returns true if `wait` would return, or throw, at once.
  bool done() const { return !work_ || work_->done(); }
  /// Blocks until the result may be read, and returns it. Uses the group's timeout unless given
  /// one. Throws CommError with the operation, the seconds and the ranks' mismatch; the group
  /// cannot be used afterwards. Over NCCL it does not block: later work on the current stream sees
  /// the result. If such an operation fails or exceeds its timeout, the next operation throws.
  at::Tensor wait();
  at::Tensor wait(comm::Milliseconds timeout);

 private:
  friend class Group;

  at::Tensor result_;
  std::shared_ptr<comm::Work> work_;
  comm::Milliseconds timeout_{0};
  std::shared_ptr<comm::GroupUser> user_;
  const void* starter_ = nullptr;  ///< GroupUser::this_thread() of the thread that started it.
};

/// Connects a set of ranks that communicate, like MPI's communicator.
///
/// Every rank of the group must start the same operations in the same order with the same shapes
/// and dtypes. The ranks compare these before data is sent: a mismatch is a CommError on every rank
/// that names both sides, never a hang or an abort. If one rank refuses an argument with a
/// ConfigError, it informs the others, whose operation throws. A group of one returns its input at
/// once, so the same program runs in one process.
///
/// Cost: each operation on N > 1 ranks sends 128 bytes more per rank for that check. A Group is a
/// handle: copies refer to the same group. Destroying the last one never communicates. Over shared
/// memory a running operation then fails, over Gloo it is left to its thread, and over NCCL the
/// destructor waits for it, at most for its timeout.
///
/// Not thread-safe: an operation throws ConfigError while another thread is inside one of the same
/// group. Threads may take turns; threads at the same time need a group each, see split(). Modelled
/// on mlx's `Group` and MPI's communicator.
class Group {
 public:
  /// Creates a group of one.
  Group();
  /// `timeout`: the time after which an operation throws CommError.
  explicit Group(std::shared_ptr<comm::Transport> transport, comm::Milliseconds timeout);

  int rank() const;
  int size() const;
  /// Returns the transport: "shm", "gloo", "shm+gloo" or "thread"; "none" for a group of one. After
  /// the first collective of device tensors ", " and the device backend follow: "shm, nccl".
  const char* transport_name() const;
  comm::Milliseconds timeout() const { return timeout_; }
  /// Returns a handle of the same group with another timeout.
  Group with_timeout(comm::Milliseconds timeout) const;
  /// Returns a handle of the same group whose operations, and those of its later splits, `observer`
  /// observes. Groups of one have none.
  Group with_observer(std::shared_ptr<comm::GroupObserver> observer) const;
  /// Returns a handle of the same group, which the observer sees as that of these dimensions of a
  /// mesh.
  Group with_mesh_dims(const std::string& dims) const;

  /// Reduces `tensor` in place over the ranks; the result is bit-identical on all of them. kAvg
  /// needs a floating point tensor. Result: `tensor`.
  Pending all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum);
  /// Reduces `input` (N*k, ...); rank r gets rows [r*k, (r+1)*k). Result: (k, ...).
  Pending reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  /// Does the same into an `output` of (k, ...).
  Pending reduce_scatter_into(
      at::Tensor output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  /// Concatenates `input` of every rank along dim 0, in rank order; a 0-d tensor counts as (1).
  Pending all_gather(const at::Tensor& input);
  /// Does the same into an `output` of (N*k, ...), for an `input` of (k, ...); 0-d counts as (1).
  Pending all_gather_into(at::Tensor output, const at::Tensor& input);
  /// Sends part i of `input` (N*k, ...) to rank i. Result: (N*k, ...), part i from rank i.
  Pending all_to_all(const at::Tensor& input);
  /// Does the same into an `output` of the shape of `input`.
  Pending all_to_all_into(at::Tensor output, const at::Tensor& input);
  /// Overwrites `tensor` with that of `root`. Result: `tensor`.
  Pending broadcast(at::Tensor tensor, int root = 0);
  /// Gathers only on `root`; the result is undefined on other ranks.
  Pending gather(const at::Tensor& input, int root = 0);
  /// Fills `output` (k, ...) with this rank's part of root's `input` (N*k, ...), ignored on other
  /// ranks.
  Pending scatter(at::Tensor output, const at::Tensor& input, int root = 0);
  /// Sends a message to `peer`, which must receive the same shape and dtype. It is done when the
  /// peer has received everything. Without a recv of the peer (both send, for instance) it times
  /// out. The messages from one rank to another are received in the order of their sending; a
  /// `tag` only shows that both ranks mean the same message.
  Pending send(const at::Tensor& tensor, int peer, int tag = 0);
  /// Receives a message of `peer` into `tensor`.
  Pending recv(const at::Tensor& tensor, int peer, int tag = 0);
  /// Returns a rank whose next message has this tag, and from which a recv() of it gets it; nothing
  /// if none has begun to arrive. Messages that a recv() was started for do not count. For messages
  /// from any rank. Local. Throws CommError if all other ranks have left.
  std::optional<int> sender_of_next(int tag = 0);
  /// Does the same, but blocks until there is one, at most for `limit`. Over sockets a rank that
  /// has died is one that has left; over shared memory it throws at once.
  std::optional<int> await_sender(int tag, comm::Milliseconds limit);
  /// Blocks until every rank has called it.
  void barrier();
  /// Starts a barrier; it is done when every rank has started it. The result is undefined.
  Pending start_barrier();
  /// Returns whether all ranks call it. If rank 0 alone does, it gets false as soon as the others
  /// start another operation of this group, all the same one, which then waits for rank 0's next
  /// operation. Every other difference is an error, as with all operations. Collective; cost: a
  /// barrier.
  bool called_by_all();
  /// Returns whether every operation of the group answers called_by_all(). False over NCCL, whose
  /// operations are compared in a group of their own.
  bool answers_questions() const;
  /// Informs the other ranks, in place of `op`, that this rank refuses its `argument`. Their
  /// operations fail with a message that names this rank and the argument's shape. Blocks until
  /// they have failed, at most for the timeout, and throws nothing. If all ranks refuse in the same
  /// way, the group stays usable.
  void refuse(comm::Op op, const at::Tensor& argument = {});
  /// Throws CommError if an operation on a device has failed. The next operation would report it;
  /// call this before saving results without a further operation, after the device has finished.
  /// Local.
  void check_alive() const;

  /// Allocates as at::empty. CPU memory is chosen so that operations on the tensor need the fewest
  /// copies: over shared memory none, the ranks reduce it in place. The tensor has its own pages,
  /// so it is for large ones. Local: ranks need not call it together, but an operation saves its
  /// copies only if the tensors of all ranks come from here.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  /// Allocates one CPU tensor of zeros that all ranks share. A write is visible to other ranks
  /// after the next operation of both. Returns an undefined tensor, on every rank, if the ranks
  /// have no shared memory. The memory is freed with the group. Collective.
  at::Tensor shared_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

  /// Sets a number of this rank, other than 0, such as a port, which the others read by number_of.
  /// A later call replaces it. Local. Thread-safe.
  void set_number(uint64_t number);
  /// Returns the number that `rank` has set. Blocks until it has; that rank need not take part.
  /// Throws CommError when the group's timeout ends. A group of one has no numbers: returns 0.
  /// Thread-safe.
  uint64_t number_of(int rank) const;

  /// Splits the group: ranks with equal `color` form a new one, ordered by `key`, then by rank.
  /// Collective.
  Group split(int color, int key = 0);

 private:
  Pending start(comm::Collective collective, at::Tensor result);
  /// Runs `check`; if it throws ConfigError, the other ranks are informed first.
  template <typename Check>
  void checked(comm::Op op, const at::Tensor& argument, const Check& check);
  std::shared_ptr<comm::Transport> transport_;
  std::shared_ptr<comm::GroupUser> user_;  ///< Shared by all handles; null for a group of one.
  std::shared_ptr<comm::GroupObserver> observer_;  ///< Null: none.
  comm::Milliseconds timeout_{std::chrono::minutes(10)};
};

}  // namespace lockstep
