// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport.h"

namespace lockstep {

/// The result of an operation that may still be under way.
///
/// The tensors of the operation must not be touched before `wait` has returned. Dropping a Pending
/// without waiting is allowed: the operation goes on, only its failure is then seen by the next
/// one.
class Pending {
 public:
  explicit Pending(at::Tensor result) : result_(std::move(result)) {}
  Pending(at::Tensor result, std::shared_ptr<comm::Work> work, comm::Milliseconds timeout)
      : result_(std::move(result)), work_(std::move(work)), timeout_(timeout) {}

  /// True once `wait` would return, or throw, at once.
  bool done() const { return !work_ || work_->done(); }
  /// The result, when it may be read. Throws CommError, with the operation, seconds and what the
  /// ranks disagreed on; after that the group is dead. Uses the group's timeout unless given one.
  /// Over NCCL it does not wait: what is put on the current stream next finds the result, unless
  /// the operation fails, or takes longer than the timeout that it was started with; then the next
  /// operation throws.
  at::Tensor wait();
  at::Tensor wait(comm::Milliseconds timeout);

 private:
  at::Tensor result_;
  std::shared_ptr<comm::Work> work_;
  comm::Milliseconds timeout_{0};
};

/// Ranks that act together.
///
/// Every rank of the group must start the same operations in the same order with the same shapes
/// and dtypes. That is checked across ranks before the payload travels: a mismatch is a CommError
/// on every rank that names both sides, never a hang or an abort. So is an argument that one rank's
/// operation refuses with a ConfigError: that rank tells the others first, which waits for them. A
/// group of one returns its input at once, so the same program runs alone.
///
/// Cost: each operation on N > 1 ranks sends 128 bytes more per rank for that check.
/// A Group is a handle: copies are the same group. Destroying the last one never communicates; an
/// operation still under way is left to the peers to time out.
///
/// Thread safety: none; one thread at a time. After mlx's `Group` and MPI's communicator.
class Group {
 public:
  /// A group of one.
  Group();
  /// `timeout`: how long any operation may take before it is a CommError.
  explicit Group(std::shared_ptr<comm::Transport> transport, comm::Milliseconds timeout);

  int rank() const;
  int size() const;
  /// "shm", "gloo", "shm+gloo", "thread", or "none" for a group of one.
  const char* transport_name() const;
  comm::Milliseconds timeout() const { return timeout_; }
  /// A handle of the same group, whose operations may take as long as that.
  Group with_timeout(comm::Milliseconds timeout) const;

  /// Reduces `tensor` in place over the ranks; all of them get the same bits. kAvg needs a floating
  /// point tensor. Result: `tensor`.
  Pending all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum);
  /// Reduces `input` (N*k, ...) and gives rank r rows [r*k, (r+1)*k). Result: (k, ...).
  Pending reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  /// The same, into an `output` of (k, ...).
  Pending reduce_scatter_into(
      at::Tensor output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  /// Concatenates `input` of every rank along dim 0, in rank order; a 0-d tensor counts as (1).
  Pending all_gather(const at::Tensor& input);
  /// The same, into an `output` of (N*k, ...), for an `input` of (k, ...); 0-d counts as (1).
  Pending all_gather_into(at::Tensor output, const at::Tensor& input);
  /// Part i of `input` (N*k, ...) goes to rank i. Result: (N*k, ...), part i from rank i.
  Pending all_to_all(const at::Tensor& input);
  /// The same, into an `output` of the shape of `input`.
  Pending all_to_all_into(at::Tensor output, const at::Tensor& input);
  /// Overwrites `tensor` with root's. Result: `tensor`.
  Pending broadcast(at::Tensor tensor, int root = 0);
  /// all_gather for `root` alone; the result is undefined elsewhere.
  Pending gather(const at::Tensor& input, int root = 0);
  /// Fills `output` (k, ...) with this rank's part of root's `input` (N*k, ...), ignored elsewhere.
  Pending scatter(at::Tensor output, const at::Tensor& input, int root = 0);
  /// Point to point; an end that is never met (both send, say) is a timeout. Both ends must name
  /// the same shape and dtype; send is done when peer has it all.
  Pending send(const at::Tensor& tensor, int peer);
  Pending recv(const at::Tensor& tensor, int peer);
  /// Returns when every rank has called it.
  void barrier();
  /// Tells the other ranks that this one refuses its `argument` of `op`, before it throws: their
  /// operations fail with a message that names this rank and the argument's shape. Waits for them,
  /// at most for the timeout, and throws nothing. Takes the place of `op`. If all ranks refuse
  /// alike, the group stays usable.
  void refuse(comm::Op op, const at::Tensor& argument = {});
  /// CommError if an operation on a device has failed. These are told of by the next operation; who
  /// uses their results without one, to save them, asks here, once the device is done. Local.
  void check_alive() const;

  /// As at::empty. On the CPU the memory is such that operations on the tensor need the fewest
  /// copies: over shared memory none, the ranks reduce it where it lies. A tensor that has its
  /// pages to itself, so for large ones. Local: ranks need not call it together, but an operation
  /// saves its copies only where the tensors of all ranks come from here.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  /// One tensor of zeros on the CPU that all ranks have in common: what one writes, the others read
  /// after the next operation of both. Undefined where ranks have no memory in common, on every
  /// rank alike. Its memory is not given back before the group is gone. Collective.
  at::Tensor shared_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

  /// Ranks with equal `color` form a new group, ordered by `key`, then by rank. Collective.
  Group split(int color, int key = 0);

 private:
  Pending start(comm::Collective collective, at::Tensor result);
  /// Runs `check`; if it throws ConfigError, the other ranks are told first.
  template <typename Check>
  void checked(comm::Op op, const at::Tensor& argument, const Check& check);
  std::shared_ptr<comm::Transport> transport_;
  comm::Milliseconds timeout_{std::chrono::minutes(10)};
};

}  // namespace lockstep
