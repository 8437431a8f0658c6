// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/stream_shard.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/data/order/shard.h"

namespace lockstep::data {

StreamShard::StreamShard(
    int64_t batch_size, bool drop_last, int world, int rank, bool split_batches)
    : batch_size_(batch_size), drop_last_(drop_last), world_(world), rank_(rank) {
  // A batch of one sample is accepted, and kept by no rank of several.
  const bool splits = split_batches && batch_size > 1;
  const ShardLayout checked(
      0, batch_size, drop_last, {.rank = rank, .world = world, .split_batches = splits});
  round_rows_ = split_batches ? batch_size : checked.global_batch_rows();
}

std::vector<int64_t> StreamShard::positions(int64_t round, int64_t read) const {
  const int64_t begin = round * round_rows_;
  const int64_t rest = read - begin;
  if (rest <= 0 || (drop_last_ && rest < round_rows_)) {
    return {};
  }
  const int64_t rows = round_rows_ / world_;
  std::vector<int64_t> positions;
  for (int64_t row = rank_ * rows; row < (rank_ + 1) * rows; ++row) {
    positions.push_back(completed_position(begin + row, read, round_rows_));
  }
  return positions;
}

int64_t StreamShard::size(int64_t samples) const {
  const int64_t rows = batch_size_ * world_;
  const int64_t rounds = drop_last_ ? samples / rows : (samples + rows - 1) / rows;
  return rounds * batch_size_;
}

}  // namespace lockstep::data
