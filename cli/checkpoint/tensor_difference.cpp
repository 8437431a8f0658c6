// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/tensor_difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "cli/checkpoint/convert_floats.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;
using storage::SetTensor;
using storage::TensorSet;
using storage::TensorSlice;

// Equal blocks are skipped with one memcmp.
constexpr size_t kBlockBytes = 4096;

/// Returns nothing for a dtype other than F64, F32, BF16 and F16.
std::optional<double> float_value(Dtype dtype, const char* data) {
  switch (dtype) {
    case Dtype::kF64:
      return load<double>(data);
    case Dtype::kF32:
      return load<float>(data);
    case Dtype::kBF16:
      return value_of_bfloat16(load<uint16_t>(data));
    case Dtype::kF16:
      return value_of_half(load<uint16_t>(data));
    default:
      return std::nullopt;
  }
}

/// Adds the differences of two ranges of equal length.
void add_differences(
    TensorDifference& difference, Dtype dtype, std::string_view one, std::string_view other) {
  const size_t width = storage::dtype_bytes(dtype);
  for (size_t block = 0; block < one.size(); block += kBlockBytes) {
    const size_t end = std::min(block + kBlockBytes, one.size());
    if (std::memcmp(one.data() + block, other.data() + block, end - block) == 0) {
      continue;
    }
    for (size_t at = block; at < end; at += width) {
      if (std::memcmp(one.data() + at, other.data() + at, width) == 0) {
        continue;
      }
      ++difference.elements;
      const std::optional<double> left = float_value(dtype, one.data() + at);
      const std::optional<double> right = float_value(dtype, other.data() + at);
      if (left && right) {
        const double distance = std::abs(*left - *right);
        const double largest = difference.largest.value_or(0);
        // A NaN stays.
        difference.largest = std::isnan(largest) || distance <= largest ? largest : distance;
      }
    }
  }
}

bool same_by_checksum(
    const TensorSet& one_set,
    const SetTensor& one,
    const TensorSet& other_set,
    const SetTensor& other) {
  return std::equal(
      one.slices.begin(),
      one.slices.end(),
      other.slices.begin(),
      other.slices.end(),
      [&](const TensorSlice& left, const TensorSlice& right) {
        return left.begin == right.begin && left.count == right.count &&
               one_set.crc32c(left) == other_set.crc32c(right);
      });
}

std::string_view elements_of(
    const TensorSet& set, const TensorSlice& slice, int64_t begin, int64_t end, size_t width) {
  return set.bytes(slice).substr(
      static_cast<size_t>(begin - slice.begin) * width, static_cast<size_t>(end - begin) * width);
}

}  // namespace

std::optional<TensorDifference> compare(
    const TensorSet& one_set,
    const SetTensor& one,
    const TensorSet& other_set,
    const SetTensor& other) {
  if (same_by_checksum(one_set, one, other_set, other)) {
    return std::nullopt;
  }
  const size_t width = storage::dtype_bytes(one.dtype);
  TensorDifference difference;
  size_t left = 0;
  size_t right = 0;
  for (int64_t next = 0; next < one.elements();) {
    const TensorSlice& one_slice = one.slices[left];
    const TensorSlice& other_slice = other.slices[right];
    const int64_t one_end = one_slice.begin + one_slice.count;
    const int64_t other_end = other_slice.begin + other_slice.count;
    const int64_t end = std::min(one_end, other_end);
    add_differences(
        difference,
        one.dtype,
        elements_of(one_set, one_slice, next, end, width),
        elements_of(other_set, other_slice, next, end, width));
    left += one_end == end ? 1 : 0;
    right += other_end == end ? 1 : 0;
    next = end;
  }
  return difference.elements == 0 ? std::nullopt : std::optional(difference);
}

}  // namespace lockstep::cli
