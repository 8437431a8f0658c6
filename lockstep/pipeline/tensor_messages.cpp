// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/tensor_messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

constexpr size_t kMaxDims = 12;

/// Precedes a tensor.
struct Header {
  int64_t present = 0;
  int64_t dtype = 0;
  int64_t requires_grad = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes{};
};
static_assert(sizeof(Header) == 128, "sent as sixteen int64");

at::Tensor empty_header() {
  return at::empty({sizeof(Header) / sizeof(int64_t)}, at::kLong);
}

/// Headers and tensors of one message have tags next to each other.
int header_tag(int tag) {
  return 2 * tag;
}

int tensor_tag(int tag) {
  return 2 * tag + 1;
}

}  // namespace

void TensorMessages::send(const at::Tensor& tensor, int peer, int tag) {
  read_header();
  Header header;
  if (tensor.defined()) {
    if (static_cast<size_t>(tensor.dim()) > kMaxDims) {
      throw ConfigError(
          "pipeline",
          fmt::format(
              "a tensor between chunks has {} dimensions; expected at most {}; flatten it at the "
              "end of the chunk",
              tensor.dim(),
              kMaxDims));
    }
    header.present = 1;
    header.dtype = static_cast<int64_t>(tensor.scalar_type());
    header.requires_grad = tensor.requires_grad() ? 1 : 0;
    header.dims = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), header.sizes.begin());
  }
  const at::Tensor message = empty_header();
  std::memcpy(message.mutable_data_ptr(), &header, sizeof(header));
  sends_.push_back(group_.send(message, peer, header_tag(tag)));
  if (tensor.defined()) {
    sends_.push_back(group_.send(tensor.detach().contiguous(), peer, tensor_tag(tag)));
  }
  // Frees the memory of what has been sent.
  while (!sends_.empty() && sends_.front().done()) {
    sends_.front().wait();
    sends_.pop_front();
  }
}

void TensorMessages::receive(int peer, int tag) {
  read_header();
  incoming_.push_back(
      {.peer = peer, .tag = tag, .pending = group_.recv(empty_header(), peer, header_tag(tag))});
  has_unread_ = true;
}

at::Tensor TensorMessages::take(int tag) {
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
  at::Tensor tensor = place->pending.wait();
  if (place->requires_grad) {
    tensor.requires_grad_();
  }
  incoming_.erase(place);
  return tensor;
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
    if (each->peer == peer) {
      each->pending.wait();
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
  const at::Tensor message = last->pending.wait();
  Header header;
  std::memcpy(&header, message.const_data_ptr(), sizeof(header));
  last->requires_grad = header.requires_grad != 0;
  last->pending = Pending(at::Tensor());
  if (header.present != 0) {
    const at::Tensor tensor = at::empty(
        at::IntArrayRef(header.sizes.data(), static_cast<size_t>(header.dims)),
        at::TensorOptions(device_).dtype(static_cast<at::ScalarType>(header.dtype)));
    last->pending = group_.recv(tensor, last->peer, tensor_tag(last->tag));
  }
}

}  // namespace lockstep::pipeline
