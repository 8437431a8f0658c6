// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "lockstep/base/error.h"

// Each loop below is compiled twice: with AVX2 and without.
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

namespace lockstep::comm {
namespace {

// Elements per pass: the accumulators stay in the first-level cache next to the sources.
constexpr int64_t kChunk = 1024;

/// Converts between the stored type of a value and the type of the accumulator.
template <typename T>
struct Values {
  using Total = T;
  LOCKSTEP_INLINE static T to_total(T value) { return value; }
  LOCKSTEP_INLINE static T to_stored(T total) { return total; }
};

template <>
struct Values<c10::BFloat16> {
  using Total = float;
  LOCKSTEP_INLINE static float to_total(c10::BFloat16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16U);
  }
  /// Rounds to nearest, ties to even.
  LOCKSTEP_INLINE static c10::BFloat16 to_stored(float total) {
    const auto bits = std::bit_cast<uint32_t>(total);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    return {static_cast<uint16_t>(total != total ? 0x7fc0U : rounded), c10::BFloat16::from_bits()};
  }
};

template <>
struct Values<c10::Half> {
  using Total = float;
  LOCKSTEP_INLINE static float to_total(c10::Half value) { return value; }
  LOCKSTEP_INLINE static c10::Half to_stored(float total) { return total; }
};

template <ReduceOp op, typename T>
LOCKSTEP_INLINE T combined(T a, T b) {
  if constexpr (op == ReduceOp::kMin) {
    return a < b || a != a ? a : b;  // As at::minimum: NaN propagates.
  } else if constexpr (op == ReduceOp::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    // Signed overflow is undefined; unsigned arithmetic wraps.
    const auto x = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(a));
    const auto y = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(b));
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

struct Request {
  c10::ArrayRef<const void*> sources;
  c10::ArrayRef<void*> targets;
  int64_t count;
};

template <ReduceOp op, typename T>
LOCKSTEP_INLINE void reduce_chunk(const Request& request, int64_t begin, int64_t count) {
  using Total = typename Values<T>::Total;
  const auto source = [&](size_t i) { return static_cast<const T*>(request.sources[i]) + begin; };
  alignas(64) Total total[kChunk];
  const T* first = source(0);
  const T* second = source(std::min<size_t>(1, request.sources.size() - 1));
  if (request.sources.size() == 1) {
    for (int64_t i = 0; i < count; ++i) {
      total[i] = Values<T>::to_total(first[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      total[i] = combined<op>(Values<T>::to_total(first[i]), Values<T>::to_total(second[i]));
    }
  }
  for (size_t s = 2; s < request.sources.size(); ++s) {
    const T* next = source(s);
    for (int64_t i = 0; i < count; ++i) {
      total[i] = combined<op>(total[i], Values<T>::to_total(next[i]));
    }
  }
  if constexpr (op == ReduceOp::kAvg) {
    const auto ranks = static_cast<Total>(request.sources.size());
    for (int64_t i = 0; i < count; ++i) {
      total[i] = static_cast<Total>(total[i] / ranks);
    }
  }
  for (void* each : request.targets) {
    T* target = static_cast<T*>(each) + begin;
    for (int64_t i = 0; i < count; ++i) {
      target[i] = Values<T>::to_stored(total[i]);
    }
  }
}

template <ReduceOp op, typename T>
LOCKSTEP_INLINE void reduce_all(const Request& request) {
  for (int64_t begin = 0; begin < request.count; begin += kChunk) {
    reduce_chunk<op, T>(request, begin, std::min(kChunk, request.count - begin));
  }
}

// The same loops twice: for any processor, and for those with AVX2.
template <ReduceOp op, typename T>
void reduce_anywhere(const Request& request) {
  reduce_all<op, T>(request);
}

#if defined(__x86_64__)
template <ReduceOp op, typename T>
[[gnu::target("avx2")]] void reduce_avx2(const Request& request) {
  reduce_all<op, T>(request);
}

const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
#endif

template <ReduceOp op, typename T>
void reduce_here(const Request& request) {
#if defined(__x86_64__)
  if (kHasAvx2) {
    reduce_avx2<op, T>(request);
    return;
  }
#endif
  reduce_anywhere<op, T>(request);
}

template <typename T>
void reduce_values(ReduceOp op, const Request& request) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_here<ReduceOp::kSum, T>(request);
    case ReduceOp::kAvg:
      return reduce_here<ReduceOp::kAvg, T>(request);
    case ReduceOp::kMin:
      return reduce_here<ReduceOp::kMin, T>(request);
    case ReduceOp::kMax:
      return reduce_here<ReduceOp::kMax, T>(request);
    case ReduceOp::kProduct:
      return reduce_here<ReduceOp::kProduct, T>(request);
  }
}

}  // namespace

void reduce(
    c10::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> sources,
    c10::ArrayRef<void*> targets,
    int64_t count) {
  const Request request{sources, targets, count};
  switch (dtype) {
    case c10::ScalarType::Float:
      return reduce_values<float>(op, request);
    case c10::ScalarType::Double:
      return reduce_values<double>(op, request);
    case c10::ScalarType::Half:
      return reduce_values<c10::Half>(op, request);
    case c10::ScalarType::BFloat16:
      return reduce_values<c10::BFloat16>(op, request);
    case c10::ScalarType::Byte:
      return reduce_values<uint8_t>(op, request);
    case c10::ScalarType::Char:
      return reduce_values<int8_t>(op, request);
    case c10::ScalarType::Int:
      return reduce_values<int32_t>(op, request);
    case c10::ScalarType::Long:
      return reduce_values<int64_t>(op, request);
    default:
      LOCKSTEP_ASSERT(false, "Group did not check the dtype");
  }
}

}  // namespace lockstep::comm
