// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/early_headers.h"

#include <chrono>
#include <exception>
#include <stdexcept>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

namespace lockstep::comm {
namespace {

constexpr Milliseconds kNoTimeout = std::chrono::hours(24 * 365);
constexpr Milliseconds kCloseTimeout{1000};

}  // namespace

at::Tensor fingerprint_tensor(Fingerprint& fingerprint) {
  return at::from_blob(&fingerprint, {16}, at::TensorOptions(at::kLong));
}

void wait_all(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, Milliseconds timeout) {
  for (const auto& work : works) {
    if (!work->wait(timeout)) {
      throw std::runtime_error("timed out");
    }
  }
}

std::optional<Fingerprint> EarlyHeaders::take(int from) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto header = headers_.find(from);
  if (header == headers_.end() || header->second.state != NextMessage::kArrives) {
    return std::nullopt;
  }
  const Fingerprint fingerprint = header->second.fingerprint;
  headers_.erase(header);
  return fingerprint;
}

std::optional<NextMessage> EarlyHeaders::state(int from, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto header = headers_.find(from);
  if (header == headers_.end()) {
    headers_.try_emplace(from);
    return std::nullopt;
  }
  const auto& [state, fingerprint] = header->second;
  return state == NextMessage::kArrives && fingerprint.root != tag ? NextMessage::kNone : state;
}

void EarlyHeaders::receive(c10d::Backend& backend, int from) {
  Header header{.state = NextMessage::kArrives};
  std::vector<at::Tensor> in{fingerprint_tensor(header.fingerprint)};
  try {
    const c10::AutoGradMode no_grad(false);
    c10::intrusive_ptr<c10d::Work> receive;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) {
        return;
      }
      receive = backend.recv(in, from, kSenderHeaderTag);
      receives_[from] = receive;
    }
    wait_all({receive}, kNoTimeout);
  } catch (const std::exception&) {
    header.state = NextMessage::kLost;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  receives_.erase(from);
  headers_[from] = header;
  ended_.notify_all();
}

void EarlyHeaders::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  for (const auto& [unused, receive] : receives_) {
    receive->abort();
  }
  ended_.wait_for(lock, kCloseTimeout, [&] { return receives_.empty(); });
}

}  // namespace lockstep::comm
