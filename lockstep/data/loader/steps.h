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

/// Batch `index` of some ranks.
template <typename Batch>
struct Step {
  int64_t index = 0;
  /// Valid for this step, and for whether another follows.
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
class Steps {
 public:
  Steps() = default;
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  virtual ~Steps() = default;
  /// Returns the next step in which one of the ranks has a batch; nothing at the end.
  virtual std::optional<Step<Batch>> next() = 0;
};

/// Reads the steps of a map-style dataset on several workers, each of which reads another batch.
template <typename Batch>
class MapSteps final : public Steps<Batch> {
 public:
  using Read = std::function<Batch(std::span<const int64_t>)>;

  /// Begins at step `begin`. All workers call `read` at once, within a SampleRandomScope.
  MapSteps(
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

  std::optional<Step<Batch>> next() override {
    if (batches_.done()) {
      return std::nullopt;
    }
    Step<Batch> step{index_, layout_, {}};
    for (int rank = 0; rank < ranks_.count; ++rank) {
      step.batches.push_back(batches_.next());
    }
    ++index_;
    return step;
  }

 private:
  ShardLayout layout_;
  RankRange ranks_;
  int64_t index_;
  Prefetcher<std::optional<Batch>> batches_;
};

}  // namespace lockstep::data
