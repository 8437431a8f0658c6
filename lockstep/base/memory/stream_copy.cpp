// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lockstep {

#if defined(__x86_64__)

void stream_copy(void* to, const void* from, size_t bytes) {
  // One cache line at a time, so that the processor need not combine partial writes.
  constexpr size_t kLineBytes = 64;
  if (bytes < kStreamBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(out) % kLineBytes) % kLineBytes;
  std::memcpy(out, in, head);
  const std::byte* const end = in + bytes;
  out += head;
  in += head;
  for (; static_cast<size_t>(end - in) >= kLineBytes; in += kLineBytes, out += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(in);
    auto* line = reinterpret_cast<__m128i*>(out);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();  // Later reads, on any core, see the copy.
  std::memcpy(out, in, static_cast<size_t>(end - in));
}

#else

void stream_copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace lockstep
