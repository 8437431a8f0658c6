// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace lockstep::comm {

/// torch's dispatch key for modes of a thread, which torch has for tests and uses nowhere. Samples'
/// random numbers (data) and divided attention (context_parallel) have kernels for it, of different
/// operations. Each kernel redispatches if its own scope is not open on the thread.
constexpr c10::DispatchKey kModeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Lets other operations pass the key. torch allows one such registration in a process, so all
/// users of the key call this. Throws c10::Error if code outside of Lockstep has one. Thread-safe.
inline void register_mode_fallthrough() {
  static const auto* const kept = [] {
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, "_", kModeKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFallthrough());
    return library.release();  // Kept until the process ends, as torch keeps its libraries.
  }();
  static_cast<void>(kept);
}

}  // namespace lockstep::comm
