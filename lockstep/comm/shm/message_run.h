// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// Runs one end of a message. It progresses as far as the peer allows, and never blocks.
///
/// Two chunks of a message may be in the channel at a time. Each end of a channel has one running
/// message.
class MessageRun {
 public:
  /// `collective` (kSend or kRecv) and its tensor must live until done.
  MessageRun(const Member& member, const Collective& collective, const Fingerprint& fingerprint);

  /// Returns true once the receiver has everything. Throws CommError, on both sides, if the tensors
  /// differ, and Error if no memory is left for the channel.
  bool advance(Member& member);

 private:
  bool send(Member& member);
  bool receive(Member& member);
  size_t chunk_length(uint32_t number) const;

  const Collective& collective_;
  Fingerprint fingerprint_;
  size_t bytes_ = 0;
  size_t chunk_bytes_ = 0;
  uint32_t chunks_ = 1;  ///< A message of no bytes has one chunk, too.
  uint32_t done_ = 0;    ///< Chunks that this end has written, or read.
  uint32_t before_ = 0;  ///< Chunks of earlier messages in this channel.
  bool begun_ = false;
};

}  // namespace lockstep::comm::shm
