// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace lockstep {

/// A scope whose end communicates: call finish().
///
///     CollectiveScope scope = engine.begin_coalescing();
///     body();
///     scope.finish();
///
/// If `body` throws, the destructor only restores the state before the scope.
class [[nodiscard]] CollectiveScope {
 public:
  /// `held`: restores that state when it is destroyed, also after `finish`.
  CollectiveScope(std::shared_ptr<void> held, std::function<void()> finish)
      : held_(std::move(held)), finish_(std::move(finish)) {}
  CollectiveScope(CollectiveScope&&) = default;
  CollectiveScope& operator=(CollectiveScope&&) = delete;
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

  /// Ends the scope. Later calls do nothing. Collective.
  void finish() {
    const std::shared_ptr<void> held = std::move(held_);
    if (const auto finish = std::exchange(finish_, {})) {
      finish();
    }
  }
  /// Does what the destructor does.
  void abandon() {
    finish_ = {};
    held_.reset();
  }

 private:
  std::shared_ptr<void> held_;
  std::function<void()> finish_;
};

}  // namespace lockstep
