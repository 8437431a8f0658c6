// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/data/device/copy_ahead.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/loader/prefetcher.h"
#include "lockstep/data/order/shard.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

/// Consecutive ranks whose batches are read together: one of them, or all when rank 0 dispatches.
struct RankRange {
  int first = 0;
  int count = 1;
  bool contains(int64_t rank) const { return rank >= first && rank < first + count; }
};

/// Round `index` of a pass: the next batch of each of some ranks.
template <typename Batch>
struct RankBatches {
  int64_t index = 0;
  /// Valid for this round, and for whether another follows.
  ShardLayout layout;
  /// The batch of each rank; nothing for a rank without one.
  std::vector<std::optional<Batch>> batches;
};

/// Starts the copy of a rank's own batch to its device, on a worker thread if there is one. Not
/// called for other ranks' batches.
template <typename Batch>
using SendBatch = std::function<PendingBatch<Batch>(Batch)>;

/// Produces the batches of a pass.
template <typename Batch>
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;
  /// Returns the next round in which one of the ranks has a batch; nothing at the end.
  virtual std::optional<RankBatches<Batch>> next() = 0;
};

/// Reads the rounds of a map-style dataset on several workers, each of which reads another batch.
template <typename Batch>
class MapBatchSource final : public BatchSource<Batch> {
 public:
  using Read = std::function<Batch(std::span<const int64_t>)>;

  /// Begins at round `begin`. All workers call `read` at once, within a SampleRandomScope.
  MapBatchSource(
      Read read,
      std::shared_ptr<const ShardPlan> plan,
      int64_t begin,
      RankRange ranks,
      const LoaderOptions& options,
      const RandomKey& random)
      : layout_(plan->layout()),
        ranks_(ranks),
        index_(begin),
        batches_(
            options.workers,
            int64_t{options.prefetch_batches} * ranks.count,
            begin * ranks.count,
            // No rank has more batches than the first one.
            layout_.size(ranks.first) * ranks.count,
            [read = std::move(read), plan = std::move(plan), ranks, random](int64_t job) {
              const BatchSamples samples = plan->samples(
                  job / ranks.count, ranks.first + static_cast<int>(job % ranks.count));
              if (samples.indices.empty()) {
                return std::optional<Batch>();
              }
              const SampleRandomScope scope(random, samples.indices, samples.visits);
              return std::optional<Batch>(read(samples.indices));
            }) {}

  std::optional<RankBatches<Batch>> next() override {
    if (batches_.done()) {
      return std::nullopt;
    }
    RankBatches<Batch> round{index_, layout_, {}};
    for (int rank = 0; rank < ranks_.count; ++rank) {
      round.batches.push_back(batches_.next());
    }
    ++index_;
    return round;
  }

 private:
  ShardLayout layout_;
  RankRange ranks_;
  int64_t index_;
  Prefetcher<std::optional<Batch>> batches_;
};

}  // namespace lockstep::data
