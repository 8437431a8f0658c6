// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

namespace lockstep {

/// RAII scope of one micro-step (accumulate), or of backward passes that do not communicate
/// (no_sync). Its destructor ends the scope without communicating.
class [[nodiscard]] GradientScope {
 public:
  explicit GradientScope(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  GradientScope(GradientScope&& other) noexcept : at_end_(std::exchange(other.at_end_, {})) {}
  GradientScope(const GradientScope&) = delete;
  GradientScope& operator=(const GradientScope&) = delete;
  GradientScope& operator=(GradientScope&&) = delete;
  ~GradientScope() {
    if (at_end_) {
      at_end_();
    }
  }

 private:
  std::function<void()> at_end_;
};

}  // namespace lockstep
