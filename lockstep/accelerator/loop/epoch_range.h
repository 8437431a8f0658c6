// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// The range of epochs [first, last) for a range-based for loop.
///
/// It replaces std::ranges::iota_view, which clang 14 cannot compile with libstdc++ 12. Cost: none.
/// Thread safety: that of a value.
class EpochRange {
 public:
  class Iterator {
   public:
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(int64_t epoch) : epoch_(epoch) {}
    int64_t operator*() const { return epoch_; }
    Iterator& operator++() {
      ++epoch_;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++epoch_;
      return before;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    int64_t epoch_ = 0;
  };

  /// Empty if `last` is at most `first`.
  EpochRange(int64_t first, int64_t last) : first_(first), last_(last < first ? first : last) {}
  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(last_); }
  bool empty() const { return first_ == last_; }
  int64_t size() const { return last_ - first_; }
  int64_t front() const { return first_; }

 private:
  int64_t first_;
  int64_t last_;
};

}  // namespace lockstep
