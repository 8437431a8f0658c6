// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// Makes glibc's malloc keep what this process frees, up to tensors of 32 MiB, instead of giving it
/// back to the kernel.
///
/// A training step frees and allocates the same sizes again and again; by default each tensor of
/// more than a few hundred KiB comes as new pages then, which the kernel must clear: a third of the
/// time of a small network's step (docs/benchmarks.md). Memory stays at its peak, as with the
/// allocators of GPUs. Does nothing where the user has a say in it, by MALLOC_MMAP_THRESHOLD_,
/// MALLOC_TRIM_THRESHOLD_ or GLIBC_TUNABLES, or where malloc is another library's. Thread-safe.
void keep_freed_memory();

/// Gives back what has been freed so far: for after something large has gone for good. Walks all of
/// malloc's memory.
void release_freed_memory();

}  // namespace lockstep
