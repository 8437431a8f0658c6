// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/arena.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"

namespace lockstep::comm::shm {
Arena::Arena(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)), base_(segment_->arena(rank)) {
  holes_.emplace(0, segment_->sizes().arena_bytes);
}

at::Tensor Arena::allocate(int64_t bytes) {
  const size_t size = round_up_to_pages(static_cast<size_t>(bytes));
  std::byte* memory = take(size);
  return at::from_blob(
      memory,
      {bytes},
      [arena = shared_from_this(), begin = static_cast<size_t>(memory - base_), size](void*) {
        arena->free(begin, size);
      },
      at::TensorOptions(at::kByte));
}

std::byte* Arena::take(size_t bytes) {
  const size_t size = round_up_to_pages(bytes);
  size_t begin = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto hole = std::find_if(
        holes_.begin(), holes_.end(), [&](const auto& each) { return each.second >= size; });
    if (hole == holes_.end()) {
      throw Error(
          "shared memory",
          fmt::format(
              "cannot allocate {} contiguous bytes for a tensor; the arena has {} bytes",
              bytes,
              segment_->sizes().arena_bytes));
    }
    begin = hole->first;
    const size_t rest = hole->second - size;
    holes_.erase(hole);
    if (rest > 0) {
      holes_.emplace(begin + size, rest);
    }
  }
  try {
    segment_->reserve(base_ + begin, size, "a tensor");
  } catch (...) {
    free(begin, size);
    throw;
  }
  return base_ + begin;
}

void Arena::free(size_t begin, size_t bytes) noexcept {
  segment_->release(base_ + begin, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = holes_.lower_bound(begin);
  if (next != holes_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return;
    }
  }
  holes_.emplace(begin, bytes);
}

}  // namespace lockstep::comm::shm
