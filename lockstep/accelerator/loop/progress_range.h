// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/accelerator/loop/epoch_range.h"
#include "lockstep/base/program/progress.h"

namespace lockstep {

/// Iterates over `range` with a progress bar on the main process: `for (auto& batch : progress)`.
///
/// The bar begins at the position of a resumed loader, or of epochs(). It shows the values of
/// `live`, those of set_value() and the note. Only one loop over a ProgressRange at a time. The bar
/// is drawn only if ProgressBar draws one.
template <typename Range>
class ProgressRange {
 public:
  ProgressRange(Range range, std::string label, std::function<ProgressValues()> live)
      : range_(std::move(range)), label_(std::move(label)), live_(std::move(live)) {}

  class Iterator {
   public:
    using Inner = decltype(std::declval<Range&>().begin());
    using Sentinel = decltype(std::declval<Range&>().end());
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = std::remove_cvref_t<decltype(*std::declval<Inner&>())>;

    Iterator(Inner inner, Sentinel last, std::shared_ptr<ProgressBar> bar)
        : inner_(std::move(inner)), last_(std::move(last)), bar_(std::move(bar)) {}
    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      ++inner_;
      bar_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) {
      const bool done = iterator.inner_ == iterator.last_;
      if (done) {
        iterator.bar_->finish();
      }
      return done;
    }

   private:
    Inner inner_;
    Sentinel last_;
    std::shared_ptr<ProgressBar> bar_;
  };

  Iterator begin() {
    bar_.reset();
    // A loader resumes here if the launcher requested that.
    auto first = range_.begin();
    auto last = range_.end();
    bar_ = std::make_shared<ProgressBar>(options(first == last));
    return Iterator(std::move(first), std::move(last), bar_);
  }
  std::default_sentinel_t end() const { return {}; }

  /// Shows a number behind the bar: "loss 0.3125". Call it during the loop, as set_note().
  void set_value(const std::string& name, double value) {
    if (bar_) {
      bar_->set_value(name, value);
    }
  }
  /// Sets a short text behind the bar and its values.
  void set_note(std::string note) {
    if (bar_) {
      bar_->set_note(std::move(note));
    }
  }

 private:
  /// Returns the options of a loop that has begun; `is_over`: without an element.
  ProgressOptions options(bool is_over) const {
    ProgressOptions options{.label = label_, .live = live_};
    if constexpr (std::same_as<Range, EpochRange>) {
      options.unit = "epochs";
      options.initial = range_.front();
      options.total = range_.front() + range_.size();
      return options;
    }
    if constexpr (requires { range_.size(); }) {
      options.total = static_cast<int64_t>(range_.size());
    }
    if constexpr (requires { range_.cursor().batches; }) {
      options.unit = "batches";
      // The cursor counts the batch that the loop has just received.
      options.initial = is_over ? std::max<int64_t>(options.total, 0)
                                : std::max<int64_t>(range_.cursor().batches - 1, 0);
    }
    return options;
  }

  Range range_;
  std::string label_;
  std::function<ProgressValues()> live_;
  std::shared_ptr<ProgressBar> bar_;
};

/// Returns `range` with a progress bar.
template <typename Range>
ProgressRange<Range> with_progress(
    Range range, std::string label, std::function<ProgressValues()> live = {}) {
  return ProgressRange<Range>(std::move(range), std::move(label), std::move(live));
}

}  // namespace lockstep
