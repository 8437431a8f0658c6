// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/cpu_bf16.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

bool kernel_lists_bf16() {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char* flag : {" avx512_bf16", " avx_ne_convert", " bf16"}) {
    if (text.find(flag) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(CpuBf16, MatchesTheKernelsList) {
  EXPECT_EQ(cpu_has_bf16(Environment::of({})), kernel_lists_bf16());
}

TEST(CpuBf16, IsAbsentWhereOnednnIsLimitedToOlderInstructions) {
  EXPECT_FALSE(cpu_has_bf16(Environment::of({{"ONEDNN_MAX_CPU_ISA", "AVX2"}})));
  EXPECT_FALSE(cpu_has_bf16(Environment::of({{"DNNL_MAX_CPU_ISA", "avx512_core"}})));
  EXPECT_EQ(
      cpu_has_bf16(Environment::of({{"ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX"}})),
      kernel_lists_bf16());
}

}  // namespace
}  // namespace lockstep
