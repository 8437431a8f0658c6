// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/cpu_bf16.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lockstep {
namespace {

bool instructions_for_bf16() {
#if defined(__x86_64__)
  // AMX_BF16 comes only with AVX512_BF16. Bit 5 of EDX of cpuid leaf 7.1 is AVX_NE_CONVERT, which
  // gcc 12's __builtin_cpu_supports does not know.
  if (__builtin_cpu_supports("avx512bf16")) {
    return true;
  }
  unsigned eax = 7, ebx = 0, ecx = 1, edx = 0;
  if (__builtin_cpu_supports("avx2")) {
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  }
  return (edx >> 5U & 1U) != 0;
#elif defined(__aarch64__)
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14U;
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
#else
  return false;
#endif
}

/// Returns whether the environment limits oneDNN to instructions without bf16.
bool is_limited(const Environment& environment) {
  constexpr std::array kWithoutBf16 = {
      "SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"};
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    std::string limit = environment.text(name).value_or("");
    std::transform(limit.begin(), limit.end(), limit.begin(), [](unsigned char c) {
      return static_cast<char>(std::toupper(c));
    });
    if (!limit.empty()) {
      return std::find(kWithoutBf16.begin(), kWithoutBf16.end(), limit) != kWithoutBf16.end();
    }
  }
  return false;
}

}  // namespace

bool cpu_has_bf16(const Environment& environment) {
  return instructions_for_bf16() && !is_limited(environment);
}

bool cpu_has_bf16() {
  return cpu_has_bf16(Environment::process());
}

}  // namespace lockstep
