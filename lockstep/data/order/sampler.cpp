// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/sampler.h"

#include <numeric>

#include <fmt/format.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

int64_t require_size(int64_t size) {
  if (size < 0) {
    throw ConfigError(
        "sampler", fmt::format("size is negative; got {}, expected 0 or more samples", size));
  }
  return size;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t size) : size_(require_size(size)) {}

std::vector<int64_t> SequentialSampler::order(int64_t /*epoch*/) const {
  std::vector<int64_t> order(static_cast<size_t>(size_));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

RandomSampler::RandomSampler(int64_t size, uint64_t seed)
    : size_(require_size(size)), seed_(seed) {}

std::vector<int64_t> RandomSampler::order(int64_t epoch) const {
  const at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(seed_ + static_cast<uint64_t>(epoch));
  const at::Tensor permutation =
      at::randperm(size_, generator, at::TensorOptions().dtype(at::kLong));
  const auto* first = permutation.const_data_ptr<int64_t>();
  return {first, first + size_};
}

}  // namespace lockstep::data
