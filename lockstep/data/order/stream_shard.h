// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// Assigns the samples of a stream, which every rank reads, to ranks: Accelerate's
/// IterableDatasetShard.
///
/// A round is `round_rows()` consecutive samples: world * batch_size, or batch_size when batches
/// are split. Rank r keeps slice r of each round. The last round is completed with the stream's
/// first round, repeatedly if that is short itself; with `drop_last` it is dropped. Unlike
/// ShardLayout that holds for a world of one, too.
///
/// Cost: O(batch_size) for a round. Thread safety: immutable.
class StreamShard {
 public:
  /// Throws ConfigError if `batch_size` < 1, if `rank` is outside `world`, and if split batches of
  /// more than one sample are not divisible by `world`. One sample that is split is kept by no rank
  /// of several, as in Accelerate.
  StreamShard(int64_t batch_size, bool drop_last, int world, int rank, bool split_batches);

  int64_t round_rows() const { return round_rows_; }
  /// Returns the positions in the stream of this rank's samples in a round. `read`: the samples
  /// read so far, to the end of this round or of the stream.
  std::vector<int64_t> positions(int64_t round, int64_t read) const;
  /// Returns Accelerate's number of samples of this rank in a stream of `samples`. It is computed
  /// from rounds of world * batch_size, also when batches are split.
  int64_t size(int64_t samples) const;

 private:
  int64_t batch_size_;
  bool drop_last_;
  int world_;
  int rank_;
  int64_t round_rows_;
};

}  // namespace lockstep::data
