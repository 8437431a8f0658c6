// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

/// One end of a message under way: goes on as far as the peer lets it and never waits itself. Two
/// pieces of a message may be in the channel at a time. Thread safety: none; of one channel only
/// one message is under way at an end.
class MessageRun {
 public:
  /// `collective` (kSend or kRecv) must stay alive, its tensor too, until done.
  MessageRun(const Member& member, const Collective& collective, const Fingerprint& print);

  /// True once a receiver has it all, or a sender knows that the receiver has. CommError, at both
  /// ends: they do not mean the same tensor. Error: no memory for the channel.
  bool advance(Member& member);

 private:
  bool send(Member& member);
  bool receive(Member& member);
  size_t piece_length(uint32_t number) const;

  const Collective& collective_;
  Fingerprint print_;
  size_t bytes_ = 0;
  size_t chunk_bytes_ = 0;
  uint32_t slices_ = 1;  ///< A message of no bytes is a piece too.
  uint32_t done_ = 0;    ///< Pieces this end has written, or read.
  uint32_t before_ = 0;  ///< Pieces of earlier messages in this channel.
  bool begun_ = false;
};

}  // namespace lockstep::comm::shm
