// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace lockstep::comm {

/// The dispatch key of threads whose attention is replaced. torch has it for tests, and uses it
/// nowhere. context_parallel has kernels for it.
constexpr c10::DispatchKey kAttentionKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// The base of an object that replaces torch's attention on the threads within its Scope.
///
/// torch copies a Scope to the threads that run a backward, if it lasts until backward() is called.
/// Code that computes a forward again during a backward (zero/activation) takes current() of the
/// forward, and opens a Scope of it. It is defined here since that folder and context_parallel may
/// not include each other.
class AttentionInterceptor : public c10::DebugInfoBase,
                             public std::enable_shared_from_this<AttentionInterceptor> {
 public:
  /// RAII scope: attention on this thread is replaced by `interceptor`; null: is torch's own.
  /// Scopes nest.
  class Scope {
   public:
    explicit Scope(const std::shared_ptr<AttentionInterceptor>& interceptor)
        : was_included_(c10::impl::tls_is_dispatch_key_included(kAttentionKey)),
          was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kAttentionKey)),
          info_(slot(), interceptor) {
      c10::impl::tls_set_dispatch_key_included(kAttentionKey, interceptor != nullptr);
      c10::impl::tls_set_dispatch_key_excluded(kAttentionKey, interceptor == nullptr);
    }
    ~Scope() {
      c10::impl::tls_set_dispatch_key_included(kAttentionKey, was_included_);
      c10::impl::tls_set_dispatch_key_excluded(kAttentionKey, was_excluded_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool was_included_;
    bool was_excluded_;
    c10::DebugInfoGuard info_;
  };

  /// Returns the interceptor of this thread; null without one.
  static std::shared_ptr<AttentionInterceptor> current() {
    if (!c10::impl::tls_is_dispatch_key_included(kAttentionKey) ||
        c10::impl::tls_is_dispatch_key_excluded(kAttentionKey)) {
      return nullptr;
    }
    auto* found = dynamic_cast<AttentionInterceptor*>(c10::ThreadLocalDebugInfo::get(slot()));
    return found == nullptr ? nullptr : found->shared_from_this();
  }

 private:
  /// torch has this slot for tests, and uses it nowhere.
  static c10::DebugInfoKind slot() { return c10::DebugInfoKind::TEST_INFO_2; }
};

}  // namespace lockstep::comm
