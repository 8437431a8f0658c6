// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// Makes glibc's malloc keep freed memory, up to tensors of 32 MiB, instead of returning it to the
/// kernel.
///
/// A training step frees and allocates the same sizes repeatedly. By default malloc maps each
/// tensor of more than a few hundred KiB again, and the kernel must clear the new pages. That is a
/// third of the time of a small network's step (docs/benchmarks.md). Memory stays at its peak, as
/// with the caching allocators of GPUs. Does nothing if MALLOC_MMAP_THRESHOLD_,
/// MALLOC_TRIM_THRESHOLD_ or GLIBC_TUNABLES is set, or if malloc is another library's. Thread-safe.
void keep_freed_memory();

/// Returns freed memory to the kernel. Call it after freeing something large permanently. Walks all
/// of malloc's memory.
void release_freed_memory();

}  // namespace lockstep
