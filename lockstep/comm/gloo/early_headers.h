// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// The tag of a sender's header, which precedes its message.
inline constexpr int kSenderHeaderTag = 1;

/// Returns the fingerprint's memory, which must live as long as the tensor, as int64[16].
at::Tensor fingerprint_tensor(Fingerprint& fingerprint);

/// Blocks until all are done. Throws std::exception if one fails or `timeout` ends.
void wait_all(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, Milliseconds timeout);

/// Receives the headers of messages before a recv is started, so that a rank learns which sender's
/// message arrives first. At most one for each sender is requested at a time.
///
/// Thread safety: all functions. A receive() blocks its thread until the message is sent, the
/// connection is lost, or close().
class EarlyHeaders {
 public:
  /// Returns the header that has arrived from a rank, if any, and forgets it.
  std::optional<Fingerprint> take(int from);
  /// Returns the state of the header from a rank, kNone for another tag. Nothing: none was
  /// requested, so the caller must call receive().
  std::optional<NextMessage> state(int from, int tag);
  /// Blocks until a rank sends its next message, or its connection is lost, which is no failure of
  /// the group: the rank may have sent its last message.
  void receive(c10d::Backend& backend, int from);
  /// Ends the running receives, whose threads keep the connection.
  void close();

 private:
  struct Header {
    NextMessage state = NextMessage::kNone;
    Fingerprint fingerprint = {};
  };

  std::mutex mutex_;
  std::map<int, Header> headers_;  ///< By sender.
  std::map<int, c10::intrusive_ptr<c10d::Work>> receives_;
  std::condition_variable ended_;
  bool closed_ = false;
};

}  // namespace lockstep::comm
