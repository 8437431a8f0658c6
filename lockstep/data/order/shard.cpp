// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/shard.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

// Keeps batch * global_batch_rows within 63 bits.
constexpr int64_t kMaxGlobalBatchRows = int64_t{1} << 40;

void check(int64_t samples, int64_t batch_size, const ShardSpec& spec) {
  if (samples < 0) {
    throw ConfigError("shard", fmt::format("the number of samples is negative; got {}", samples));
  }
  if (spec.world < 1 || spec.rank < 0 || spec.rank >= spec.world) {
    throw ConfigError(
        "shard",
        fmt::format(
            "rank is out of range; got rank {} of world {}, expected 0 <= rank < world",
            spec.rank,
            spec.world));
  }
  if (batch_size < 1 || batch_size > kMaxGlobalBatchRows / spec.world) {
    throw ConfigError(
        "shard",
        fmt::format(
            "batch_size is out of range; got {}, expected 1 to {}",
            batch_size,
            kMaxGlobalBatchRows / spec.world));
  }
  if (spec.split_batches && batch_size % spec.world != 0) {
    throw ConfigError(
        "shard",
        fmt::format(
            "split_batches cannot split a batch evenly; got batch_size {} for {} ranks, expected a "
            "multiple of {}; try batch_size {}, or split_batches = false",
            batch_size,
            spec.world,
            spec.world,
            (batch_size / spec.world + 1) * spec.world));
  }
}

/// Returns the number of earlier occurrences of each entry of `order`; empty if none repeats.
std::vector<int64_t> count_visits(const std::vector<int64_t>& order) {
  if (order.empty()) {
    return {};
  }
  const auto [min, max] = std::minmax_element(order.begin(), order.end());
  const int64_t first = *min;
  std::vector<bool> seen(static_cast<size_t>(*max - first + 1));
  const bool repeats = std::any_of(order.begin(), order.end(), [&](int64_t index) {
    const auto offset = static_cast<size_t>(index - first);
    const bool before = seen[offset];
    seen[offset] = true;
    return before;
  });
  if (!repeats) {
    return {};
  }
  std::unordered_map<int64_t, int64_t> counts;
  std::vector<int64_t> visits;
  visits.reserve(order.size());
  for (const int64_t index : order) {
    visits.push_back(counts[index]++);
  }
  return visits;
}

}  // namespace

int64_t completed_position(int64_t position, int64_t samples, int64_t round_rows) {
  // As Accelerate completes.
  return position < samples ? position : (position - samples) % std::min(samples, round_rows);
}

ShardLayout::ShardLayout(int64_t samples, int64_t batch_size, bool drop_last, const ShardSpec& spec)
    : samples_(samples), drop_last_(drop_last), spec_(spec) {
  check(samples, batch_size, spec);
  global_batch_rows_ = spec.split_batches ? batch_size : batch_size * spec.world;
  batch_rows_ = global_batch_rows_ / spec.world;
  spec_.even_batches = spec.even_batches && spec.world > 1;
}

ShardLayout ShardLayout::with_samples(int64_t samples) const {
  ShardLayout layout = *this;
  layout.samples_ = samples;
  return layout;
}

ShardLayout ShardLayout::with_first_sample(int64_t first_sample) const {
  LOCKSTEP_ASSERT(first_sample >= 0, "the pass begins before its epoch");
  ShardLayout layout = *this;
  layout.first_sample_ = first_sample;
  return layout;
}

int64_t ShardLayout::size(int rank) const {
  const int64_t left = std::max<int64_t>(samples_ - first_sample_, 0);
  const int64_t full_rounds = left / global_batch_rows_;
  const int64_t rest = left % global_batch_rows_;
  if (rest == 0 || drop_last_) {
    return full_rounds;
  }
  return full_rounds + (spec_.even_batches || rank * batch_rows_ < rest ? 1 : 0);
}

int64_t ShardLayout::rows(int64_t batch, int rank) const {
  if (batch < 0 || batch >= size(rank)) {
    return 0;
  }
  return spec_.even_batches ? batch_rows_ : std::min(batch_rows_, samples_ - start(batch, rank));
}

int64_t ShardLayout::valid_rows(int64_t batch, int rank) const {
  if (batch < 0 || batch >= size(rank)) {
    return 0;
  }
  return std::clamp<int64_t>(samples_ - start(batch, rank), 0, batch_rows_);
}

int64_t ShardLayout::position(int64_t batch, int64_t row, int rank) const {
  return completed_position(start(batch, rank) + row, samples_, global_batch_rows_);
}

ShardPlan::ShardPlan(std::vector<int64_t> order, const ShardLayout& layout)
    : order_(std::move(order)), visits_(count_visits(order_)), layout_(layout) {
  if (static_cast<int64_t>(order_.size()) != layout_.samples()) {
    throw ConfigError(
        "shard",
        fmt::format(
            "the order does not match the layout; got {} indices, expected {}",
            order_.size(),
            layout_.samples()));
  }
}

ShardPlan::ShardPlan(
    std::vector<int64_t> order, int64_t batch_size, bool drop_last, const ShardSpec& spec)
    : order_(std::move(order)),
      visits_(count_visits(order_)),
      layout_(static_cast<int64_t>(order_.size()), batch_size, drop_last, spec) {}

std::vector<int64_t> ShardPlan::indices(int64_t batch) const {
  LOCKSTEP_ASSERT(batch >= 0 && batch < size(), "the batch is outside the pass");
  return indices(batch, layout_.spec().rank);
}

std::vector<int64_t> ShardPlan::indices(int64_t batch, int rank) const {
  return samples(batch, rank).indices;
}

BatchSamples ShardPlan::samples(int64_t batch, int rank) const {
  BatchSamples samples;
  samples.indices.resize(static_cast<size_t>(layout_.rows(batch, rank)));
  samples.visits.resize(visits_.empty() ? 0 : samples.indices.size());
  for (size_t row = 0; row < samples.indices.size(); ++row) {
    const int64_t position = layout_.position(batch, static_cast<int64_t>(row), rank);
    samples.indices[row] = order_[position];
    if (!visits_.empty()) {
      samples.visits[row] = visits_[position];
    }
  }
  return samples;
}

}  // namespace lockstep::data
