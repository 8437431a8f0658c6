// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/quantize/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "lockstep/base/error.h"

#define LOCKSTEP_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace lockstep::zero {
namespace {

constexpr int64_t kLargestBlock = block_of(Bits::k8);
constexpr int64_t kAlignment = 16;
/// Scales below are zero: their inverse might be infinite.
constexpr float kSmallestScale = std::numeric_limits<float>::min();

constexpr int64_t round_up(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

constexpr float levels_of(Bits bits) {
  return bits == Bits::k8 ? 127.0F : 7.0F;
}

/// Returns the size of `length` quantized elements of one block, in bytes.
constexpr int64_t packed_bytes(int64_t length, Bits bits) {
  return bits == Bits::k8 ? length : (length + 1) / 2;
}

int64_t blocks_of(int64_t numel, Bits bits) {
  return (numel + block_of(bits) - 1) / block_of(bits);
}

int64_t scale_bytes(int64_t numel, Bits bits) {
  return blocks_of(numel, bits) * static_cast<int64_t>(sizeof(float));
}

using Tile = std::array<float, kLargestBlock>;

/// Compares magnitudes as integers, whose order is that of floats, with NaN above infinity: a
/// maximum of floats would lose NaN.
LOCKSTEP_ALWAYS_INLINE float scale_of(const Tile& tile, int64_t length, Bits bits) {
  int32_t largest = 0;
  for (int64_t i = 0; i < length; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(tile[i]) & 0x7FFFFFFF);
  }
  const auto magnitude = std::bit_cast<float>(largest);
  if (!std::isfinite(magnitude)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = magnitude / levels_of(bits);
  return scale < kSmallestScale ? 0.0F : scale;
}

/// The mantissa of 1.5 * 2^23 + x is x, rounded to even.
LOCKSTEP_ALWAYS_INLINE int32_t rounded(float x) {
  constexpr float kShift = 12582912.0F;
  return std::bit_cast<int32_t>(x + kShift) - std::bit_cast<int32_t>(kShift);
}

LOCKSTEP_ALWAYS_INLINE void pack(
    const Tile& tile, int64_t length, float scale, Bits bits, uint8_t* packed) {
  if (!(scale > 0)) {
    std::fill_n(packed, packed_bytes(length, bits), uint8_t{0});
    return;
  }
  const float inverse = 1.0F / scale;
  const auto levels = static_cast<int32_t>(levels_of(bits));
  const auto level = [&](int64_t i) {
    return std::clamp(rounded(tile[i] * inverse), -levels, levels);
  };
  if (bits == Bits::k8) {
    for (int64_t i = 0; i < length; ++i) {
      packed[i] = static_cast<uint8_t>(level(i));
    }
    return;
  }
  // The first half of a block has the low bits, so that both are consecutive.
  const int64_t half = (length + 1) / 2;
  for (int64_t i = 0; i < length - half; ++i) {
    packed[i] = static_cast<uint8_t>((level(i) & 15) | (level(i + half) << 4));
  }
  if (half > length - half) {
    packed[half - 1] = static_cast<uint8_t>(level(half - 1) & 15);
  }
}

/// Adds the dequantized values to `tile`.
LOCKSTEP_ALWAYS_INLINE void add_packed(
    const uint8_t* packed, float scale, Bits bits, int64_t length, Tile& tile) {
  if (bits == Bits::k8) {
    for (int64_t i = 0; i < length; ++i) {
      tile[i] += scale * static_cast<float>(static_cast<int8_t>(packed[i]));
    }
    return;
  }
  const int64_t half = (length + 1) / 2;
  for (int64_t i = 0; i < half; ++i) {
    tile[i] += scale * static_cast<float>(((packed[i] & 15) ^ 8) - 8);
  }
  for (int64_t i = 0; i < length - half; ++i) {
    tile[half + i] += scale * static_cast<float>(((packed[i] >> 4) ^ 8) - 8);
  }
}

struct Quantization {
  const void* values;
  uint8_t* wire;
  int64_t numel;
};

template <typename T, Bits bits>
LOCKSTEP_ALWAYS_INLINE void quantize_blocks(const Quantization& job, int64_t begin, int64_t end) {
  Tile tile;
  auto* scales = reinterpret_cast<float*>(job.wire);
  uint8_t* packed = job.wire + scale_bytes(job.numel, bits);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * block_of(bits);
    const int64_t length = std::min(block_of(bits), job.numel - first);
    const T* from = static_cast<const T*>(job.values) + first;
    for (int64_t i = 0; i < length; ++i) {
      tile[i] = static_cast<float>(from[i]);
    }
    scales[block] = scale_of(tile, length, bits);
    pack(tile, length, scales[block], bits, packed + packed_bytes(first, bits));
  }
}

struct Dequantization {
  const uint8_t* wires;
  int64_t sources;
  int64_t stride;
  void* mean;
  int64_t numel;
};

template <typename T, Bits bits>
LOCKSTEP_ALWAYS_INLINE void dequantize_blocks(
    const Dequantization& job, int64_t begin, int64_t end) {
  Tile tile;
  const float share = 1.0F / static_cast<float>(job.sources);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * block_of(bits);
    const int64_t length = std::min(block_of(bits), job.numel - first);
    std::fill_n(tile.begin(), length, 0.0F);
    for (int64_t source = 0; source < job.sources; ++source) {
      const uint8_t* wire = job.wires + source * job.stride;
      add_packed(
          wire + scale_bytes(job.numel, bits) + packed_bytes(first, bits),
          reinterpret_cast<const float*>(wire)[block],
          bits,
          length,
          tile);
    }
    T* to = static_cast<T*>(job.mean) + first;
    for (int64_t i = 0; i < length; ++i) {
      to[i] = static_cast<T>(tile[i] * share);
    }
  }
}

// The same loops twice, as in comm/transport/reduce.cpp: for any processor, and for those with
// AVX2.
template <typename T, Bits bits>
void blocks_anywhere(const Quantization& job, int64_t begin, int64_t end) {
  quantize_blocks<T, bits>(job, begin, end);
}
template <typename T, Bits bits>
void blocks_anywhere(const Dequantization& job, int64_t begin, int64_t end) {
  dequantize_blocks<T, bits>(job, begin, end);
}

#if defined(__x86_64__)
template <typename T, Bits bits>
[[gnu::target("avx2")]] void blocks_avx2(const Quantization& job, int64_t begin, int64_t end) {
  quantize_blocks<T, bits>(job, begin, end);
}
template <typename T, Bits bits>
[[gnu::target("avx2")]] void blocks_avx2(const Dequantization& job, int64_t begin, int64_t end) {
  dequantize_blocks<T, bits>(job, begin, end);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

template <typename T, Bits bits, typename Job>
void on_threads(const Job& job) {
  constexpr int64_t kElementsWorthAThread = int64_t{1} << 16;
  at::parallel_for(
      0,
      blocks_of(job.numel, bits),
      kElementsWorthAThread / block_of(bits),
      [&](int64_t begin, int64_t end) {
#if defined(__x86_64__)
        if (has_avx2()) {
          blocks_avx2<T, bits>(job, begin, end);
          return;
        }
#endif
        blocks_anywhere<T, bits>(job, begin, end);
      });
}

/// Runs the loops of the dtype of `values`. Returns false if none exist.
template <typename Job>
bool in_loops(const at::Tensor& values, Bits bits, const Job& job) {
  const auto run = [&]<typename T>(T /*example*/) {
    bits == Bits::k8 ? on_threads<T, Bits::k8>(job) : on_threads<T, Bits::k4>(job);
    return true;
  };
  if (!values.is_cpu()) {
    return false;
  }
  switch (values.scalar_type()) {
    case at::kFloat:
      return run(float{});
    case at::kBFloat16:
      return run(c10::BFloat16{});
    case at::kHalf:
      return run(c10::Half{});
    default:
      return false;
  }
}

/// Quantizes `values` (blocks, length) to `scales` (blocks, 1) and `packed` (blocks, bytes) by
/// operations.
void quantize_by_operations(
    const at::Tensor& values, Bits bits, const at::Tensor& scales, const at::Tensor& packed) {
  const float levels = levels_of(bits);
  const at::Tensor x = values.to(at::kFloat);
  at::Tensor scale = x.abs().amax(1, /*keepdim=*/true) / levels;
  scale.masked_fill_(scale < kSmallestScale, 0);
  scale.masked_fill_(scale.isfinite().logical_not(), std::numeric_limits<float>::quiet_NaN());
  scales.copy_(scale);
  const at::Tensor q = (x * scale.reciprocal())
                           .round_()
                           .clamp_(-levels, levels)
                           .masked_fill_((scale > 0).logical_not(), 0)
                           .to(at::kChar);
  if (bits == Bits::k8) {
    packed.copy_(q.view(at::kByte));
    return;
  }
  const int64_t half = packed.size(1);
  const int64_t rest = q.size(1) - half;
  packed.copy_(q.narrow(1, 0, half).view(at::kByte).bitwise_and(15));
  packed.narrow(1, 0, rest)
      .bitwise_or_(q.narrow(1, half, rest).view(at::kByte).bitwise_left_shift(4));
}

/// Dequantizes by operations, and adds the values to `sum` (blocks, length).
void add_by_operations(
    const at::Tensor& scales, const at::Tensor& packed, Bits bits, const at::Tensor& sum) {
  const at::Tensor scale = scales.clone();
  if (bits == Bits::k8) {
    sum.add_(packed.view(at::kChar).to(at::kFloat).mul_(scale));
    return;
  }
  const int64_t half = packed.size(1);
  const int64_t rest = sum.size(1) - half;
  const auto levels = [](const at::Tensor& low_bits) {
    return low_bits.bitwise_xor(8).to(at::kFloat).sub_(8);
  };
  sum.narrow(1, 0, half).add_(levels(packed.bitwise_and(15)).mul_(scale));
  sum.narrow(1, half, rest)
      .add_(levels(packed.narrow(1, 0, rest).bitwise_right_shift(4)).mul_(scale));
}

/// Calls `act(values, scales, packed)` for all full blocks, and for the last one if it is shorter.
template <typename Act>
void by_blocks(const at::Tensor& values, const at::Tensor& wire, Bits bits, const Act& act) {
  const int64_t numel = values.numel();
  const int64_t full = numel / block_of(bits) * block_of(bits);
  const at::Tensor scales = wire.narrow(0, 0, scale_bytes(numel, bits)).view(at::kFloat);
  const at::Tensor packed = wire.narrow(0, scale_bytes(numel, bits), packed_bytes(numel, bits));
  const auto some = [&](int64_t first, int64_t count, int64_t length) {
    if (count > 0 && length > 0) {
      act(values.narrow(0, first, count * length).view({count, length}),
          scales.narrow(0, first / block_of(bits), count).view({count, 1}),
          packed.narrow(0, packed_bytes(first, bits), count * packed_bytes(length, bits))
              .view({count, packed_bytes(length, bits)}));
    }
  };
  some(0, full / block_of(bits), block_of(bits));
  some(full, 1, numel - full);
}

void check_wire(const at::Tensor& wire, int64_t numel, Bits bits) {
  LOCKSTEP_ASSERT(
      wire.scalar_type() == at::kByte && wire.size(-1) == wire_bytes(numel, bits) &&
          wire.stride(-1) == 1 && wire.storage_offset() % kAlignment == 0,
      "a quantized tensor has the wrong size or alignment");
}

}  // namespace

int64_t wire_bytes(int64_t numel, Bits bits) {
  return round_up(scale_bytes(numel, bits) + packed_bytes(numel, bits), kAlignment);
}

void quantize(const at::Tensor& values, Bits bits, const at::Tensor& wire) {
  check_wire(wire, values.numel(), bits);
  const bool done = in_loops(
      values,
      bits,
      Quantization{
          .values = values.const_data_ptr(),
          .wire = static_cast<uint8_t*>(wire.mutable_data_ptr()),
          .numel = values.numel()});
  if (!done) {
    by_blocks(
        values,
        wire,
        bits,
        [&](const at::Tensor& some, const at::Tensor& scales, const at::Tensor& packed) {
          quantize_by_operations(some, bits, scales, packed);
        });
  }
}

void dequantize_mean(const at::Tensor& wires, Bits bits, const at::Tensor& mean) {
  check_wire(wires, mean.numel(), bits);
  const bool done = in_loops(
      mean,
      bits,
      Dequantization{
          .wires = static_cast<const uint8_t*>(wires.const_data_ptr()),
          .sources = wires.size(0),
          .stride = wires.stride(0),
          .mean = mean.mutable_data_ptr(),
          .numel = mean.numel()});
  if (!done) {
    const at::Tensor sum = at::zeros(mean.sizes(), mean.options().dtype(at::kFloat));
    for (const at::Tensor& wire : wires.unbind(0)) {
      by_blocks(
          sum,
          wire,
          bits,
          [&](const at::Tensor& some, const at::Tensor& scales, const at::Tensor& packed) {
            add_by_operations(scales, packed, bits, some);
          });
    }
    mean.copy_(sum.mul_(1.0F / static_cast<float>(wires.size(0))));
  }
}

}  // namespace lockstep::zero
