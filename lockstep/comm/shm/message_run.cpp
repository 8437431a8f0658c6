// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/message_run.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/futex.h"

namespace lockstep::comm::shm {
namespace {

const at::Tensor& tensor_of(const Collective& collective) {
  return collective.op == Op::kSend ? collective.input : collective.output;
}

}  // namespace

MessageRun::MessageRun(
    const Member& member, const Collective& collective, const Fingerprint& fingerprint)
    : collective_(collective),
      fingerprint_(fingerprint),
      bytes_(tensor_of(collective).nbytes()),
      chunk_bytes_(member.segment().sizes().chunk_bytes),
      chunks_(
          static_cast<uint32_t>(std::max<size_t>(1, (bytes_ + chunk_bytes_ - 1) / chunk_bytes_))) {}

size_t MessageRun::chunk_length(uint32_t number) const {
  return std::min(chunk_bytes_, bytes_ - number * chunk_bytes_);
}

bool MessageRun::advance(Member& member) {
  return collective_.op == Op::kSend ? send(member) : receive(member);
}

bool MessageRun::send(Member& member) {
  const int to = collective_.root;
  Segment& segment = member.segment();
  Channel& channel = member.channel(member.rank(), to);
  if (!begun_) {
    before_ = channel.posted.load(std::memory_order_relaxed);
    channel.sent = fingerprint_;
    begun_ = true;
  }
  const auto* data = static_cast<const std::byte*>(collective_.input.const_data_ptr());
  while (true) {
    const uint32_t taken = channel.taken.load(std::memory_order_acquire) - before_;
    if (channel.refused.load(std::memory_order_acquire) != 0) {
      throw CommError(
          name_of(Op::kSend),
          mismatch(fingerprint_, member.rank(), channel.expected, to)
              .value_or("the two ranks call different operations"),
          to);
    }
    if (taken == chunks_) {
      return true;
    }
    if (done_ == chunks_ || done_ - taken == 2) {
      return false;
    }
    if (bytes_ > 0) {
      std::memcpy(
          segment.chunk(member.rank(), to, before_ + done_),
          data + done_ * chunk_bytes_,
          chunk_length(done_));
    }
    channel.posted.store(before_ + ++done_, std::memory_order_seq_cst);
    wake(segment.control(to));
  }
}

bool MessageRun::receive(Member& member) {
  const int from = collective_.root;
  Segment& segment = member.segment();
  Channel& channel = member.channel(from, member.rank());
  auto* data = static_cast<std::byte*>(collective_.output.mutable_data_ptr());
  if (!begun_) {
    before_ = channel.taken.load(std::memory_order_relaxed);
  }
  while (done_ < chunks_) {
    if (channel.posted.load(std::memory_order_acquire) - before_ <= done_) {
      return false;
    }
    if (!begun_) {
      begun_ = true;
      if (const auto sides = mismatch(channel.sent, from, fingerprint_, member.rank())) {
        channel.expected = fingerprint_;
        channel.refused.store(1, std::memory_order_seq_cst);
        wake(segment.control(from));
        throw CommError(name_of(Op::kRecv), *sides, from);
      }
    }
    if (bytes_ > 0) {
      std::memcpy(
          data + done_ * chunk_bytes_,
          segment.chunk(from, member.rank(), before_ + done_),
          chunk_length(done_));
    }
    channel.taken.store(before_ + ++done_, std::memory_order_seq_cst);
    wake(segment.control(from));
  }
  return true;
}

}  // namespace lockstep::comm::shm
