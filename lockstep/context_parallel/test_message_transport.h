// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"

namespace lockstep::context_parallel {

/// Bytes that one rank sends to others, by operation. For tests. Of an all_to_all it counts the
/// parts for other ranks. The 128 bytes of Group's check are not counted.
class SentBytes {
 public:
  void add(comm::Op op, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_[op] += bytes;
    ++calls_[op];
  }
  int64_t of(comm::Op op) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = bytes_.find(op);
    return found == bytes_.end() ? 0 : found->second;
  }
  int calls(comm::Op op) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = calls_.find(op);
    return found == calls_.end() ? 0 : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<comm::Op, int64_t> bytes_;
  std::map<comm::Op, int> calls_;
};

/// Forwards operations to another group. It counts what this rank sends, and may spoil results, to
/// show that a test finds the loss of one.
class MessageTransport final : public comm::Transport {
 public:
  using Spoils = std::function<bool(comm::Op op, int call)>;

  /// `spoils(op, call)`: whether the result of this rank's call (from 0) of `op` becomes zeros.
  MessageTransport(Group inner, std::shared_ptr<SentBytes> sent, Spoils spoils)
      : inner_(std::move(inner)), sent_(std::move(sent)), spoils_(std::move(spoils)) {}

  const char* name() const override { return "counting"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::shared_ptr<comm::Work> start(comm::Collective it, comm::Milliseconds /*timeout*/) override {
    const bool is_spoiled = spoils_ && spoils_(it.op, sent_->calls(it.op));
    const at::Tensor& tensor = it.output.defined() ? it.output : it.input;
    auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (it.op == comm::Op::kRecv) {
      bytes = 0;
    } else if (it.op == comm::Op::kAllToAll) {
      bytes = bytes / inner_.size() * (inner_.size() - 1);
    }
    sent_->add(it.op, bytes);
    return std::make_shared<ForwardedWork>(forward(it), is_spoiled);
  }

  std::shared_ptr<comm::Transport> split(int, int, comm::Milliseconds) override {
    throw ConfigError("split", "is not forwarded");
  }

 private:
  class ForwardedWork final : public comm::Work {
   public:
    ForwardedWork(Pending pending, bool is_spoiled)
        : pending_(std::move(pending)), is_spoiled_(is_spoiled) {}
    bool done() const override { return pending_.done(); }
    void wait(comm::Milliseconds timeout) override {
      const at::Tensor result = pending_.wait(timeout);
      if (is_spoiled_) {
        result.zero_();
      }
    }

   private:
    Pending pending_;
    bool is_spoiled_;
  };

  Pending forward(const comm::Collective& it) {
    switch (it.op) {
      case comm::Op::kSend:
        return inner_.send(it.input, it.root, it.tag);
      case comm::Op::kRecv:
        return inner_.recv(it.output, it.root, it.tag);
      case comm::Op::kAllToAll:
        return inner_.all_to_all_into(it.output, it.input);
      case comm::Op::kAllGather:
        return inner_.all_gather_into(it.output, it.input);
      case comm::Op::kAllReduce:
        return inner_.all_reduce(it.output, it.reduce);
      default:
        throw ConfigError(comm::name_of(it.op), "is not forwarded");
    }
  }

  Group inner_;
  std::shared_ptr<SentBytes> sent_;
  Spoils spoils_;
};

/// Returns `group` with counted, and perhaps spoiled, operations.
inline Group counted(
    const Group& group,
    std::shared_ptr<SentBytes> sent,
    MessageTransport::Spoils spoils = nullptr) {
  return Group(
      std::make_shared<MessageTransport>(group, std::move(sent), std::move(spoils)),
      group.timeout());
}

}  // namespace lockstep::context_parallel
