// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace lockstep {

/// Receives the iterations of an EpochRange.
class EpochListener {
 public:
  EpochListener() = default;
  virtual ~EpochListener() = default;
  EpochListener(const EpochListener&) = delete;
  EpochListener& operator=(const EpochListener&) = delete;

  /// Called when the iteration `epoch` begins, or the range ends behind its last one.
  virtual void reached(int64_t epoch) = 0;
};

/// The range of epochs [first, last) for a range-based for loop.
///
/// It replaces std::ranges::iota_view, which clang 14 cannot compile with libstdc++ 12. Copies are
/// the same range for its listener. Cost: none without a listener. Thread safety: that of a value.
class EpochRange {
 public:
  class Iterator {
   public:
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(int64_t epoch, std::shared_ptr<EpochListener> listener = nullptr)
        : epoch_(epoch), listener_(std::move(listener)) {}
    int64_t operator*() const { return epoch_; }
    Iterator& operator++() {
      ++epoch_;
      if (listener_) {
        listener_->reached(epoch_);
      }
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.epoch_ == b.epoch_; }

   private:
    int64_t epoch_ = 0;
    std::shared_ptr<EpochListener> listener_;
  };

  /// Empty if `last` is at most `first`.
  EpochRange(int64_t first, int64_t last, std::shared_ptr<EpochListener> listener = nullptr)
      : first_(first), last_(last < first ? first : last), listener_(std::move(listener)) {}
  /// Begins the first iteration.
  Iterator begin() const {
    if (listener_) {
      listener_->reached(first_);
    }
    return Iterator(first_, listener_);
  }
  Iterator end() const { return Iterator(last_); }
  bool empty() const { return first_ == last_; }
  int64_t size() const { return last_ - first_; }
  int64_t front() const { return first_; }

 private:
  int64_t first_;
  int64_t last_;
  std::shared_ptr<EpochListener> listener_;
};

}  // namespace lockstep
