// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace lockstep::zero {
namespace {

constexpr Bits kBoth[] = {Bits::k8, Bits::k4};

double levels(Bits bits) {
  return bits == Bits::k8 ? 127 : 7;
}

at::Tensor wire_of(const at::Tensor& values, Bits bits) {
  at::Tensor wire = at::empty({wire_bytes(values.numel(), bits)}, at::kByte);
  quantize(values, bits, wire);
  return wire;
}

at::Tensor there_and_back(const at::Tensor& values, Bits bits) {
  at::Tensor back = at::empty_like(values);
  dequantize_mean(wire_of(values, bits).unsqueeze(0), bits, back);
  return back;
}

at::Tensor wave(int64_t numel) {
  const at::Tensor at = at::arange(numel, at::kFloat);
  return at::sin(at * 1.7) * (1 + at / 1000);
}

TEST(Quantize, ErrorsAreAtMostHalfTheScaleOfTheBlock) {
  for (const Bits bits : kBoth) {
    for (const int64_t numel : {1, 2, 15, 511, 512, 513, 2047, 2048, 2049, 100001}) {
      const at::Tensor x = wave(numel);
      const at::Tensor back = there_and_back(x, bits);
      for (int64_t first = 0; first < numel; first += block_of(bits)) {
        const int64_t length = std::min(block_of(bits), numel - first);
        const at::Tensor block = x.narrow(0, first, length);
        const double largest = block.abs().max().item<double>();
        const double error = (back.narrow(0, first, length) - block).abs().max().item<double>();
        EXPECT_LE(error, largest / levels(bits) * 0.5001) << numel << " from " << first;
      }
    }
  }
}

TEST(Quantize, ALargeValueReducesThePrecisionOfItsBlockOnly) {
  at::Tensor x = wave(2 * 2048) / 10;
  x[0] = 1e6;
  const at::Tensor back = there_and_back(x, Bits::k8);
  EXPECT_GT((back - x).narrow(0, 1, 2047).abs().max().item<double>(), 0.1);
  EXPECT_LT((back - x).narrow(0, 2048, 2048).abs().max().item<double>(), 0.003);
}

TEST(Quantize, BytesAreThoseOfTheElementsAndAScaleABlock) {
  EXPECT_EQ(wire_bytes(4096, Bits::k8), 4096 + 2 * 4 + 8);  // Up to a multiple of 16.
  EXPECT_EQ(wire_bytes(4096, Bits::k4), 2048 + 8 * 4);
  EXPECT_EQ(wire_bytes(1, Bits::k4), 16);
}

TEST(Quantize, ZerosAndTinyValuesAreRestoredAsZeros) {
  for (const Bits bits : kBoth) {
    EXPECT_TRUE(at::equal(there_and_back(at::zeros({3000}), bits), at::zeros({3000})));
    EXPECT_TRUE(at::equal(there_and_back(at::full({3000}, 1e-44), bits), at::zeros({3000})));
  }
}

TEST(Quantize, EqualNumbersAreRestored) {
  for (const Bits bits : kBoth) {
    for (const double value : {1.0, -3.25, 1e-30, 3e38}) {
      const at::Tensor x = at::full({2500}, value);
      EXPECT_TRUE(at::allclose(there_and_back(x, bits), x, 3e-7, 0)) << value;
    }
  }
}

TEST(Quantize, NonFiniteValuesStayNonFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const Bits bits : kBoth) {
      for (const float bad : {inf, -inf, std::nanf("")}) {
        at::Tensor x = at::ones({3 * 2048 + 7}, dtype);
        x[2048 + 5] = bad;
        const at::Tensor finite = at::isfinite(there_and_back(x, bits));
        const int64_t first = (2048 + 5) / block_of(bits) * block_of(bits);
        EXPECT_FALSE(finite.narrow(0, first, block_of(bits)).any().item<bool>()) << bad;
        EXPECT_EQ(finite.sum().item<int64_t>(), x.numel() - block_of(bits)) << "others are fine";
      }
    }
  }
}

TEST(Quantize, OperationsAndLoopsGiveTheSameBits) {
  for (const Bits bits : kBoth) {
    for (const int64_t numel : {7, 512, 5000}) {
      const at::Tensor x = wave(numel);
      const at::Tensor by_operations = wire_of(x.to(at::kDouble), bits);  // No loops for these.
      const at::Tensor wire = wire_of(x, bits);
      const int64_t blocks = (numel + block_of(bits) - 1) / block_of(bits);
      const int64_t used = 4 * blocks + (bits == Bits::k8 ? numel : (numel + 1) / 2);
      EXPECT_TRUE(at::equal(wire.narrow(0, 0, used), by_operations.narrow(0, 0, used))) << numel;
      at::Tensor back = at::empty({numel}, at::kDouble);
      dequantize_mean(wire.unsqueeze(0), bits, back);
      EXPECT_TRUE(at::equal(back.to(at::kFloat), there_and_back(x, bits)));
    }
  }
}

TEST(Quantize, SixteenBitValuesAreRoundedAsTheirFloatsAre) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = wave(5000).to(dtype);
    EXPECT_TRUE(at::equal(
        there_and_back(x, Bits::k8), there_and_back(x.to(at::kFloat), Bits::k8).to(dtype)));
  }
}

TEST(Quantize, SeveralSourcesGiveTheirMean) {
  for (const Bits bits : kBoth) {
    const at::Tensor a = wave(3000);
    const at::Tensor b = -2 * wave(3000) + 1;
    const at::Tensor both = at::stack({wire_of(a, bits), wire_of(b, bits)});
    at::Tensor mean = at::empty_like(a);
    dequantize_mean(both, bits, mean);
    EXPECT_TRUE(
        at::allclose(mean, (there_and_back(a, bits) + there_and_back(b, bits)) / 2, 1e-6, 1e-6));
  }
}

}  // namespace
}  // namespace lockstep::zero
