// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::zero {

/// Bits of a quantized element.
enum class Bits {
  k8,  ///< -127 to 127, blocks of 2048.
  k4   ///< -7 to 7, blocks of 512, two elements per byte.
};

/// Elements that share a scale.
constexpr int64_t block_of(Bits bits) {
  return bits == Bits::k8 ? 2048 : 512;
}

/// Returns the quantized size of `numel` elements in bytes: a float32 scale a block, then the
/// elements; a multiple of 16.
int64_t wire_bytes(int64_t numel, Bits bits);

/// Quantizes in symmetric blocks: scale = max|x| / 127 (or 7), q = round(x / scale).
///
/// `values`: 1-D, contiguous, floating point; computed in float32. `wire`: kByte, `wire_bytes`
/// long, contiguous, starting at a multiple of 16 bytes.
///
/// Guarantees: dequantized values differ by at most half the block's scale, plus float32 rounding.
/// A block of zeros gives zeros; a block of equal numbers gives them up to float32 rounding. A
/// block with an infinity or NaN gives NaN, so that overflow checks detect it. A block of magnitude
/// below 1.4e-36 (for 4 bits 8e-38) gives zeros. Bit-exact on every rank, device and number of
/// threads.
///
/// Cost: two passes over memory, the second in the first-level cache, on CPUs with all of at::'s
/// threads; on devices about ten operations. Thread safety: that of tensors. Modelled on Wang et
/// al., "ZeRO++", arXiv:2306.10209, section 3.
void quantize(const at::Tensor& values, Bits bits, const at::Tensor& wire);

/// Computes the mean of several quantized sources. `wires`: (sources, wire_bytes), rows contiguous.
/// `mean`: 1-D, contiguous, floating point. Summed in float32, in the order of rows. Cost: one
/// pass.
void dequantize_mean(const at::Tensor& wires, Bits bits, const at::Tensor& mean);

}  // namespace lockstep::zero
