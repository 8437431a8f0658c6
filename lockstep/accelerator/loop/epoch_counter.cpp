// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/epoch_counter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::internal {

/// Reports the iterations of one range to the counter. Its destructor ends the range, also after a
/// break or an exception.
class EpochCounter::CountedRange final : public EpochListener {
 public:
  CountedRange(std::weak_ptr<EpochCounter> counter, int64_t last)
      : counter_(std::move(counter)), last_(last) {}
  ~CountedRange() override { end(/*is_complete=*/false); }

  void reached(int64_t epoch) override {
    const auto counter = counter_.lock();
    if (!counter) {
      return;
    }
    if (!level_) {
      level_ = counter->depth_++;
      counter->levels_.resize(*level_ + 1);
      ++counter->levels_[*level_].ranges;
    }
    counter->begin_iteration(*level_, epoch);
    if (epoch >= last_) {
      end(/*is_complete=*/true);
    }
  }

 private:
  void end(bool is_complete) {
    const auto counter = counter_.lock();
    if (counter && level_ && !std::exchange(has_ended_, true)) {
      counter->end_range(*level_, is_complete);
    }
  }

  std::weak_ptr<EpochCounter> counter_;
  int64_t last_;
  std::optional<size_t> level_;  ///< Set once the first iteration has begun.
  bool has_ended_ = false;
};

EpochRange EpochCounter::range(int64_t count) {
  const Position position = next_range();
  const int64_t first = position.is_done ? count : std::min(position.first, count);
  if (!position.is_done && count > 0 && first == count) {
    log_info(fmt::format(
        "the loaded checkpoint has done all {} epochs of this loop, so nothing is left to do in it",
        count));
  }
  return {first, count, std::make_shared<CountedRange>(weak_from_this(), std::max(first, count))};
}

/// Returns where the range that begins next continues, by the place of a resume.
EpochCounter::Position EpochCounter::next_range() const {
  const size_t level = depth_;
  if (level >= resumed_.size() || levels_.size() < level ||
      !std::equal(
          levels_.begin(), levels_.begin() + static_cast<int64_t>(level), resumed_.begin())) {
    return {};
  }
  const int64_t ranges = level < levels_.size() ? levels_[level].ranges + 1 : 1;
  if (ranges < resumed_[level].ranges) {
    return {.is_done = true};
  }
  return {.first = ranges == resumed_[level].ranges ? resumed_[level].done : 0};
}

void EpochCounter::begin_iteration(size_t level, int64_t done) {
  levels_.resize(level + 1);  // Ranges within the iteration begin again.
  levels_[level].done = done;
  at_begin_ = work_();
}

void EpochCounter::end_range(size_t level, bool is_complete) {
  depth_ = level;
  if (is_complete) {
    at_begin_.reset();
  }
}

bool EpochCounter::iteration_has_trained() const {
  if (!at_begin_) {
    return false;
  }
  const Work now = work_();
  if (now.backward_passes == at_begin_->backward_passes && now.updates == at_begin_->updates) {
    return false;
  }
  for (size_t i = 0; i < now.positions.size(); ++i) {
    const bool is_new =
        i >= at_begin_->positions.size() || now.positions[i] != at_begin_->positions[i];
    if (is_new && now.positions[i].batches > 0) {
      return false;
    }
  }
  return true;
}

EpochCounter::Place EpochCounter::place() const {
  Place place = levels_;
  if (!place.empty() && iteration_has_trained()) {
    ++place.back().done;
  }
  return place;
}

}  // namespace lockstep::internal
