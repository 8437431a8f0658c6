// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// Assigns the batches of a pass to ranks.
struct ShardSpec {
  int rank = 0;
  int world = 1;
  /// Gives every rank equally many batches of equal size. The last round is filled up with samples
  /// from the beginning of the epoch. Off: in the last round batches may be short or absent.
  bool even_batches = true;
  /// Splits each batch into `world` slices, instead of giving each rank full batches in turn.
  bool split_batches = false;
  /// Lets rank 0 read the data and send every rank its batches, see Dispatcher. The batches are the
  /// same either way. Accelerate turns it on for iterable data; here each rank then reads
  /// everything and keeps its share.
  bool dispatch_batches = false;

  bool operator==(const ShardSpec&) const = default;
};

/// Returns the position whose sample takes `position` in a pass of `samples` samples: `position`
/// itself, or past the end one of the first round, which repeats if it is short itself.
int64_t completed_position(int64_t position, int64_t samples, int64_t round_rows);

/// Maps each row of each rank's batches to a position in the epoch's order: Accelerate's
/// BatchSamplerShard, in closed form.
///
/// A round is `global_batch_rows()` consecutive positions: world * batch_size, or batch_size when
/// batches are split. Rank r's share of round i starts at first_sample + i * global_batch_rows + r
/// * batch_rows. With `even_batches`, positions past the end wrap to the epoch's first positions;
/// else they do not exist. With `drop_last`, a round that contains one is dropped. A pass that
/// continues another layout's pass assigns the positions from `first_sample()` on. In a world of
/// one the last batch is short, as Accelerate does not shard for a single process either.
///
/// Cost: O(1) in samples and batches. Thread safety: immutable.
class ShardLayout {
 public:
  /// Throws ConfigError if `batch_size` < 1, is not a multiple of `world` when splitting, or if
  /// `rank` is outside `world`.
  ShardLayout(int64_t samples, int64_t batch_size, bool drop_last, const ShardSpec& spec);

  const ShardSpec& spec() const { return spec_; }
  int64_t samples() const { return samples_; }
  /// Returns the layout for another number of samples; a stream's is known only at its end.
  ShardLayout with_samples(int64_t samples) const;
  /// Returns the samples of the epoch consumed before batch 0; past the end there is no batch.
  int64_t first_sample() const { return first_sample_; }
  /// Returns the layout that begins there; not negative.
  ShardLayout with_first_sample(int64_t first_sample) const;
  /// Returns the samples of a full round of all ranks: Accelerate's total_batch_size.
  int64_t global_batch_rows() const { return global_batch_rows_; }
  /// Returns the samples of a full batch of one rank.
  int64_t batch_rows() const { return batch_rows_; }

  /// Returns the batches of this rank, or of `rank`, in a pass. Ranks differ by at most one, and
  /// only without even_batches.
  ///
  /// It differs from Accelerate's len() in one case: uneven split batches whose last slice is empty
  /// for a rank. Accelerate counts that batch but does not yield it.
  int64_t size() const { return size(spec_.rank); }
  int64_t size(int rank) const;
  bool is_last(int64_t batch) const { return batch == size() - 1; }
  /// Returns the rows of that rank's batch; 0 if it has no such batch.
  int64_t rows(int64_t batch, int rank) const;
  /// Returns the number of leading rows of that rank's batch that are new in this epoch; the others
  /// wrap to the beginning. The result is 0 if all wrap, or if the rank has no such batch. The sum
  /// over a pass of all ranks is `samples() - first_sample()`, unless drop_last drops some.
  int64_t valid_rows(int64_t batch, int rank) const;
  /// Returns the position in the order of one row of that rank's batch; `row` < rows(batch, rank).
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
  std::vector<int64_t> indices;  ///< Indices into the dataset, one per row.
  /// Number of earlier occurrences of each in the epoch's order; empty if none occurs twice.
  std::vector<int64_t> visits;
};

/// Applies a layout to an order: one rank's batches of one epoch.
///
/// Memory: 8 bytes per sample, or 16 if the order repeats one. Thread safety: immutable.
class ShardPlan {
 public:
  /// Throws ConfigError unless `order` has `layout.samples()` entries.
  ShardPlan(std::vector<int64_t> order, const ShardLayout& layout);
  ShardPlan(std::vector<int64_t> order, int64_t batch_size, bool drop_last, const ShardSpec& spec);

  const ShardLayout& layout() const { return layout_; }
  int64_t size() const { return layout_.size(); }
  bool is_last(int64_t batch) const { return layout_.is_last(batch); }
  int64_t valid_rows(int64_t batch, int rank) const { return layout_.valid_rows(batch, rank); }
  /// Returns the dataset indices of this rank's batch.
  std::vector<int64_t> indices(int64_t batch) const;
  /// Returns the dataset indices of that rank's batch; empty if it has no such batch.
  std::vector<int64_t> indices(int64_t batch, int rank) const;
  /// Does the same with the number of earlier occurrences.
  BatchSamples samples(int64_t batch, int rank) const;

 private:
  std::vector<int64_t> order_;
  std::vector<int64_t> visits_;  ///< By position in the order; empty as in BatchSamples.
  ShardLayout layout_;
};

}  // namespace lockstep::data
