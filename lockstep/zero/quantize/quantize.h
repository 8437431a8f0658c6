// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::zero {

/// How many bits an element has on its way.
enum class Bits {
  k8,  ///< -127 to 127, blocks of 2048.
  k4   ///< -7 to 7, blocks of 512, two elements a byte.
};

/// Elements that have a scale in common.
constexpr int64_t block_of(Bits bits) {
  return bits == Bits::k8 ? 2048 : 512;
}

/// Bytes that `numel` elements take: a float32 scale a block, then the elements; a multiple of 16.
int64_t wire_bytes(int64_t numel, Bits bits);

/// Rounds to few bits, in symmetric blocks: scale = max|x| / 127 (or 7), q = round(x / scale).
///
/// `values`: 1-D, contiguous, floating point; computed in float32. `wire`: `wire_bytes` of kByte,
/// contiguous, beginning at a multiple of 16 bytes.
///
/// Guarantees: what comes back differs by at most half the block's scale, and what float32 rounds;
/// a block of zeros comes back as zeros, one of equal numbers as these but for float32's rounding.
/// All of a block in which anything is infinite or NaN comes back as NaN, so that checks for
/// overflow see it. A block of less than 1.4e-36 (for 4 bits 8e-38) in magnitude comes back as
/// zeros. The same bits for the same values on every rank, device and number of threads.
///
/// Cost: two passes over memory, the second in the first cache, on CPUs over all of at::'s threads;
/// on devices some ten operations. Thread safety: as tensors. After: Wang et al., "ZeRO++",
/// arXiv:2306.10209, section 3.
void quantize(const at::Tensor& values, Bits bits, const at::Tensor& wire);

/// The mean of what came from several. `wires`: (sources, wire_bytes), rows contiguous. `mean`:
/// 1-D, contiguous, floating point. Summed in float32, in the order of rows. Cost: one pass.
void dequantize_mean(const at::Tensor& wires, Bits bits, const at::Tensor& mean);

}  // namespace lockstep::zero
