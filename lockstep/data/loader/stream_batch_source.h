// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/loader/batch_source.h"
#include "lockstep/data/sample/dataset.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

/// Logs a warning unless a stream yielded `expected` samples, its dataset's size().
void check_sample_count(std::optional<int64_t> expected, int64_t read);

/// Reads the rounds of an iterable dataset on one thread. Every sample is read; those of other
/// ranks and before `begin` are dropped.
///
/// ShardLayout maps positions of the stream to batches, as for datasets of known size; for even
/// batches that equals Accelerate's IterableDatasetShard. A round is returned after the next round
/// or the end was read, since only then its valid rows, and whether it is the last, are known. So
/// an exception of the stream appears one round early.
///
/// Memory: the ranks' samples of two rounds, the batches ahead, and, to fill up the last round, the
/// epoch's first round of all ranks.
template <IterableDataset D, typename Batch>  // Batch: the result of `collate`.
class StreamBatchSource final : public BatchSource<Batch> {
 public:
  using Sample = SampleOf<D>;
  using Collate = std::function<Batch(std::vector<Sample>)>;

  StreamBatchSource(const D& dataset, Collate collate, const LoaderCore& core, RankRange ranks)
      : dataset_(&dataset),
        collate_(std::move(collate)),
        layout_(core.layout()),
        expected_(core.source().samples),
        drop_last_(core.options().drop_last),
        epoch_(core.cursor().epoch),
        begin_(core.cursor().batches),
        random_(core.random_key()),
        ranks_(ranks),
        batches_(
            core.options().workers,
            core.options().prefetch_batches,
            begin_,
            std::numeric_limits<int64_t>::max(),
            [this](int64_t index) { return read(index); }) {}

  std::optional<RankBatches<Batch>> next() override { return batches_.next(); }

 private:
  std::optional<RankBatches<Batch>> read(int64_t index) {
    while (!ended_ && read_ < layout_.first_sample() + (index + 2) * layout_.global_batch_rows()) {
      read_sample();
    }
    const ShardLayout layout = layout_.with_samples(read_);
    if (index >= layout.size(ranks_.first)) {
      return std::nullopt;
    }
    RankBatches<Batch> round{index, layout, {}};
    for (int rank = ranks_.first; rank < ranks_.first + ranks_.count; ++rank) {
      std::vector<Sample> samples;
      std::vector<int64_t> positions;
      for (int64_t row = 0; row < layout.rows(index, rank); ++row) {
        positions.push_back(layout.position(index, row, rank));
        samples.push_back(take(positions.back()));
      }
      const SampleRandomScope scope(random_, positions);
      round.batches.push_back(
          samples.empty() ? std::nullopt : std::optional<Batch>(collate_(std::move(samples))));
    }
    return round;
  }

  void read_sample() {
    const SampleRandomScope scope(random_, {});
    if (!stream_) {
      stream_.emplace(dataset_->stream(epoch_));
    }
    begin_sample(read_);
    std::optional<Sample> sample = (*stream_)();
    if (!sample) {
      ended_ = true;
      stream_.reset();
      check_sample_count(expected_, read_);
      return;
    }
    const int64_t position = read_++;
    if (position < layout_.global_batch_rows() && layout_.spec().even_batches && !drop_last_) {
      first_round_.push_back(*sample);
    }
    const int64_t row = position - layout_.first_sample();
    if (row >= begin_ * layout_.global_batch_rows() &&
        ranks_.contains(row % layout_.global_batch_rows() / layout_.batch_rows())) {
      kept_.emplace(position, std::move(*sample));
    }
  }

  Sample take(int64_t position) {
    auto kept = kept_.extract(position);
    return kept.empty() ? first_round_.at(static_cast<size_t>(position)) : std::move(kept.mapped());
  }

  const D* dataset_;
  Collate collate_;
  ShardLayout layout_;
  std::optional<int64_t> expected_;
  bool drop_last_;
  int64_t epoch_;
  int64_t begin_;
  RandomKey random_;
  RankRange ranks_;
  // Only the reading thread uses the members below.
  std::optional<iterable::Stream<D>> stream_;
  bool ended_ = false;
  int64_t read_ = 0;                 ///< Samples read so far.
  std::map<int64_t, Sample> kept_;   ///< Samples for later rounds, by position.
  std::vector<Sample> first_round_;  ///< The epoch's first round, to fill up the last one.
  Prefetcher<std::optional<RankBatches<Batch>>>
      batches_;  ///< Last: its thread uses all of the above.
};

}  // namespace lockstep::data
