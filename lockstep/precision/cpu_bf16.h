// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/env.h"

namespace lockstep {

/// Returns whether oneDNN computes bfloat16 on this CPU with bf16 instructions.
///
/// These are AVX512_BF16, AMX_BF16 and AVX_NE_CONVERT on x86-64, and BF16 on 64-bit ARM. Without
/// them libtorch emulates bfloat16 in float32: a transformer trains several times slower than in
/// float32. ONEDNN_MAX_CPU_ISA and DNNL_MAX_CPU_ISA, oneDNN's own variables, count when they name a
/// set without bf16.
/// Cost: one cpuid. Thread safety: as Environment.
bool cpu_has_bf16(const Environment& environment);

/// Does the same for this process's environment.
bool cpu_has_bf16();

}  // namespace lockstep
