// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/tensor_messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

constexpr size_t kMaxDims = 12;
constexpr int64_t kNone = -1;

/// Precedes a tensor, or says that there are several, whose headers follow.
struct Header {
  int64_t tensors = 1;
  int64_t dtype = kNone;
  int64_t requires_grad = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes{};
};
static_assert(sizeof(Header) == 128, "sent as sixteen int64");

at::Tensor empty_headers(size_t count) {
  return at::empty({static_cast<int64_t>(count * sizeof(Header) / sizeof(int64_t))}, at::kLong);
}

at::Tensor message_of(const std::vector<Header>& headers) {
  const at::Tensor message = empty_headers(headers.size());
  std::memcpy(message.mutable_data_ptr(), headers.data(), headers.size() * sizeof(Header));
  return message;
}

std::vector<Header> headers_of(const at::Tensor& message, size_t count) {
  std::vector<Header> headers(count);
  std::memcpy(headers.data(), message.const_data_ptr(), count * sizeof(Header));
  return headers;
}

Header header_of(const at::Tensor& tensor) {
  Header header;
  if (!tensor.defined()) {
    return header;
  }
  if (static_cast<size_t>(tensor.dim()) > kMaxDims) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "a tensor between chunks has {} dimensions; expected at most {}; flatten it at the end "
            "of the chunk",
            tensor.dim(),
            kMaxDims));
  }
  header.dtype = static_cast<int64_t>(tensor.scalar_type());
  header.requires_grad = tensor.requires_grad() ? 1 : 0;
  header.dims = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), header.sizes.begin());
  return header;
}

/// Headers and tensors of one message have tags next to each other.
int header_tag(int tag) {
  return 2 * tag;
}

int tensor_tag(int tag) {
  return 2 * tag + 1;
}

}  // namespace

void TensorMessages::send(const Values& values, int peer, int tag) {
  read_header();
  std::vector<Header> headers;
  for (const at::Tensor& tensor : values.tensors) {
    headers.push_back(header_of(tensor));
  }
  if (headers.size() != 1) {
    const Header number{.tensors = static_cast<int64_t>(headers.size())};
    sends_.push_back(group_.send(message_of({number}), peer, header_tag(tag)));
  }
  if (!headers.empty()) {
    sends_.push_back(group_.send(message_of(headers), peer, header_tag(tag)));
  }
  for (const at::Tensor& tensor : values.tensors) {
    if (tensor.defined()) {
      sends_.push_back(group_.send(tensor.detach().contiguous(), peer, tensor_tag(tag)));
    }
  }
  // Frees the memory of what has been sent.
  while (!sends_.empty() && sends_.front().done()) {
    sends_.front().wait();
    sends_.pop_front();
  }
}

void TensorMessages::receive(int peer, int tag) {
  read_header();
  Incoming& incoming = incoming_.emplace_back(Incoming{.peer = peer, .tag = tag, .parts = {}});
  incoming.parts.push_back({.pending = group_.recv(empty_headers(1), peer, header_tag(tag))});
  has_unread_ = true;
}

Values TensorMessages::take(int tag) {
  const auto place = std::find_if(
      incoming_.begin(), incoming_.end(), [&](const Incoming& each) { return each.tag == tag; });
  if (place == incoming_.end()) {
    throw ConfigError(
        "pipeline",
        fmt::format("no message {} is received; expected receive() before take()", tag));
  }
  if (place == std::prev(incoming_.end())) {
    read_header();
  }
  wait_in_order(place->peer, place);
  Values values;
  for (Part& part : place->parts) {
    at::Tensor tensor = part.pending.wait();
    if (part.requires_grad) {
      tensor.requires_grad_();
    }
    values.tensors.push_back(std::move(tensor));
  }
  incoming_.erase(place);
  return values;
}

void TensorMessages::finish() {
  read_header();
  while (!sends_.empty()) {
    sends_.front().wait();
    sends_.pop_front();
  }
}

void TensorMessages::wait_in_order(int peer, std::list<Incoming>::iterator end) {
  for (auto each = incoming_.begin(); each != end; ++each) {
    for (Part& part : each->parts) {
      if (each->peer == peer) {
        part.pending.wait();
      }
    }
  }
}

void TensorMessages::read_header() {
  if (!has_unread_) {
    return;
  }
  has_unread_ = false;
  const auto last = std::prev(incoming_.end());
  wait_in_order(last->peer, last);
  std::vector<Header> headers = headers_of(last->parts.front().pending.wait(), 1);
  last->parts.clear();
  if (const auto number = static_cast<size_t>(headers.front().tensors); number != 1) {
    const at::Tensor all = empty_headers(number);
    headers = number == 0
                  ? std::vector<Header>()
                  : headers_of(group_.recv(all, last->peer, header_tag(last->tag)).wait(), number);
  }
  for (const Header& header : headers) {
    Part& part = last->parts.emplace_back();
    part.requires_grad = header.requires_grad != 0;
    if (header.dtype != kNone) {
      const at::Tensor tensor = at::empty(
          at::IntArrayRef(header.sizes.data(), static_cast<size_t>(header.dims)),
          at::TensorOptions(device_).dtype(static_cast<at::ScalarType>(header.dtype)));
      part.pending = group_.recv(tensor, last->peer, tensor_tag(last->tag));
    }
  }
}

}  // namespace lockstep::pipeline
