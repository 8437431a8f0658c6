// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/program/progress.h"

namespace lockstep {

/// Iterates over `range` with a progress bar on the main process: `for (auto& batch : progress)`.
/// Only one loop over it at a time. The bar is drawn only if ProgressBar draws one.
template <typename Range>
class ProgressRange {
 public:
  ProgressRange(Range range, ProgressOptions options)
      : range_(std::move(range)), options_(std::move(options)) {}

  class Iterator {
   public:
    using Inner = decltype(std::declval<Range&>().begin());
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = std::remove_cvref_t<decltype(*std::declval<Inner&>())>;

    Iterator(Inner inner, std::shared_ptr<ProgressBar> bar)
        : inner_(std::move(inner)), bar_(std::move(bar)) {}
    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      ++inner_;
      bar_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t end) {
      const bool done = iterator.inner_ == end;
      if (done) {
        iterator.bar_->finish();
      }
      return done;
    }

   private:
    Inner inner_;
    std::shared_ptr<ProgressBar> bar_;
  };

  Iterator begin() {
    bar_ = std::make_shared<ProgressBar>(options_);
    return Iterator(range_.begin(), bar_);
  }
  std::default_sentinel_t end() const { return {}; }

  /// Sets a short text behind the bar: "loss 0.312". Call it during the loop.
  void set_note(std::string note) {
    if (bar_) {
      bar_->set_note(std::move(note));
    }
  }

 private:
  Range range_;
  ProgressOptions options_;
  std::shared_ptr<ProgressBar> bar_;
};

/// Returns `range` with a progress bar. A loader's total and position are known.
template <typename Range>
ProgressRange<Range> with_progress(Range range, std::string label) {
  ProgressOptions options{.label = std::move(label)};
  if constexpr (requires { range.cursor().batches; }) {
    options.unit = "batch";
    options.initial = range.epoch() == range.cursor().epoch ? range.cursor().batches : 0;
  }
  if constexpr (requires { range.size(); }) {
    options.total = static_cast<int64_t>(range.size());
  }
  return ProgressRange<Range>(std::move(range), std::move(options));
}

}  // namespace lockstep
