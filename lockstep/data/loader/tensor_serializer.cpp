// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/tensor_serializer.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kAlignment = 64;  // Alignment of each tensor, as of torch's allocator.

int64_t aligned(int64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void TensorSerializer::raw(const void* bytes, size_t count) {
  description_.append(static_cast<const char*>(bytes), count);
}

void TensorSerializer::tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    throw ConfigError(
        "dispatch",
        tensor.defined()
            ? "a batch holds a sparse tensor, which cannot be sent; expected dense tensors"
            : "a batch holds an undefined tensor; use std::optional<at::Tensor> for "
              "one that may be missing");
  }
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  pack(static_cast<int64_t>(plain.scalar_type()), *this);
  pack(plain.sizes().vec(), *this);
  tensors_.push_back(plain);
}

at::Tensor TensorSerializer::bytes() const {
  const auto description_end = static_cast<int64_t>(sizeof(int64_t) + description_.size());
  int64_t size = description_end;
  for (const at::Tensor& tensor : tensors_) {
    size = aligned(size) + static_cast<int64_t>(tensor.nbytes());
  }
  at::Tensor bytes = at::empty({size}, at::kByte);
  auto* to = bytes.mutable_data_ptr<uint8_t>();
  std::memcpy(to, &description_end, sizeof(description_end));
  std::memcpy(to + sizeof(description_end), description_.data(), description_.size());
  int64_t end = description_end;
  for (const at::Tensor& tensor : tensors_) {
    const int64_t begin = aligned(end);
    std::memset(to + end, 0, static_cast<size_t>(begin - end));
    if (tensor.nbytes() > 0) {
      std::memcpy(to + begin, tensor.const_data_ptr(), tensor.nbytes());
    }
    end = begin + static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

TensorDeserializer::TensorDeserializer(at::Tensor bytes) : bytes_(std::move(bytes)) {
  description_end_ = bytes_.numel();
  raw(&description_end_, sizeof(description_end_));
  next_ = description_end_;
}

void TensorDeserializer::raw(void* bytes, size_t count) {
  const auto size = static_cast<int64_t>(count);
  LOCKSTEP_ASSERT(
      read_ + size <= description_end_,
      "the batch is read with another type than it was written with");
  if (count > 0) {
    std::memcpy(bytes, bytes_.const_data_ptr<uint8_t>() + read_, count);
  }
  read_ += size;
}

at::Tensor TensorDeserializer::tensor() {
  int64_t type = 0;
  std::vector<int64_t> sizes;
  unpack(type, *this);
  unpack(sizes, *this);
  const auto dtype = static_cast<at::ScalarType>(type);
  int64_t size = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t each : sizes) {
    size *= each;
  }
  next_ = aligned(next_);
  LOCKSTEP_ASSERT(next_ + size <= bytes_.numel(), "the batch is shorter than its description");
  const at::Tensor part = bytes_.narrow(0, next_, size);
  next_ += size;
  return part.view(dtype).view(sizes);
}

}  // namespace lockstep::data
