// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/pipeline/chunk.h"

namespace lockstep::pipeline {

/// Sends and receives tensors whose number, shapes and dtypes only the sender knows.
///
/// A header of 128 bytes precedes each tensor: whether there is one, its dtype and sizes, and
/// whether it requires a gradient. Before several tensors, a header with their number precedes one
/// message of all their headers. The header costs one message, some microseconds next to the
/// milliseconds of a micro-batch. A header only at a change would need a second channel, on which
/// the receiver learns of the change, and save only that.
///
/// A receive starts with its header. The tensors' receives start before the next operation of this
/// object, or with `take`. So the tensors are always the operations behind their header on both
/// ranks, and lists of messages that cannot deadlock stay so. Computations may run between.
///
/// One tag names one message at a time. Not thread-safe. Every error of the group is thrown, and
/// the object cannot be used afterwards.
class TensorMessages {
 public:
  /// `device`: of the received tensors.
  TensorMessages(Group group, at::Device device) : group_(std::move(group)), device_(device) {}

  /// Starts to send tensors of at most 12 dimensions; an undefined one is sent as "none".
  void send(const Values& values, int peer, int tag);
  /// Starts to receive.
  void receive(int peer, int tag);
  /// Waits for the tensors that `receive` was started for, and returns them.
  Values take(int tag);
  /// Waits for all sends.
  void finish();

 private:
  struct Part {
    Pending pending{at::Tensor()};
    bool requires_grad = false;
  };
  struct Incoming {
    int peer = 0;
    int tag = 0;
    std::vector<Part> parts;  ///< The header alone until it was read.
  };

  /// Waits for the receives of `peer` that started before `end`. They are waited for in their
  /// order, since the transport of threads matches messages when it waits.
  void wait_in_order(int peer, std::list<Incoming>::iterator end);
  void read_header();

  Group group_;
  at::Device device_;
  std::list<Incoming> incoming_;  ///< In the order of their start.
  bool has_unread_ = false;       ///< The header of the last one was not read.
  std::deque<Pending> sends_;
};

}  // namespace lockstep::pipeline
