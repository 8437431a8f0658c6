// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// How the batches of a pass are dealt out to ranks.
struct ShardSpec {
  int rank = 0;
  int world = 1;
  /// Every rank gets equally many batches of equal size; the last round is filled up with samples
  /// from the beginning of the same epoch. Off: the last round is short, or misses ranks.
  bool even_batches = true;
  /// One batch is cut into `world` slices, instead of each rank getting whole batches in turn.
  bool split_batches = false;
  /// Rank 0 alone reads the data, and sends every rank its batches; see Dispatcher. The batches are
  /// the same either way. Off unless asked for, where Accelerate turns it on for iterable data: a
  /// rank that reads everything and keeps its share needs no one.
  bool dispatch_batches = false;

  bool operator==(const ShardSpec&) const = default;
};

/// Which samples, by position in the epoch's order, make up which batch of which rank: the
/// arithmetic of Accelerate's BatchSamplerShard, in closed form.
///
/// A round is `global_batch_rows()` consecutive positions: world * batch_size, or batch_size when
/// batches are split. Rank r's share of round i starts at first_sample + i * global_batch_rows + r
/// * batch_rows. Positions past the end wrap to the first positions when `even_batches`, do not
/// exist otherwise, and a round that contains one is dropped when `drop_last`. A pass that goes on
/// where another layout was left deals out the positions from `first_sample()` on, and wraps to the
/// epoch's first ones all the same. In a world of one there is nothing to even out, and the last
/// batch is short: Accelerate does not shard a lone process either.
///
/// Everything is O(1) in samples and batches. Thread safety: immutable.
class ShardLayout {
 public:
  /// ConfigError if `batch_size` < 1, or is no multiple of world when splitting, or rank is outside
  /// world.
  ShardLayout(int64_t samples, int64_t batch_size, bool drop_last, const ShardSpec& spec);

  const ShardSpec& spec() const { return spec_; }
  int64_t samples() const { return samples_; }
  /// The same for another number of samples; of a stream it is known at its end only.
  ShardLayout with_samples(int64_t samples) const;
  /// Samples of the epoch that were consumed before batch 0; past the end there is no batch.
  int64_t first_sample() const { return first_sample_; }
  /// The same from there on; not negative.
  ShardLayout with_first_sample(int64_t first_sample) const;
  /// Samples all ranks together consume in a full round: Accelerate's total_batch_size.
  int64_t global_batch_rows() const { return global_batch_rows_; }
  /// Samples in a full batch of one rank.
  int64_t batch_rows() const { return batch_rows_; }

  /// Batches this rank, or `rank`, sees in a pass. Ranks differ by at most one, and only when not
  /// even.
  ///
  /// One case is not what len() says in Accelerate: uneven split batches whose last slice is empty
  /// for a rank, where it counts a batch that it then does not yield.
  int64_t size() const { return size(spec_.rank); }
  int64_t size(int rank) const;
  bool is_last(int64_t batch) const { return batch == size() - 1; }
  /// Rows in that rank's batch; 0 if it has no such batch.
  int64_t rows(int64_t batch, int rank) const;
  /// How many leading rows of that rank's batch are samples not seen before in this epoch; the rest
  /// wraps to the beginning. 0 if all of it does, or if the rank has no such batch. Sums to
  /// `samples() - first_sample()` over a pass of all ranks, unless drop_last drops some.
  int64_t valid_rows(int64_t batch, int rank) const;
  /// Position in the order of one row of that rank's batch; `row` < rows(batch, rank).
  int64_t position(int64_t batch, int64_t row, int rank) const;

 private:
  int64_t start(int64_t batch, int rank) const {
    return first_sample_ + batch * global_batch_rows_ + rank * batch_rows_;
  }

  int64_t samples_;
  int64_t first_sample_ = 0;
  bool drop_last_;
  ShardSpec spec_;
  int64_t global_batch_rows_;
  int64_t batch_rows_;
};

/// The samples of one batch.
struct BatchSamples {
  std::vector<int64_t> indices;  ///< Of the dataset, one a row.
  /// How often each came before in the epoch's order; empty if no sample comes twice in it.
  std::vector<int64_t> visits;
};

/// One rank's batches of one epoch: a layout applied to an order. Holds the order, never the
/// batches; 8 bytes a sample, or 16 where the order has one twice. Thread safety: immutable.
class ShardPlan {
 public:
  /// ConfigError if `order` has not `layout.samples()` entries.
  ShardPlan(std::vector<int64_t> order, const ShardLayout& layout);
  ShardPlan(std::vector<int64_t> order, int64_t batch_size, bool drop_last, const ShardSpec& spec);

  const ShardLayout& layout() const { return layout_; }
  int64_t size() const { return layout_.size(); }
  bool is_last(int64_t batch) const { return layout_.is_last(batch); }
  int64_t valid_rows(int64_t batch, int rank) const { return layout_.valid_rows(batch, rank); }
  /// Dataset indices of this rank's batch.
  std::vector<int64_t> indices(int64_t batch) const;
  /// Dataset indices of that rank's batch; empty if it has no such batch.
  std::vector<int64_t> indices(int64_t batch, int rank) const;
  /// Of that rank's batch; empty if it has no such batch.
  BatchSamples samples(int64_t batch, int rank) const;

 private:
  std::vector<int64_t> order_;
  std::vector<int64_t> visits_;  ///< By position in the order; empty as in BatchSamples.
  ShardLayout layout_;
};

}  // namespace lockstep::data
